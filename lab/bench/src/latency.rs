//! The time from a request to its reply between two namespaces, by sockperf over UDP.

use std::time::Duration;

use anyhow::{Context, Result};
use ringway_rig::child::Child;
use ringway_stats::average::median;

use crate::child::is_installed;
use crate::options::Options;
use crate::path;
use crate::report::{Better, Case, Report};

const PATIENCE: Duration = Duration::from_secs(20);
const PORT: &str = "11111";
/// Ports of the client. Each is a flow, and flows fall on different queues: a round trip depends on
/// the threads of its queue.
const CLIENT_PORTS: [u16; 8] = [20_001, 20_002, 20_003, 20_004, 20_005, 20_006, 20_007, 20_008];
/// Bytes of a message; sockperf needs at least 14.
const MESSAGE_LEN: &str = "64";
/// How long each flow is measured.
const SECONDS: &str = "1";

/// One round on each path: full round trips, one message at a time.
pub(crate) fn round(options: &Options, report: &mut Report) {
    if !is_installed("sockperf") {
        report.skip("latency", "all", "apt-get install sockperf");
        return;
    }
    let cases = cases();
    if !cases.iter().any(|case| options.wants(&case.name)) {
        return;
    }
    for path in path::all("latency", options, report) {
        report.measure_all(&cases, &path.name, || {
            let path = path.open()?;
            let start = |end, words: &[&str]| path.start(end, "sockperf", words);
            let flows = ping_pong(&start, &path.end(1).address.to_string())?;
            let [medians, p99s] = [flows.map(|flow| flow.median), flows.map(|flow| flow.p99)];
            let ports = [medians, p99s].concat();
            let of_ports = [median(&medians), median(&p99s), slowest(medians), slowest(p99s)];
            Ok([&of_ports[..], &ports].concat())
        });
    }
}

/// The median port, the slowest port, and each port.
fn cases() -> Vec<Case> {
    let case =
        |which: &str| Case::new("latency", format!("UDP round trip, {which}"), "us", Better::Less);
    let of_ports =
        ["median", "99th percentile", "slowest port's median", "slowest port's 99th percentile"];
    let by_port = ["median by client port", "99th percentile by client port"];
    let by_port =
        by_port.map(|which| CLIENT_PORTS.map(|port| case(which).in_column(port.to_string())));
    [&of_ports.map(case)[..], &by_port.concat()].concat()
}

/// Round trips of a flow, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flow {
    pub(crate) median: f64,
    /// The 99th percentile.
    pub(crate) p99: f64,
}

fn slowest(times: [f64; CLIENT_PORTS.len()]) -> f64 {
    times.into_iter().fold(0.0, f64::max)
}

/// Measures round trips between two ends for a second per client port, in their order. The second
/// end, with `address`, is the server. `start` starts sockperf at an end.
pub(crate) fn ping_pong<E: Into<anyhow::Error>>(
    start: &impl Fn(usize, &[&str]) -> Result<Child, E>,
    address: &str,
) -> Result<[Flow; CLIENT_PORTS.len()]> {
    let start = |end, words: &[&str]| start(end, words).map_err(Into::into);
    let mut server = start(1, &["server", "-i", address, "-p", PORT])?;
    server.wait_for(PATIENCE, |line| line.contains("to block on socket").then_some(()))?;
    let mut flows = [Flow::default(); CLIENT_PORTS.len()];
    for (port, flow) in CLIENT_PORTS.into_iter().zip(&mut flows) {
        let port = port.to_string();
        let words = ["ping-pong", "-i", address, "-p", PORT, "--client_port", &port];
        let more = ["-m", MESSAGE_LEN, "--full-rtt", "-t", SECONDS];
        let output = start(0, &[&words[..], &more].concat())?.output(PATIENCE)?;
        let percentile = |which| percentile_of(&output, which);
        *flow = Flow { median: percentile("50.000")?, p99: percentile("99.000")? };
    }
    Ok(flows)
}

fn percentile_of(output: &str, percentile: &str) -> Result<f64> {
    let key = format!("percentile {percentile} =");
    let value = output.lines().find_map(|line| line.split_once(&key));
    let (_, value) = value.with_context(|| format!("sockperf printed no {key}"))?;
    Ok(value.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_of_the_median_and_the_slowest_port() {
        let times = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0];
        assert_eq!((median(&times), slowest(times)), (5.0, 9.0));
    }

    #[test]
    fn every_port_has_a_median_and_a_percentile_beside_the_summary() {
        assert_eq!(cases().len(), 4 + 2 * CLIENT_PORTS.len());
    }

    #[test]
    fn a_percentile_is_found_in_what_sockperf_prints() {
        let output = "sockperf: ---> percentile 99.000 =   57.250\n\
                      sockperf: ---> percentile 50.000 =   22.125\n";
        assert_eq!(percentile_of(output, "50.000").expect("it is there"), 22.125);
        assert!(percentile_of(output, "99.900").is_err());
    }
}
