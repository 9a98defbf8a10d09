//! iperf3: a client and a server for each stream, since a server serves one client at a time and
//! only a client of its own can be given any source port.
//!
//! The sender is always the client. What it has handed to its kernel is what counts, a tenth of a
//! second at a time: that differs from what arrived by no more than changes in the sockets' buffers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::{Load, Measured, Working, shown};
use crate::child::{Child, Ended};
use crate::part::{Launcher, PartError};
use crate::record::ToolRun;

/// From the start of a server until it listens; after the end of a run until all is told.
const PATIENCE: Duration = Duration::from_secs(20);
/// Seconds between two readings: the smallest that it offers.
const INTERVAL: f64 = 0.1;
/// Seconds that a client goes on after those that count, so that it is watched to their end.
const TAIL: f64 = 0.2;

/// What it writes with `--json`, as far as it matters.
#[derive(Debug, Deserialize)]
struct Report {
    #[serde(default)]
    intervals: Vec<Interval>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Interval {
    sum: Sum,
}

#[derive(Debug, Deserialize)]
struct Sum {
    start: f64,
    end: f64,
    bytes: f64,
    #[serde(default)]
    retransmits: f64,
}

pub(super) type Started = (Vec<(Child, String)>, Vec<Child>);

pub(super) fn start(launcher: &Launcher, load: &Load) -> Result<Started, PartError> {
    let servers: Result<Vec<Child>, PartError> = load
        .flows
        .iter()
        .map(|flow| {
            let mut server = launcher.command_in(flow.receiver, "iperf3");
            server.args(["--server", "--one-off", "--forceflush"]);
            server.args(["--port", &flow.port.to_string()]);
            launcher.start("iperf3 server", server)
        })
        .collect();
    let mut servers = servers?;
    for server in &mut servers {
        server.wait_for(PATIENCE, |line| line.starts_with("Server listening").then_some(()))?;
    }
    let clients: Result<Vec<(Child, String)>, PartError> = load
        .flows
        .iter()
        .map(|flow| {
            let words = client_words(load, flow);
            let mut client = launcher.command_in(flow.sender, "iperf3");
            client.args(&words);
            Ok((launcher.start("iperf3", client)?, shown("iperf3", &words)))
        })
        .collect();
    Ok((clients?, servers))
}

fn client_words(load: &Load, flow: &super::Flow) -> Vec<String> {
    let mut words = vec!["--json".to_owned()];
    let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
    add("--client", flow.address.to_string());
    add("--port", flow.port.to_string());
    add("--cport", flow.source_port.to_string());
    add("--time", format!("{:.0}", (load.warmup_seconds + load.seconds + TAIL).ceil()));
    add("--interval", INTERVAL.to_string());
    if let Some(window) = load.window {
        add("--window", window.to_string());
    }
    if let Some(buffer) = load.buffer {
        add("--length", buffer.to_string());
    }
    words
}

pub(super) fn finish(working: Working) -> Result<Measured, PartError> {
    let Working { senders, load, version, receivers, .. } = working;
    let patience = PATIENCE + Duration::from_secs_f64(load.warmup_seconds + load.seconds + TAIL);
    let mut measured = Measured { bps: vec![], values: BTreeMap::new(), tools: vec![] };
    let mut retransmits = 0.0;
    for (client, command) in senders {
        let Ended { status, output } = client.ended(patience)?;
        let (bps, again) = parse(&output, load.warmup_seconds, load.seconds)
            .map_err(|fault| PartError::Failed(format!("iperf3 ({status}): {fault}")))?;
        measured.bps.push(bps);
        retransmits += again;
        measured.tools.push(ToolRun {
            name: "iperf3".to_owned(),
            version: version.clone(),
            command,
            exit_status: status.code().unwrap_or(-1),
        });
    }
    drop(receivers);
    measured.values.insert("retransmits".to_owned(), retransmits);
    Ok(measured)
}

/// Bit/s during the seconds that count, and segments that were sent again in them.
fn parse(text: &str, warmup_seconds: f64, seconds: f64) -> Result<(f64, f64), String> {
    let report: Report = serde_json::from_str(text)
        .map_err(|error| format!("{error} in its JSON: {}", text.trim()))?;
    if let Some(error) = report.error {
        return Err(error);
    }
    let counts = |sum: &Sum| {
        let middle = (sum.start + sum.end) / 2.0;
        middle >= warmup_seconds && middle < warmup_seconds + seconds
    };
    let (mut bytes, mut span, mut retransmits) = (0.0, 0.0, 0.0);
    for Interval { sum } in report.intervals.into_iter().filter(|interval| counts(&interval.sum)) {
        bytes += sum.bytes;
        span += sum.end - sum.start;
        retransmits += sum.retransmits;
    }
    // A reading more or less at each end is its timer's inexactness.
    if span < seconds - 2.0 * INTERVAL {
        return Err(format!("it told of {span:.2} s instead of {seconds:.2} s"));
    }
    Ok((bytes * 8.0 / span, retransmits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(readings: &[(f64, f64, f64)]) -> String {
        let readings: Vec<String> = readings
            .iter()
            .map(|(start, end, bytes)| {
                format!(
                    "{{\"streams\":[],\"sum\":{{\"start\":{start},\"end\":{end},\
                     \"bytes\":{bytes},\"retransmits\":1}}}}"
                )
            })
            .collect();
        format!("{{\"start\":{{}},\"intervals\":[{}],\"end\":{{}}}}", readings.join(","))
    }

    #[test]
    fn only_what_is_in_the_window_counts() {
        let text = report(&[
            (0.0, 0.1001, 1e9),
            (0.1001, 0.2, 125.0),
            (0.2, 0.3002, 125.0),
            (0.3002, 0.4, 1e9),
        ]);
        let (bps, retransmits) = parse(&text, 0.1, 0.2).expect("good");
        assert!((bps - 2000.0 / 0.2001).abs() < 1e-6, "{bps}");
        assert_eq!(retransmits, 2.0);
    }

    #[test]
    fn a_run_that_was_cut_or_failed_is_no_measurement() {
        let text = report(&[(0.0, 0.1, 1.0), (0.1, 0.2, 1.0)]);
        assert!(parse(&text, 0.0, 1.0).expect_err("cut").contains("instead of 1.00 s"));
        let refused = "{\"start\":{},\"intervals\":[],\"end\":{},\"error\":\"no route\"}";
        assert_eq!(parse(refused, 0.0, 1.0), Err("no route".to_owned()));
        assert!(parse("iperf3: what?", 0.0, 1.0).is_err());
    }
}
