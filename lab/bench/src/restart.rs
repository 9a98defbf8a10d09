//! How long guests receive nothing when their backend is killed: from the last frame before the
//! kill to the first one after the next process has taken over the rings.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_rig::host::RunningHost;
use rustix::process::{Pid, Signal, kill_process};

use crate::child::{is_installed, launcher};
use crate::options::Options;
use crate::path::Ringway;
use crate::report::{Better, Case, Report};

/// The guest that receives.
const SERVER: &str = "10.77.0.2";
const STREAMS: &str = "4";
const PATIENCE: Duration = Duration::from_secs(20);
/// A backend that ends in its first second counts as not working, and its successor is started with
/// a delay.
const SETTLED: Duration = Duration::from_millis(1500);
/// How long frames are counted after the kill. This includes TCP's retransmission.
const WATCHED: Duration = Duration::from_millis(1500);
/// Pause between two readings of the counter.
const STEP: Duration = Duration::from_micros(200);

/// One round: a kill under TCP.
pub(crate) fn round(options: &Options, report: &mut Report) {
    let name = "silence after kill -9 of the backend".to_owned();
    let case = Case::new("restart", name, "ms", Better::Less);
    if !options.wants(&case.name) {
        return;
    }
    if !is_installed("iperf3") {
        report.skip("restart", "all", "apt-get install iperf3");
        return;
    }
    match Ringway::find(options.ringway.as_deref()) {
        Err(missing) => report.skip("restart", "ringway", &missing),
        Ok(ringway) => report.measure_all(&[case], "ringway", || {
            let host = ringway.run(&description())?;
            Ok(vec![silence_after_kill(&host)?.as_secs_f64() * 1e3])
        }),
    }
}

fn description() -> String {
    let guest = |number: usize| {
        format!(
            "[[guest]]\nname = \"guest{number}\"\n\
             [[guest.vif]]\naddresses = [\"10.77.0.{number}/24\"]\n"
        )
    };
    format!("[host]\nnetwork = \"private\"\n{}{}", guest(1), guest(2))
}

/// The longest time without a frame at the receiver after the backend is killed.
fn silence_after_kill(host: &RunningHost) -> Result<Duration> {
    let launcher = launcher()?;
    let receiver = host.guests()[1];
    let start = |guest: u32, words: &[&str]| {
        let mut command = launcher.command_in(guest, "iperf3");
        command.args(words);
        launcher.start("iperf3", command)
    };
    let mut server = start(receiver, &["--server", "--one-off", "--forceflush"])?;
    server.wait_for(PATIENCE, |line| line.starts_with("Server listening").then_some(()))?;
    let seconds = (SETTLED + WATCHED).as_secs() + 2;
    let words = ["--client", SERVER, "--parallel", STREAMS, "--time", &seconds.to_string()];
    let client = start(host.guests()[0], &words)?;
    thread::sleep(SETTLED);
    ensure!(received(receiver)? > 0, "no frame arrives");
    let backend = i32::try_from(host.backend()?.pid).ok().and_then(Pid::from_raw);
    kill_process(backend.context("the backend has no process")?, Signal::KILL)?;
    let silence = longest_silence(receiver)?;
    client.output(PATIENCE + Duration::from_secs(seconds))?;
    Ok(silence)
}

fn longest_silence(receiver: u32) -> Result<Duration> {
    let start = Instant::now();
    let (mut count, mut since, mut longest) = (received(receiver)?, start, Duration::ZERO);
    while start.elapsed() < WATCHED {
        thread::sleep(STEP);
        let now = received(receiver)?;
        longest = longest.max(since.elapsed());
        if now != count {
            (count, since) = (now, Instant::now());
        }
    }
    ensure!(longest < WATCHED, "no frame arrives after the kill");
    Ok(longest)
}

/// Bytes that a guest's interface has received.
fn received(guest: u32) -> Result<u64> {
    let file = format!("/proc/{guest}/net/dev");
    let text = fs::read_to_string(&file).with_context(|| file.clone())?;
    received_by(&text, "eth0").with_context(|| format!("no eth0 in {file}"))
}

fn received_by(text: &str, interface: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.trim().split_once(':'));
    let (_, numbers) = lines.find(|(name, _)| *name == interface)?;
    numbers.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_that_an_interface_received_are_read() {
        let text = "Inter-| Receive\n face |bytes\n    lo: 7 1 0\n  eth0: 4321 5 0\n";
        assert_eq!(received_by(text, "eth0"), Some(4321));
        assert_eq!(received_by(text, "eth1"), None);
    }
}
