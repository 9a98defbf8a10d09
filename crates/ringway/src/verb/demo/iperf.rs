//! iperf3: its command line, chosen so that the streams use all queues, and its result.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use ringway_datapath::headers::Transport;
use ringway_steering::placement::{split_of, spread};
use ringway_steering::{FlowKey, FlowTuple, QueueIndex, queue_of};

/// Guest a.
pub(super) const CLIENT: &str = "10.77.0.1";
/// Guest b.
pub(super) const SERVER: &str = "10.77.0.2";

/// The key by which the host and its guests choose a queue of a flow: one that is known, because
/// ports are chosen by it.
pub(super) const FLOW_KEY: FlowKey = FlowKey::new([0x6d5a_56da_255b_0ec2, 0x4167_253d_43a3_8fb0]);

/// The first source port to try in each direction: separate ranges, because a port stays in
/// TIME_WAIT after use.
const FIRST_PORTS: [u16; 2] = [20_000, 42_000];
const PORTS_TRIED: u16 = 20_000;
/// The server's port in each direction, beside that of the file.
const SERVER_PORTS: [u16; 2] = [5201, 5203];

/// Which guest sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Guest a.
    Forward,
    /// Guest b.
    Reverse,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Forward => "a to b",
            Way::Reverse => "b to a",
        })
    }
}

/// Fails with one sentence if iperf3 is missing.
pub(super) fn require() -> Result<()> {
    let mut iperf3 = Command::new("iperf3");
    let output = iperf3.arg("--version").stdin(Stdio::null()).output();
    output.context("iperf3 is not installed (apt-get install iperf3)").map(|_| ())
}

/// The first source port of the streams, and the queues that they use. iperf3 gives its streams
/// consecutive ports, so this searches for a run of ports that spreads the streams evenly, and
/// otherwise takes the most even run.
pub(super) fn first_port(streams: u16, queues: u16, way: Way) -> (u16, Vec<QueueIndex>) {
    let wanted = split_of(&spread(streams.into(), queues));
    let queue = |port: u16| queue_of(Some(flow(port, way).hash(FLOW_KEY)), queues);
    let first = FIRST_PORTS[usize::from(way == Way::Reverse)];
    let candidates = (first..first + PORTS_TRIED).map(|port| {
        (port, (port..port.saturating_add(streams)).map(queue).collect::<Vec<QueueIndex>>())
    });
    let mut best: Option<(u16, Vec<QueueIndex>)> = None;
    let unevenness = |queues: &[QueueIndex]| -> usize {
        // The sum of squares is least where all are equal.
        split_of(queues).iter().map(|count| count * count).sum()
    };
    for (port, queues) in candidates {
        if split_of(&queues) == wanted {
            return (port, queues);
        }
        if best.as_ref().is_none_or(|(_, known)| unevenness(&queues) < unevenness(known)) {
            best = Some((port, queues));
        }
    }
    best.unwrap_or((first, Vec::new()))
}

/// The port of guest b.
pub(super) fn server_port(way: Way) -> u16 {
    SERVER_PORTS[usize::from(way == Way::Reverse)]
}

fn flow(port: u16, way: Way) -> FlowTuple {
    let ip = |text: &str| text.parse::<IpAddr>().expect("the demo's addresses are addresses");
    FlowTuple {
        src: SocketAddr::new(ip(CLIENT), port),
        dst: SocketAddr::new(ip(SERVER), server_port(way)),
        transport: Transport::Tcp,
    }
}

/// The client's command line.
pub(super) fn client(streams: u16, seconds: u32, port: u16, way: Way) -> Vec<String> {
    let mut command: Vec<String> = ["iperf3", "-4", "-J", "-c", SERVER].map(str::to_owned).into();
    for (option, value) in [
        ("-p", server_port(way).to_string()),
        ("-P", streams.to_string()),
        ("-t", seconds.to_string()),
        ("--cport", port.to_string()),
    ] {
        command.extend([option.to_owned(), value]);
    }
    if way == Way::Reverse {
        command.push("-R".to_owned());
    }
    command
}

/// The receiver's throughput.
pub(super) fn bits_per_second(output: &str) -> Result<f64> {
    let report: serde_json::Value = serde_json::from_str(output).context("iperf3's report")?;
    if let Some(error) = report.get("error").and_then(serde_json::Value::as_str) {
        bail!("iperf3: {error}");
    }
    report
        .pointer("/end/sum_received/bits_per_second")
        .and_then(serde_json::Value::as_f64)
        .context("iperf3's report has no end.sum_received.bits_per_second")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_streams_as_queues_use_each_queue_once() {
        for queues in [1, 2, 4, 8] {
            for way in [Way::Forward, Way::Reverse] {
                let (_, placement) = first_port(queues, queues, way);
                assert_eq!(split_of(&placement), vec![1; usize::from(queues)], "{queues} {way}");
            }
        }
    }

    #[test]
    fn without_perfect_ports_the_best_are_used() {
        let (port, placement) = first_port(64, 64, Way::Forward);
        assert!(port >= FIRST_PORTS[0]);
        assert_eq!(placement.len(), 64);
    }

    #[test]
    fn an_error_of_iperf3_is_passed_on() {
        let error = bits_per_second(r#"{"error":"unable to connect"}"#).expect_err("an error");
        assert!(error.to_string().contains("unable to connect"));
        let good = r#"{"end":{"sum_received":{"bits_per_second":1e9}}}"#;
        assert!((bits_per_second(good).expect("a number") - 1e9).abs() < 1.0);
    }
}
