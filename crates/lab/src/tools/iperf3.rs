//! iperf3. What the sender has handed to its kernel is what counts, a tenth of a second at a time:
//! that differs from what arrived by no more than changes in the sockets' buffers.

use serde::Deserialize;

use super::readings::{Span, counted};
use super::{Adapter, Flow, Listens, Load, Reading, Side, whole_seconds, words};

pub(super) const ADAPTER: Adapter = Adapter {
    name: "iperf3",
    program: "iperf3",
    server_program: "iperf3",
    package: "iperf3",
    version_words: &["--version"],
    listens: Listens::OnTcp,
    told_by: Side::Client,
    server,
    client,
    parse,
};

/// Seconds between two readings: the smallest that it offers.
const INTERVAL: f64 = 0.1;

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

fn server(_: &Load, flow: &Flow) -> Vec<String> {
    words(&[&"--server", &"--one-off", &"--port", &flow.port])
}

fn client(load: &Load, flow: &Flow) -> Vec<String> {
    let mut line = words(&[&"--json", &"--client", &flow.address, &"--port", &flow.port]);
    line.extend(words(&[&"--cport", &flow.source_port, &"--time", &whole_seconds(load)]));
    line.extend(words(&[&"--interval", &INTERVAL]));
    line.extend(load.window.iter().flat_map(|window| words(&[&"--window", window])));
    line.extend(load.buffer.iter().flat_map(|buffer| words(&[&"--length", buffer])));
    line
}

fn parse(text: &str, load: &Load) -> Result<Reading, String> {
    let report: Report = serde_json::from_str(text)
        .map_err(|error| format!("{error} in its JSON: {}", text.trim()))?;
    if let Some(error) = report.error {
        return Err(error);
    }
    let span = |Interval { sum: Sum { start, end, bytes, retransmits } }| Span {
        start,
        end,
        bytes,
        retransmits,
    };
    let spans = report.intervals.into_iter().map(span);
    let (bps, retransmits) = counted(spans, load.warmup_seconds, load.seconds)?;
    Ok(Reading { bps: Some(bps), values: vec![("retransmits", retransmits)] })
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_recorded_run_is_read() {
        let (load, _) = example();
        let load = Load { seconds: 0.2, warmup_seconds: 0.1, ..load };
        let text = include_str!("recorded/iperf3.json");
        let reading = parse(text, &load).expect("good");
        // The second and the third of its readings.
        let bps = (RECORDED_BYTES[0] + RECORDED_BYTES[1]) * 8.0 / 0.2;
        let read = reading.bps.expect("it tells");
        assert!((read / bps - 1.0).abs() < 0.01, "{read} instead of about {bps}");
        assert_eq!(reading.values, [("retransmits", 0.0)]);
    }

    #[test]
    fn a_run_that_failed_is_no_measurement() {
        let (load, _) = example();
        let refused = "{\"start\":{},\"intervals\":[],\"end\":{},\"error\":\"no route\"}";
        assert_eq!(parse(refused, &load), Err("no route".to_owned()));
        assert!(parse("iperf3: what?", &load).is_err());
    }

    const RECORDED_BYTES: [f64; 2] = [241_172_480.0, 178_257_920.0];
}
