//! How long guests receive nothing when their backend is killed: from the last frame before the
//! kill to the first one after the next process has taken over the rings. With TCP this includes
//! its retransmission; a ping each millisecond shows the silence itself, to a millisecond.

use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use ringway_rig::host::RunningHost;
use rustix::process::{Pid, Signal, kill_process};

use crate::child::{is_installed, launcher};
use crate::options::Options;
use crate::path::Ringway;
use crate::report::{Better, Case, Report};

/// The guest that receives.
const SERVER: &str = "10.77.0.2";
/// The address of the host, on a bridge of this name.
const HOST: &str = "10.77.0.254";
const BRIDGE: &str = "br0";
const STREAMS: &str = "4";
const PATIENCE: Duration = Duration::from_secs(20);
/// A backend that ends in its first second counts as not working, and its successor is started with
/// a delay.
const SETTLED: Duration = Duration::from_millis(1500);
/// How long frames are counted after the kill. This includes TCP's retransmission.
const WATCHED: Duration = Duration::from_millis(1500);
/// Pause between two readings of the counter.
const STEP: Duration = Duration::from_micros(200);

/// What is measured, the program that sends, and how.
type Way = (&'static str, &'static str, fn(&Ringway) -> Result<Duration>);

/// One round: a kill under TCP, and one under each kind of ping.
pub(crate) fn round(options: &Options, report: &mut Report) {
    let ways: [Way; 3] = [
        ("silence after kill -9 of the backend", "iperf3", |ringway| {
            silence_after_kill(&ringway.run(&description(""))?)
        }),
        ("silence after kill -9, ping each ms to another guest", "ping", |ringway| {
            silence_of_ping(&ringway.run(&description(""))?, SERVER)
        }),
        ("silence after kill -9, ping each ms to the host", "ping", |ringway| {
            silence_of_ping(&ringway.run(&description(BRIDGE))?, HOST)
        }),
    ];
    for (name, tool, silence) in ways {
        let case = Case::new("restart", name, "ms", Better::Less);
        if !options.wants(&case.name) {
            continue;
        }
        if !is_installed(tool) {
            report.skip("restart", tool, &format!("no program {tool}"));
            continue;
        }
        match Ringway::find(options.ringway.as_deref()) {
            Err(missing) => report.skip("restart", "ringway", &missing),
            Ok(ringway) => {
                report.measure(&case, "ringway", || Ok(silence(&ringway)?.as_secs_f64() * 1e3));
            }
        }
    }
}

/// Two guests, on the switch or on a bridge.
fn description(bridge: &str) -> String {
    let (table, line) = match bridge {
        "" => (String::new(), String::new()),
        name => (
            format!("[[bridge]]\nname = \"{name}\"\naddresses = [\"{HOST}/24\"]\n"),
            format!("bridge = \"{name}\"\n"),
        ),
    };
    let guest = |number: usize| {
        format!(
            "[[guest]]\nname = \"guest{number}\"\n\
             [[guest.vif]]\naddresses = [\"10.77.0.{number}/24\"]\n{line}"
        )
    };
    format!("[host]\nnetwork = \"private\"\n{table}{}{}", guest(1), guest(2))
}

/// Kills the backend.
fn kill_backend(host: &RunningHost) -> Result<()> {
    let backend = i32::try_from(host.backend()?.pid).ok().and_then(Pid::from_raw);
    Ok(kill_process(backend.context("the backend has no process")?, Signal::KILL)?)
}

/// The longest time from a reply to the next one, since the backend is killed, for the first guest,
/// which pings an address each millisecond.
fn silence_of_ping(host: &RunningHost, address: &str) -> Result<Duration> {
    let launcher = launcher()?;
    let seconds = (SETTLED + WATCHED).as_secs();
    let mut command = launcher.command_in(host.guests()[0], "ping");
    command.args(["-n", "-D", "-i", "0.001", "-w", &seconds.to_string(), address]);
    let ping = launcher.start("ping", command)?;
    thread::sleep(SETTLED);
    kill_backend(host)?;
    let killed = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let times = reply_times(&ping.output(PATIENCE + Duration::from_secs(seconds))?);
    let is_around = |pair: &[Duration]| pair[0] < killed && killed < pair[1];
    ensure!(times.windows(2).any(is_around), "no replies before or after the kill");
    let since = times.windows(2).filter(|pair| pair[1] > killed);
    let longest = since.map(|pair| pair[1].saturating_sub(pair[0])).max();
    longest.context("no replies after the kill")
}

/// When replies came, in seconds since 1970, as `ping -D` prints them.
fn reply_times(output: &str) -> Vec<Duration> {
    let time = |line: &str| {
        let (time, rest) = line.strip_prefix('[')?.split_once(']')?;
        let seconds = time.parse::<f64>().ok().filter(|_| rest.contains(" bytes from "))?;
        Duration::try_from_secs_f64(seconds).ok()
    };
    output.lines().filter_map(time).collect()
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
    kill_backend(host)?;
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
    fn the_times_of_replies_are_read() {
        let output = "PING 10.77.0.2 (10.77.0.2) 56(84) bytes of data.\n\
                      [1700000000.250000] 64 bytes from 10.77.0.2: icmp_seq=1 ttl=64 time=0.05 ms\n\
                      [1700000000.300000] From 10.77.0.1 icmp_seq=2 Destination Unreachable\n\
                      [1700000000.500000] 64 bytes from 10.77.0.2: icmp_seq=9 ttl=64\n";
        let times = reply_times(output);
        assert_eq!(times.len(), 2);
        assert_eq!((times[1] - times[0]).as_millis(), 250);
    }

    #[test]
    fn the_bytes_that_an_interface_received_are_read() {
        let text = "Inter-| Receive\n face |bytes\n    lo: 7 1 0\n  eth0: 4321 5 0\n";
        assert_eq!(received_by(text, "eth0"), Some(4321));
        assert_eq!(received_by(text, "eth1"), None);
    }
}
