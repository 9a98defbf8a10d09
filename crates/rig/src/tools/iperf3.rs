//! iperf3. The result is what the sender has passed to its kernel, in intervals of a tenth of a
//! second: that differs from what arrived only by changes in the sockets' buffers.

use serde::Deserialize;

use super::adapter::{Adapter, Program, Reading, option, whole_seconds, words};
use super::course::INTERVAL;
use super::readings::{Span, counted};
use super::{Flow, Load};

pub(super) const ADAPTER: Adapter =
    Adapter { program: Program::named("iperf3"), server, client, parse, log: None };

/// The relevant part of its `--json` output.
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
    line.extend(option("--window", load.window));
    line.extend(option("--length", load.buffer));
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
        retransmits: Some(retransmits),
    };
    let spans = report.intervals.into_iter().map(span);
    counted(spans, load)
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_recorded_run_is_read() {
        let text = include_str!("recorded/iperf3.json");
        let reading = parse(text, &example()).expect("good");
        // The second and the third of its readings.
        let bps = (RECORDED_BYTES[0] + RECORDED_BYTES[1]) * 8.0 / 0.2;
        let read = reading.bps.expect("it tells");
        assert!((read / bps - 1.0).abs() < 0.01, "{read} instead of about {bps}");
        assert_eq!(reading.values, [("retransmits", 0.0)]);
    }

    #[test]
    fn a_run_that_failed_is_no_measurement() {
        let refused = "{\"start\":{},\"intervals\":[],\"end\":{},\"error\":\"no route\"}";
        assert_eq!(parse(refused, &example()), Err("no route".to_owned()));
        assert!(parse("iperf3: what?", &example()).is_err());
    }

    const RECORDED_BYTES: [f64; 2] = [241_172_480.0, 178_257_920.0];
}
