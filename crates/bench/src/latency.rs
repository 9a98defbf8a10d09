//! The time from a request to its answer between two namespaces, by sockperf over UDP.

use std::time::Duration;

use anyhow::{Context, Result};
use ringway_lab::child::Child;

use crate::child::is_installed;
use crate::options::Options;
use crate::path;
use crate::report::{Better, Case, Report};

const PATIENCE: Duration = Duration::from_secs(20);
const PORT: &str = "11111";
/// Bytes of a message; sockperf needs at least 14.
const MESSAGE_LEN: &str = "64";

/// One round on each path. The whole round trip counts, and each reply is waited for.
pub(crate) fn round(options: &Options, report: &mut Report) {
    if !is_installed("sockperf") {
        report.skip("latency", "all", "apt-get install sockperf");
        return;
    }
    let cases = ["median", "99th percentile"].map(|which| {
        let name = format!("UDP round trip, {which}");
        Case { section: "latency", name, unit: "us", better: Better::Less }
    });
    if !cases.iter().any(|case| options.wants(&case.name)) {
        return;
    }
    let seconds = options.spans.window.as_secs().max(1);
    for path in path::all("latency", options, report) {
        report.measure_all(&cases, path.name(), || {
            let path = path.open()?;
            let start = |end, words: &[&str]| path.start(end, "sockperf", words);
            ping_pong(&start, &path.end(1).address.to_string(), seconds)
        });
    }
}

/// Times between two ends, of which the second, with the address, serves: the median and the 99th
/// percentile, in microseconds. `start` starts sockperf at an end.
pub(crate) fn ping_pong<E: Into<anyhow::Error>>(
    start: &impl Fn(usize, &[&str]) -> Result<Child, E>,
    address: &str,
    seconds: u64,
) -> Result<Vec<f64>> {
    let time = seconds.to_string();
    let start = |end, words: &[&str]| start(end, words).map_err(Into::into);
    let mut server = start(1, &["server", "-i", address, "-p", PORT])?;
    server.wait_for(PATIENCE, |line| line.contains("to block on socket").then_some(()))?;
    let words = ["ping-pong", "-i", address, "-p", PORT, "-m", MESSAGE_LEN, "--full-rtt"];
    let client = start(0, &[&words[..], &["-t", &time]].concat())?;
    let output = client.output(PATIENCE + Duration::from_secs(seconds))?;
    ["50.000", "99.000"].iter().map(|percentile| percentile_of(&output, percentile)).collect()
}

fn percentile_of(output: &str, percentile: &str) -> Result<f64> {
    let key = format!("percentile {percentile} =");
    let value = output.lines().find_map(|line| line.split_once(&key));
    let (_, value) = value.with_context(|| format!("sockperf told no {key}"))?;
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
