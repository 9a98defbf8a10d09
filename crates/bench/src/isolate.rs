//! What it costs that each tenant has a process of its own: two guests, served by one process or as
//! two tenants.

use std::time::Duration;

use anyhow::{Context, Result};
use ringway_control::BackendStatus;
use ringway_lab::topology::RunningHost;
use serde_json::Value;

use crate::child::{is_installed, launcher};
use crate::idle::own_memory_kib;
use crate::latency;
use crate::options::Options;
use crate::path::Ringway;
use crate::report::{Better, Case, Report};

/// Connections at once.
const STREAMS: [u32; 2] = [1, 4];
const PATIENCE: Duration = Duration::from_secs(20);
/// The first second of a connection is slow start and is left out.
const OMITTED_SECONDS: u64 = 1;
/// What the CPU's time is counted for: as much as a guest sends in one frame.
const UNIT_BYTES: f64 = 65_536.0;
/// The second guest, which serves.
const SERVER: &str = "10.77.0.2";

/// One round: both ways to serve, one after the other.
pub(crate) fn round(options: &Options, report: &mut Report) {
    let cases = cases();
    if !cases.iter().any(|case| options.wants(&case.name)) {
        return;
    }
    if let Some(tool) = ["iperf3", "sockperf"].into_iter().find(|tool| !is_installed(tool)) {
        report.skip("isolate", "all", &format!("apt-get install {tool}"));
        return;
    }
    let ringway = match Ringway::find(options.ringway.as_deref()) {
        Ok(ringway) => ringway,
        Err(missing) => return report.skip("isolate", "ringway", &missing),
    };
    let seconds = options.spans.window.as_secs().max(1);
    for (name, is_isolated) in [("one process", false), ("--isolate", true)] {
        report.measure_all(&cases, name, || {
            let host = ringway.run(&description(is_isolated))?;
            let mut figures = Vec::new();
            for streams in STREAMS {
                let (gbits, micros) = transfer(&host, streams, seconds)?;
                figures.extend([gbits, micros]);
            }
            figures.push(round_trip(&host, seconds)?);
            figures.push(memory_mib(&host)?);
            Ok(figures)
        });
    }
}

fn cases() -> Vec<Case> {
    let case = |name: String, unit, better| Case { section: "isolate", name, unit, better };
    let mut cases = Vec::new();
    for streams in STREAMS {
        cases.push(case(format!("TCP, {streams} stream(s)"), "Gbit/s", Better::More));
        let name = format!("backend CPU for 64 KiB, {streams} stream(s)");
        cases.push(case(name, "us", Better::Less));
    }
    cases.push(case("UDP round trip, median".to_owned(), "us", Better::Less));
    cases.push(case("memory of a serving process".to_owned(), "MiB", Better::Less));
    cases
}

/// Two guests, of two tenants.
fn description(is_isolated: bool) -> String {
    let mut text = format!("[host]\nnetwork = \"private\"\nisolate = {is_isolated}\n");
    for (guest, number) in [("a", 1), ("b", 2)] {
        text += &format!("[[guest]]\nname = \"{guest}\"\n[[guest.vif]]\n");
        text += &format!("tenant = \"tenant-{guest}\"\naddresses = [\"10.77.0.{number}/24\"]\n");
    }
    text
}

/// Moves data from the first guest to the second: gigabits a second, and microseconds of CPU for
/// each 64 KiB, of all processes between the guests' own.
fn transfer(host: &RunningHost, streams: u32, seconds: u64) -> Result<(f64, f64)> {
    let launcher = launcher()?;
    let start = |guest: usize, words: &[&str]| {
        let mut command = launcher.command_in(host.guests()[guest], "iperf3");
        command.args(words);
        launcher.start("iperf3", command)
    };
    let mut server = start(1, &["--server", "--one-off", "--forceflush"])?;
    server.wait_for(PATIENCE, |line| line.starts_with("Server listening").then_some(()))?;
    let (streams, omit) = (streams.to_string(), OMITTED_SECONDS.to_string());
    let time = seconds.to_string();
    let words = ["--json", "--client", SERVER, "--parallel", &streams];
    let before = cpu_time(&host.backend()?)?;
    let client = start(0, &[&words[..], &["--time", &time, "--omit", &omit]].concat())?;
    let output = client.output(PATIENCE + Duration::from_secs(seconds + OMITTED_SECONDS))?;
    let used = cpu_time(&host.backend()?)?.saturating_sub(before);
    let output: Value = serde_json::from_str(&output).context("iperf3's JSON")?;
    let number = |path: &str| output.pointer(path).and_then(Value::as_f64);
    let rate = number("/end/sum_received/bits_per_second").context("iperf3 has no rate")?;
    // The omitted second takes time of the CPU, too: as much as any other.
    let counted = Duration::from_secs(seconds).as_secs_f64();
    let all = Duration::from_secs(seconds + OMITTED_SECONDS).as_secs_f64();
    let units = rate / 8.0 * counted / UNIT_BYTES;
    Ok((rate / 1e9, used.as_secs_f64() * 1e6 * counted / all / units))
}

/// Time of the CPU that the serving processes have used.
fn cpu_time(status: &BackendStatus) -> Result<Duration> {
    let pids = status.tenants.iter().filter_map(|tenant| tenant.pid).chain([status.pid]);
    let mut sum = Duration::ZERO;
    for pid in pids {
        let time = ringway_sys::process::cpu_time(pid)?;
        sum += time.user + time.system;
    }
    Ok(sum)
}

fn round_trip(host: &RunningHost, seconds: u64) -> Result<f64> {
    let launcher = launcher()?;
    let start = |guest: usize, words: &[&str]| {
        let mut command = launcher.command_in(host.guests()[guest], "sockperf");
        command.args(words);
        launcher.start("sockperf", command)
    };
    let times = latency::ping_pong(&start, SERVER, seconds)?;
    times.into_iter().next().context("sockperf has no median")
}

/// Memory of the process that serves the first guest.
fn memory_mib(host: &RunningHost) -> Result<f64> {
    let status = host.backend()?;
    let pid = status.tenants.first().and_then(|tenant| tenant.pid).unwrap_or(status.pid);
    Ok(own_memory_kib(pid)? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_descriptions_differ_in_one_word() {
        let (one, two) = (description(false), description(true));
        assert_eq!(one.replace("isolate = false", "isolate = true"), two);
    }
}
