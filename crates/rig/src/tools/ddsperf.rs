//! ddsperf of Cyclone DDS, which reports once a second, at whole seconds since its start. Seconds
//! in the warm-up, and the one in which the ends discover each other, do not count.
//!
//! DDS chooses its UDP ports itself, so that its streams cannot be put on a queue.

use ringway_stats::average::{mean, median};

use super::Load;
use super::adapter::{Adapter, Listens, Program, Reading, Sends, Side, words};

/// The first second, in which the ends discover each other.
const SETTLING_SECONDS: f64 = 1.0;

pub(super) const THROUGHPUT: Adapter = Adapter {
    program: Program { name: "ddsperf-throughput", printed_by: Side::Server, ..PROGRAM },
    server: |load, _| words(&[&"-D", &seconds(load), &"sub"]),
    client: |load, _| words(&[&"-D", &seconds(load), &"pub", &"size", &"1k"]),
    parse: parse_throughput,
    log: None,
};

pub(super) const PING: Adapter = Adapter {
    program: Program { name: "ddsperf-ping", ..PROGRAM },
    server: |load, _| words(&[&"-D", &seconds(load), &"pong"]),
    client: |load, _| words(&[&"-D", &seconds(load), &"ping"]),
    parse: parse_ping,
    log: None,
};

const PROGRAM: Program = Program {
    package: "cyclonedds-tools",
    version_words: &[],
    listens: Listens::No,
    sends: Sends::Messages,
    settling_seconds: SETTLING_SECONDS,
    // It selects other networks and protocols.
    settings: &["CYCLONEDDS_URI"],
    ..Program::named("ddsperf")
};

/// The warm-up and measured seconds, and one more in which the ends discover each other.
fn seconds(load: &Load) -> f64 {
    load.warmup_seconds.ceil() + load.seconds.ceil() + SETTLING_SECONDS
}

/// Lines such as `[PID] 2.000  size 1024 total … rate 418.94 kS/s 3431.97 Mb/s (…)`.
fn parse_throughput(text: &str, load: &Load) -> Result<Reading, String> {
    let rates = |unit| all(text, load, |words| value_before(words, unit));
    let bps: Vec<f64> = rates("Mb/s")?.into_iter().map(|rate| rate * 1e6).collect();
    let samples: Vec<f64> = rates("kS/s")?.into_iter().map(|rate| rate * 1e3).collect();
    Ok(Reading {
        bps: Some(mean(&bps)),
        values: vec![("samples-per-second", mean(&samples))],
        course: None,
    })
}

/// Lines such as `[PID] 2.000  NAME size 12 mean 16.4us min 8.2us 50% 8.5us … max 2715.8us cnt 9`.
fn parse_ping(text: &str, load: &Load) -> Result<Reading, String> {
    let of = |name| all(text, load, |words| microseconds_after(words, name));
    let (medians, high, most) = (of("50%")?, of("99%")?, of("max")?);
    // Percentiles are the medians over the seconds; the maximum is that of all seconds.
    let values = vec![
        ("rtt-median-us", median(&medians)),
        ("rtt-p99-us", median(&high)),
        ("rtt-max-us", most.into_iter().fold(0.0, f64::max)),
    ];
    Ok(Reading { bps: None, values, course: None })
}

/// Extracts a value from every line about a measured second; there must be at least one.
fn all(
    text: &str,
    load: &Load,
    value: impl Fn(&[&str]) -> Option<f64>,
) -> Result<Vec<f64>, String> {
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let end: f64 = words.get(1)?.parse().ok()?;
        // A report that is early or late still belongs to its second.
        (end.round() - 1.0 >= load.warmup_seconds.max(SETTLING_SECONDS)).then(|| value(&words))?
    };
    let found: Vec<f64> = text.lines().filter_map(of_line).collect();
    match found[..] {
        [] => Err(format!("it reported no usable interval: {}", text.trim())),
        _ => Ok(found),
    }
}

fn value_before(words: &[&str], unit: &str) -> Option<f64> {
    words
        .iter()
        .position(|word| *word == unit)?
        .checked_sub(1)
        .and_then(|at| words[at].parse().ok())
}

fn microseconds_after(words: &[&str], name: &str) -> Option<f64> {
    let at = words.iter().position(|word| *word == name)?;
    words.get(at + 1)?.strip_suffix("us")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn recorded_round_trips_are_read_without_the_first_second() {
        let load = Load { warmup_seconds: 2.0, ..example() };
        let reading = parse_ping(include_str!("recorded/ddsperf-ping.txt"), &load).expect("good");
        assert_eq!(reading.bps, None);
        let [(_, middle), (_, high), (_, most)] = reading.values[..] else { panic!("{reading:?}") };
        assert!((middle - (8.502 + 8.547) / 2.0).abs() < 1e-9, "{middle}");
        assert!((high - (27.140 + 36.274) / 2.0).abs() < 1e-9, "{high}");
        assert!((most - 3468.149).abs() < 1e-9, "{most}");
    }

    #[test]
    fn recorded_throughput_is_the_subscribers() {
        let text = include_str!("recorded/ddsperf-sub.txt");
        let reading = parse_throughput(text, &example()).expect("good");
        let bps = (3431.97 + 3129.24 + 4501.31) / 3.0 * 1e6;
        assert!((reading.bps.expect("it tells") / bps - 1.0).abs() < 1e-9, "{reading:?}");
        assert_eq!(reading.values[0].0, "samples-per-second");
    }

    #[test]
    fn ends_that_did_not_meet_are_no_measurement() {
        let load = example();
        let alone = "[1] participant vm:1: new (self)\n[1] 1.000  rss:7.6MB vcsw:1 ivcsw:1\n";
        assert!(parse_ping(alone, &load).is_err() && parse_throughput(alone, &load).is_err());
    }
}
