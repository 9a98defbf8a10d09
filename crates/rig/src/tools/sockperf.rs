//! sockperf: ping-pong over TCP, one message of 64 bytes at a time. It leaves a warm-up of its own
//! out, and its figures are of all that follows.

use super::adapter::{Adapter, Program, Reading, whole_seconds, words};
use super::{Flow, Load};

pub(super) const ADAPTER: Adapter =
    Adapter { program: Program::named("sockperf"), server, client, parse };

const MESSAGE_LEN: u32 = 64;

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
        found.ok_or_else(|| format!("it did not tell `{what}`: {}", text.trim()))
    };
    let values = vec![
        ("rtt-median-us", value("percentile 50.000")?),
        ("rtt-p99-us", value("percentile 99.000")?),
        ("rtt-max-us", value("<MAX> observation")?),
    ];
    Ok(Reading { bps: None, values })
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_recorded_run_is_read() {
        let reading = parse(include_str!("recorded/sockperf.txt"), &example()).expect("good");
        let expected = [("rtt-median-us", 13.5), ("rtt-p99-us", 47.75), ("rtt-max-us", 9752.235)];
        assert_eq!(reading, Reading { bps: None, values: expected.to_vec() });
    }

    #[test]
    fn a_run_that_failed_is_no_measurement() {
        let refused = "sockperf: ERROR: Can`t connect socket (errno=111 Connection refused)";
        assert!(parse(refused, &example()).expect_err("refused").contains("errno=111"));
    }
}
