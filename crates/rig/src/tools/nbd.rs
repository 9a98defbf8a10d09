//! Writes to a network block device: fio at the guest, nbdkit at the storage, which throws away
//! what is written. fio counts what the storage has acknowledged, after the warm-up that it leaves
//! out itself.

use serde::Deserialize;

use super::adapter::{Adapter, Listens, Program, Reading, TAIL, words};
use super::{Flow, Load};

pub(super) const ADAPTER: Adapter = Adapter {
    program: Program {
        name: "nbd",
        server: "nbdkit",
        package: "fio nbdkit",
        listens: Listens::ForAnyPort,
        ..Program::named("fio")
    },
    server: |_, flow| words(&[&"--foreground", &"--port", &flow.port, &"null", &"size=1T"]),
    client,
    parse,
    log: None,
};

/// Bytes of a request, unless the study sets them.
const REQUEST_BYTES: u64 = 128 << 10;
/// Requests without a reply.
const DEPTH: u32 = 16;

fn client(load: &Load, flow: &Flow) -> Vec<String> {
    let milliseconds = |seconds: f64| format!("{:.0}ms", seconds * 1e3);
    let device = format!("--uri=nbd://{}:{}", flow.address, flow.port);
    // With --thread it does its work in the process whose CPU time is counted.
    let mut line = words(&[&"--name=stream", &"--thread", &"--ioengine=nbd", &device]);
    line.extend(words(&[&"--rw=write", &format!("--iodepth={DEPTH}"), &"--time_based"]));
    line.push(format!("--bs={}", load.buffer.unwrap_or(REQUEST_BYTES)));
    line.push(format!("--ramp_time={}", milliseconds(load.warmup_seconds)));
    line.push(format!("--runtime={}", milliseconds(load.seconds + TAIL)));
    line.push("--output-format=json".to_owned());
    line
}

/// The relevant part of its output.
#[derive(Debug, Deserialize)]
struct Report {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    /// An error of the system; 0 without any.
    error: i32,
    write: Written,
}

#[derive(Debug, Deserialize)]
struct Written {
    /// A second.
    bw_bytes: f64,
}

fn parse(text: &str, _: &Load) -> Result<Reading, String> {
    // The engine prints a line before the JSON.
    let json = text.find('{').map_or(text, |start| &text[start..]);
    let report: Report = serde_json::from_str(json)
        .map_err(|error| format!("{error} in its JSON: {}", text.trim()))?;
    match &report.jobs[..] {
        [Job { error: 0, write }] if write.bw_bytes > 0.0 => {
            Ok(Reading { bps: Some(write.bw_bytes * 8.0), ..Reading::default() })
        }
        jobs => Err(format!("it wrote nothing: {jobs:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn what_the_storage_acknowledged_is_read_from_a_recorded_output() {
        let text = include_str!("recorded/fio-nbd.txt");
        let reading = parse(text, &example()).expect("good");
        assert!((reading.bps.expect("a rate") / (967_715_661.0 * 8.0) - 1.0).abs() < 1e-12);
        let stalled = text.replace("967715661", "0");
        assert!(parse(&stalled, &example()).expect_err("nothing").contains("wrote nothing"));
        assert!(parse("fio: engine nbd not loadable", &example()).is_err());
    }

    #[test]
    fn the_storage_is_that_of_the_flow() {
        let load = example();
        let line = client(&load, &load.flows[0]);
        let port = load.flows[0].port;
        assert!(line.contains(&format!("--uri=nbd://198.19.0.1:{port}")), "{line:?}");
        assert!(line.contains(&"--ramp_time=100ms".to_owned()), "{line:?}");
        let server = (ADAPTER.server)(&load, &load.flows[0]);
        assert!(server.contains(&port.to_string()), "{server:?}");
    }
}
