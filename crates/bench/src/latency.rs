//! The time from a request to its answer between two namespaces, by sockperf over UDP.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::child::is_installed;
use crate::options::Options;
use crate::path::{self, OpenPath};
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
        report.measure_all(&cases, path.name(), || ping_pong(&path.open()?, seconds));
    }
}

fn ping_pong(path: &OpenPath, seconds: u64) -> Result<Vec<f64>> {
    let (address, time) = (path.end(1).address.to_string(), seconds.to_string());
    let mut server = path.start(1, "sockperf", &["server", "-i", &address, "-p", PORT])?;
    server.wait_for(PATIENCE, |line| line.contains("to block on socket").then_some(()))?;
    let words = ["ping-pong", "-i", &address, "-p", PORT, "-m", MESSAGE_LEN, "--full-rtt"];
    let client = path.start(0, "sockperf", &[&words[..], &["-t", &time]].concat())?;
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
