//! The time from a request to its reply between two namespaces, by sockperf over UDP.

use std::time::Duration;

use anyhow::{Context, Result};
use ringway_rig::child::Child;

use crate::child::is_installed;
use crate::options::Options;
use crate::path;
use crate::report::{Better, Case, Report};

const PATIENCE: Duration = Duration::from_secs(20);
const PORT: &str = "11111";
/// Ports of the client. Each is a flow, and flows fall on different queues: a round trip depends on
/// the threads of its queue.
const CLIENT_PORTS: std::ops::RangeInclusive<u16> = 20_001..=20_008;
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
    let cases = ["median", "99th percentile", "slowest flow's median"].map(|which| {
        let name = format!("UDP round trip, {which}");
        Case { section: "latency", name, unit: "us", better: Better::Less }
    });
    if !cases.iter().any(|case| options.wants(&case.name)) {
        return;
    }
    for path in path::all("latency", options, report) {
        report.measure_all(&cases, path.name(), || {
            let path = path.open()?;
            let start = |end, words: &[&str]| path.start(end, "sockperf", words);
            let times = ping_pong(&start, &path.end(1).address.to_string())?;
            Ok(vec![times.median, times.p99, times.slowest_flow])
        });
    }
}

/// Round trips of several flows, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrips {
    /// The median flow's median.
    pub(crate) median: f64,
    /// The median flow's 99th percentile.
    pub(crate) p99: f64,
    /// The slowest flow's median.
    pub(crate) slowest_flow: f64,
}

/// Measures round trips between two ends for a second per flow. The second end, with `address`, is
/// the server. `start` starts sockperf at an end.
pub(crate) fn ping_pong<E: Into<anyhow::Error>>(
    start: &impl Fn(usize, &[&str]) -> Result<Child, E>,
    address: &str,
) -> Result<RoundTrips> {
    let start = |end, words: &[&str]| start(end, words).map_err(Into::into);
    let mut server = start(1, &["server", "-i", address, "-p", PORT])?;
    server.wait_for(PATIENCE, |line| line.contains("to block on socket").then_some(()))?;
    let (mut medians, mut p99s) = (Vec::new(), Vec::new());
    for port in CLIENT_PORTS {
        let port = port.to_string();
        let words = ["ping-pong", "-i", address, "-p", PORT, "--client_port", &port];
        let more = ["-m", MESSAGE_LEN, "--full-rtt", "-t", SECONDS];
        let output = start(0, &[&words[..], &more].concat())?.output(PATIENCE)?;
        medians.push(percentile_of(&output, "50.000")?);
        p99s.push(percentile_of(&output, "99.000")?);
    }
    medians.sort_by(f64::total_cmp);
    p99s.sort_by(f64::total_cmp);
    let slowest_flow = medians[medians.len() - 1];
    let [median, p99] = [medians, p99s].map(|times| times[times.len() / 2]);
    Ok(RoundTrips { median, p99, slowest_flow })
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
    fn a_percentile_is_found_in_what_sockperf_prints() {
        let output = "sockperf: ---> percentile 99.000 =   57.250\n\
                      sockperf: ---> percentile 50.000 =   22.125\n";
        assert_eq!(percentile_of(output, "50.000").expect("it is there"), 22.125);
        assert!(percentile_of(output, "99.900").is_err());
    }
}
