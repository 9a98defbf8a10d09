//! TCP between two namespaces, by iperf3.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::child::is_installed;
use crate::options::Options;
use crate::path::{self, OpenPath};
use crate::report::{Better, Case, Report};

/// Connections at once.
const STREAMS: [u32; 4] = [1, 2, 4, 8];
const PATIENCE: Duration = Duration::from_secs(20);
/// The first second of a connection is slow start and is left out.
const OMITTED_SECONDS: u64 = 1;

/// One round: each number of streams on each path. A path is built once for all of them.
pub(crate) fn round(options: &Options, report: &mut Report) {
    if !is_installed("iperf3") {
        report.skip("tcp", "all", "apt-get install iperf3");
        return;
    }
    let seconds = options.spans.window.as_secs().max(1);
    for path in path::all("tcp", options, report) {
        let mut open = None;
        for streams in STREAMS {
            let name = format!("TCP, {streams} stream(s)");
            let case = Case { section: "tcp", name, unit: "Gbit/s", better: Better::More };
            if !options.wants(&case.name) {
                continue;
            }
            report.measure(&case, path.name(), || {
                let open = match &open {
                    Some(open) => open,
                    None => open.insert(path.open()?),
                };
                gbits(open, streams, seconds)
            });
        }
    }
}

fn gbits(path: &OpenPath, streams: u32, seconds: u64) -> Result<f64> {
    let mut server = path.start(1, "iperf3", &["--server", "--one-off", "--forceflush"])?;
    server.wait_for(PATIENCE, |line| line.starts_with("Server listening").then_some(()))?;
    let (address, streams) = (path.end(1).address.to_string(), streams.to_string());
    let (time, omit) = (seconds.to_string(), OMITTED_SECONDS.to_string());
    let words = ["--json", "--client", &address, "--parallel", &streams];
    let words = [&words[..], &["--time", &time, "--omit", &omit]].concat();
    let client = path.start(0, "iperf3", &words)?;
    let patience = PATIENCE + Duration::from_secs(seconds + OMITTED_SECONDS);
    let output = client.output(patience)?;
    let output: Value = serde_json::from_str(&output).context("iperf3's JSON")?;
    let rate = output.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    Ok(rate.context("iperf3 did not tell what was received")? / 1e9)
}
