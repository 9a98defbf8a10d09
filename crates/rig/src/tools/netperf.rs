//! netperf, by the interim results of its `TCP_STREAM`, because it cannot exclude a warm-up.

use super::adapter::{Adapter, Program, Reading, option, whole_seconds, words};
use super::course::INTERVAL;
use super::readings::{Span, counted};
use super::{Flow, Load};

pub(super) const ADAPTER: Adapter = Adapter {
    program: Program {
        server: "netserver",
        package: "netperf (in Debian's section non-free)",
        version_words: &["-V"],
        stream_port_offset: DATA_PORT_OFFSET,
        ..Program::named("netperf")
    },
    server,
    client,
    parse,
    log: None,
};

/// Offset of the data connection's port from that of the control connection.
const DATA_PORT_OFFSET: u16 = 10_000;

fn server(_: &Load, flow: &Flow) -> Vec<String> {
    // In the foreground, and without a serving child, whose CPU time we would not count.
    words(&[&"-D", &"-f", &"-4", &"-p", &flow.port])
}

fn client(load: &Load, flow: &Flow) -> Vec<String> {
    let mut line = words(&[&"-H", &flow.address, &"-4", &"-p", &flow.port, &"-t", &"TCP_STREAM"]);
    line.extend(words(&[&"-l", &whole_seconds(load), &"-D", &INTERVAL, &"-P", &"0", &"-f", &"k"]));
    // These options belong to the test, not to netperf itself.
    let ports = format!("{},{}", flow.source_port, flow.port.wrapping_add(DATA_PORT_OFFSET));
    line.extend(words(&[&"--", &"-P", &ports]));
    line.extend(option("-s", load.window));
    line.extend(option("-S", load.window));
    line.extend(option("-m", load.buffer));
    line
}

/// Interim results are late when the stream stalls, and their interval shows it.
fn parse(text: &str, load: &Load) -> Result<Reading, String> {
    let interims: Vec<Interim> = text.lines().filter_map(interim).collect();
    let Some(first) = interims.first() else {
        return Err(format!("it printed no interim results: {}", text.trim()));
    };
    let began = first.end - first.seconds;
    let span = |interim: &Interim| Span {
        start: interim.end - interim.seconds - began,
        end: interim.end - began,
        bytes: interim.bps * interim.seconds / 8.0,
        retransmits: None,
    };
    let spans = interims.iter().map(span);
    counted(spans, load)
}

struct Interim {
    bps: f64,
    seconds: f64,
    end: f64,
}

/// A line such as
/// `Interim result: 21055789.83 10^3bits/s over 0.101 seconds ending at 1795260230.965`.
fn interim(line: &str) -> Option<Interim> {
    let words: Vec<&str> = line.strip_prefix("Interim result:")?.split_whitespace().collect();
    let [rate, "10^3bits/s", "over", seconds, "seconds", "ending", "at", end] = words[..] else {
        return None;
    };
    let rate: f64 = rate.parse().ok()?;
    Some(Interim { bps: rate * 1e3, seconds: seconds.parse().ok()?, end: end.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_recorded_run_is_read() {
        let reading = parse(include_str!("recorded/netperf.txt"), &example()).expect("good");
        let bits = 20_131_760.89e3 * 0.105 + 11_699_510.94e3 * 0.172;
        let read = reading.bps.expect("it tells");
        assert!((read / (bits / 0.277) - 1.0).abs() < 1e-6, "{read}");
    }

    #[test]
    fn a_run_that_failed_is_no_measurement() {
        let refused = "establish control: are you sure there is a netserver listening on \
            198.19.0.1 at port 5201?";
        assert!(parse(refused, &example()).expect_err("refused").contains("are you sure"));
    }
}
