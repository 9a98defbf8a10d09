//! sockperf: ping-pong over TCP, one message of 64 bytes at a time. It excludes its own warm-up,
//! and its figures cover everything after it.

use std::io::BufRead;
use std::path::Path;

use super::adapter::{Adapter, Log, Program, Reading, Sends, whole_seconds, words};
use super::course::Course;
use super::{Flow, Load};

pub(super) const ADAPTER: Adapter = Adapter {
    program: Program { sends: Sends::Messages, ..Program::named("sockperf") },
    server,
    client,
    parse,
    log: Some(Log { words: log_words, parse: parse_log }),
};

const MESSAGE_LEN: u32 = 64;
/// Lines of a log that are read: half a minute of the fastest possible round trips.
const SAMPLES_MAX: usize = 4_000_000;

fn server(_: &Load, flow: &Flow) -> Vec<String> {
    words(&[&"server", &"--tcp", &"-i", &flow.address, &"-p", &flow.port])
}

fn client(load: &Load, flow: &Flow) -> Vec<String> {
    let mut line = words(&[&"ping-pong", &"--tcp", &"-i", &flow.address, &"-p", &flow.port]);
    line.extend(words(&[&"--client_port", &flow.source_port, &"-t", &whole_seconds(load)]));
    line.extend(words(&[&"-m", &MESSAGE_LEN, &"--full-rtt"]));
    line
}

fn parse(text: &str, _: &Load) -> Result<Reading, String> {
    let value = |what: &str| {
        let found = text.lines().find_map(|line| {
            let (name, value) = line.strip_prefix("sockperf: --->")?.split_once('=')?;
            (name.trim() == what).then(|| value.trim().parse().ok())?
        });
        found.ok_or_else(|| format!("it did not print `{what}`: {}", text.trim()))
    };
    let values = vec![
        ("rtt-median-us", value("percentile 50.000")?),
        ("rtt-p99-us", value("percentile 99.000")?),
        ("rtt-max-us", value("<MAX> observation")?),
    ];
    Ok(Reading { bps: None, values, course: None })
}

fn log_words(file: &Path) -> Vec<String> {
    words(&[&"--full-log", &file.display()])
}

/// Lines such as `0, 2.580002848, 2.580010341, 7.493`: a number, the times of sending and of the
/// reply, and the round trip in microseconds. Other lines are headings.
fn parse_log(log: &mut dyn BufRead, load: &Load) -> Result<(&'static str, Course), String> {
    let mut samples: Vec<(f64, f64)> = Vec::new();
    for line in log.lines().take(SAMPLES_MAX) {
        let line = line.map_err(|error| format!("its log cannot be read: {error}"))?;
        let mut words = line.split(',').map(|word| word.trim().parse::<f64>().ok());
        if let (Some(Some(_)), Some(Some(sent)), Some(Some(_)), Some(Some(rtt))) =
            (words.next(), words.next(), words.next(), words.next())
        {
            samples.push((sent, rtt));
        }
    }
    let Some(&(begin, _)) = samples.first() else {
        return Err("its log has no samples".to_owned());
    };
    for (sent, _) in &mut samples {
        *sent -= begin;
    }
    // The log excludes the warm-up and ends with the last sample.
    let end = samples.last().map_or(0.0, |(sent, _)| *sent);
    Ok(("rtt-median-us", Course::of_samples(end.clamp(load.seconds * 0.5, load.seconds), &samples)))
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_recorded_run_is_read() {
        let reading = parse(include_str!("recorded/sockperf.txt"), &example()).expect("good");
        let expected = [("rtt-median-us", 13.5), ("rtt-p99-us", 47.75), ("rtt-max-us", 9752.235)];
        assert_eq!(reading, Reading { bps: None, values: expected.to_vec(), course: None });
    }

    #[test]
    fn a_recorded_log_is_read_and_one_without_samples_is_no_measurement() {
        let mut log = include_bytes!("recorded/sockperf-log.csv").as_slice();
        let (metric, course) = parse_log(&mut log, &example()).expect("good");
        assert_eq!(metric, "rtt-median-us");
        assert_eq!((course.quantiles[0], course.quantiles[100]), (7.491, 8.923));
        assert_eq!(course.values, [Some(7.5285)]);
        assert!(parse_log(&mut b"packet, txTime(sec)\n".as_slice(), &example()).is_err());
    }

    #[test]
    fn a_run_that_failed_is_no_measurement() {
        let refused = "sockperf: ERROR: Can`t connect socket (errno=111 Connection refused)";
        assert!(parse(refused, &example()).expect_err("refused").contains("errno=111"));
    }
}
