//! iperf 2, with which the oldest figures were measured. The result is what its client sent, in
//! intervals of a tenth of a second.

use super::adapter::{Adapter, Program, Reading, option, whole_seconds, words};
use super::course::INTERVAL;
use super::readings::{Span, counted};
use super::{Flow, Load};

pub(super) const ADAPTER: Adapter = Adapter {
    program: Program { name: "iperf2", ..Program::named("iperf") },
    server,
    client,
    parse,
    log: None,
};

fn server(load: &Load, flow: &Flow) -> Vec<String> {
    let mut line = words(&[&"--server", &"--port", &flow.port]);
    line.extend(sizes(load));
    line
}

fn client(load: &Load, flow: &Flow) -> Vec<String> {
    let mut line = words(&[&"--client", &flow.address, &"--port", &flow.port]);
    // Without a local address it parses the port as part of a name.
    let port = format!("0.0.0.0:{}", flow.source_port);
    line.extend(words(&[&"--bind", &port, &"--time", &whole_seconds(load)]));
    line.extend(words(&[&"--interval", &INTERVAL, &"--format", &"b"]));
    line.extend(sizes(load));
    line
}

fn sizes(load: &Load) -> Vec<String> {
    [option("--window", load.window), option("--len", load.buffer)].concat()
}

fn parse(text: &str, load: &Load) -> Result<Reading, String> {
    // The last one is the total.
    let mut spans: Vec<Span> = text.lines().filter_map(span).collect();
    spans.pop();
    if spans.is_empty() {
        return Err(format!("it printed no usable interval: {}", text.trim()));
    }
    counted(spans, load)
}

/// A line such as `[  1] 0.1000-0.2000 sec  195559424 Bytes  15644597474 bits/sec`.
fn span(line: &str) -> Option<Span> {
    let (_, rest) = line.strip_prefix('[')?.split_once(']')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let [times, "sec", bytes, "Bytes", ..] = words[..] else { return None };
    let (start, end) = times.split_once('-')?;
    Some(Span {
        start: start.parse().ok()?,
        end: end.parse().ok()?,
        bytes: bytes.parse().ok()?,
        retransmits: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_recorded_run_is_read() {
        let reading = parse(include_str!("recorded/iperf2.txt"), &example()).expect("good");
        let bps = (195_559_424.0 + 217_055_232.0) * 8.0 / 0.2;
        assert!((reading.bps.expect("it tells") / bps - 1.0).abs() < 1e-9, "{reading:?}");
    }

    #[test]
    fn a_run_that_failed_is_no_measurement() {
        let refused = "tcp connect failed: Connection refused\n\
            [  1] local 0.0.0.0 port 0 connected with 198.19.0.1 port 5201\n";
        assert!(parse(refused, &example()).expect_err("refused").contains("Connection refused"));
    }
}
