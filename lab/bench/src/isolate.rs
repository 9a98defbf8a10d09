//! The cost of one process per tenant: two guests, served by one process or as two tenants.

use anyhow::Result;
use ringway_control::BackendStatus;
use ringway_rig::host::RunningHost;
use ringway_stats::average::median;

use crate::child::{is_installed, launcher};
use crate::idle::own_memory_kib;
use crate::latency;
use crate::options::Options;
use crate::path::Ringway;
use crate::report::{Better, Case, Report};
use crate::transfer::{Load, Transfer, transfer};

/// Concurrent connections.
const STREAMS: [u32; 2] = [1, 4];
/// The second guest, which serves.
const SERVER: &str = "10.77.0.2";

/// One round: both configurations, one after the other.
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
                let congestion = options.congestion;
                let sent = send(&host, Load { streams, seconds, congestion })?;
                figures.extend([sent.gbits, sent.cpu_micros]);
            }
            figures.push(round_trip(&host)?);
            figures.push(memory_mib(&host)?);
            Ok(figures)
        });
    }
}

fn cases() -> Vec<Case> {
    let case = |name: String, unit, better| Case::new("isolate", name, unit, better);
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

/// Sends data from the first guest to the second. Only the CPU time of the processes between the
/// guests counts.
fn send(host: &RunningHost, load: Load) -> Result<Transfer> {
    let launcher = launcher()?;
    let start = |guest: usize, words: &[&str]| {
        let mut command = launcher.command_in(host.guests()[guest], "iperf3");
        command.args(words);
        launcher.start("iperf3", command)
    };
    transfer(&start, SERVER, load, &serving(&host.backend()?))
}

/// The processes of the backend.
fn serving(status: &BackendStatus) -> Vec<u32> {
    status.tenants.iter().filter_map(|tenant| tenant.pid).chain([status.pid]).collect()
}

fn round_trip(host: &RunningHost) -> Result<f64> {
    let launcher = launcher()?;
    let start = |guest: usize, words: &[&str]| {
        let mut command = launcher.command_in(host.guests()[guest], "sockperf");
        command.args(words);
        launcher.start("sockperf", command)
    };
    Ok(median(&latency::ping_pong(&start, SERVER)?.map(|flow| flow.median)))
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
