//! Decides from measurements before and after whether a change helps.

use regex::Regex;
use ringway_doctor::changes::journal::Entry;
use ringway_doctor::finding::{Finding, Forecast};
use ringway_stats::{Interval, Ratio, mean, ratio, welch};

/// The probability of a difference by chance above which the difference does not count.
const CHANCE_MAX: f64 = 0.05;
/// A difference below this fraction is too small to matter, however certain it is.
const DIFFERENCE_MIN: f64 = 0.01;

/// Where a run's number comes from.
#[derive(Debug, Clone)]
pub(super) enum Gauge {
    /// The seconds that the command took: less is better.
    Seconds,
    /// What `iperf3 --json` received, in bit/s.
    Iperf3,
    /// The first group of the last match in what the command printed.
    Pattern(Regex, Better),
}

/// Which direction is an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    /// Throughput.
    Higher,
    /// Latency.
    Lower,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    /// What to do.
    pub(super) call: Call,
    /// The mean before.
    pub(super) before: f64,
    /// The mean after.
    pub(super) after: f64,
    /// The improvement as a factor: above 1 is better, whichever direction is good.
    pub(super) gain: Option<Ratio>,
    /// The probability of such a difference by chance; `None` if the numbers have no spread.
    pub(super) chance: Option<f64>,
}

/// What the numbers say about a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Better than before, by more than chance explains.
    Better,
    /// Worse than before, by more than chance explains.
    Worse,
    /// No more than chance explains.
    Same,
}

impl Gauge {
    /// Which direction is an improvement for its numbers.
    pub(super) fn better(&self) -> Better {
        match self {
            Gauge::Seconds => Better::Lower,
            Gauge::Iperf3 => Better::Higher,
            Gauge::Pattern(_, better) => *better,
        }
    }

    /// The number of one run.
    ///
    /// # Errors
    /// A sentence if the output has no figure.
    pub(super) fn read(&self, seconds: f64, printed: &str) -> Result<f64, String> {
        let number = match self {
            Gauge::Seconds => Some(seconds),
            Gauge::Iperf3 => {
                let report: serde_json::Value = serde_json::from_str(printed)
                    .map_err(|error| format!("expected the output of iperf3 --json: {error}"))?;
                if let Some(error) = report["error"].as_str() {
                    return Err(error.to_owned());
                }
                let sum = |key: &str| report["end"][key]["bits_per_second"].as_f64();
                sum("sum_received").or_else(|| sum("sum"))
            }
            Gauge::Pattern(pattern, _) => {
                let last = pattern.captures_iter(printed).last();
                last.and_then(|groups| groups.get(1).or_else(|| groups.get(0)))
                    .and_then(|found| found.as_str().trim().parse().ok())
            }
        };
        let number = number.filter(|number| number.is_finite());
        number.ok_or_else(|| "the output of the command contains no number".to_owned())
    }
}

/// Compares runs before and after. It assumes independent, identically distributed runs within each
/// group, as the lab does (Welch's test).
pub(super) fn judge(before: &[f64], after: &[f64], better: Better) -> Verdict {
    let (mean_before, mean_after) = (mean(before), mean(after));
    let change = (mean_after - mean_before) / mean_before.abs();
    let chance = welch(before, after).map(|test| test.chance).filter(|chance| chance.is_finite());
    // Without any spread nothing is due to chance: any difference is real.
    let is_luck = chance.is_some_and(|chance| chance >= CHANCE_MAX);
    let call = if is_luck || change.is_nan() || change.abs() < DIFFERENCE_MIN {
        Call::Same
    } else if (change > 0.0) == (better == Better::Higher) {
        Call::Better
    } else {
        Call::Worse
    };
    let gain = match better {
        Better::Higher => ratio(after, before),
        Better::Lower => ratio(before, after),
    };
    Verdict { call, before: mean_before, after: mean_after, gain, chance }
}

/// The interval over all forecasts of findings whose changes are made. A forecast is of the first
/// advice.
pub(super) fn forecast(findings: &[Finding], entries: &[Entry]) -> Option<Forecast> {
    let is_made = |finding: &&Finding| {
        let mut changes = finding.advice.first().into_iter().flat_map(|advice| &advice.changes);
        changes.any(|change| entries.iter().any(|entry| entry.knob == change.knob))
    };
    let made = findings.iter().filter(is_made).filter_map(|finding| finding.forecast);
    made.reduce(|a, b| Forecast { low: a.low.min(b.low), high: a.high.max(b.high) })
}

/// What came, against the forecast of throughput; `None` without a gain. What is too small to
/// matter is no difference here either.
pub(super) fn compare(forecast: Forecast, gauge: &Gauge, verdict: &Verdict) -> Option<String> {
    let gain = verdict.gain?;
    if matches!(gauge, Gauge::Pattern(_, Better::Lower)) {
        return Some("The forecast is of throughput, which was not measured.".to_owned());
    }
    let call = match gain.interval {
        _ if verdict.call == Call::Worse && forecast.low >= 1.0 => {
            "it became worse: the change costs more than it brings"
        }
        Some(interval) => within(forecast, interval),
        None => "these runs are too few to say whether it came",
    };
    Some(format!("The forecast was {forecast}; {call}."))
}

fn within(forecast: Forecast, Interval { low, high }: Interval) -> &'static str {
    if high < forecast.low * (1.0 - DIFFERENCE_MIN) {
        "less came: something else is the limit"
    } else if low > forecast.high * (1.0 + DIFFERENCE_MIN) {
        "more came: the change does more than the model knows"
    } else {
        "what came agrees with it"
    }
}

#[cfg(test)]
mod tests {
    use ringway_doctor::changes::journal::Step;
    use ringway_doctor::finding::{Advice, Change, Knob, Severity};

    use super::*;

    #[test]
    fn what_came_is_compared_with_the_forecast() {
        let of = |before: &[f64], factor: f64, gauge: &Gauge| {
            let after: Vec<f64> = before.iter().map(|value| value * factor).collect();
            let verdict = judge(before, &after, gauge.better());
            compare(Forecast { low: 1.0, high: 2.0 }, gauge, &verdict).expect("a gain")
        };
        let said = |factor| of(&BEFORE, factor, &Gauge::Iperf3);
        assert_eq!(said(1.7), "The forecast was 1 to 2 times; what came agrees with it.");
        assert!(said(2.01).ends_with("what came agrees with it."), "within its interval");
        assert!(said(3.0).contains("more came"));
        // The forecast excludes that; no other limit explains it.
        assert!(said(0.5).contains("it became worse"), "{}", said(0.5));
        // Too small to matter, and not by chance.
        assert!(of(&[10.0; 5], 0.995, &Gauge::Iperf3).contains("agrees"));
        assert!(of(&[10.0; 5], 2.5, &Gauge::Iperf3).contains("more came"));
        // Of two runs each, no one knows the interval.
        assert!(of(&[10.0, 10.1], 2.5, &Gauge::Iperf3).contains("too few"));
        // Half of the time is twice the throughput; a lower number may be anything.
        assert!(of(&BEFORE, 0.5, &Gauge::Seconds).contains("agrees"));
        let pattern = Regex::new("rtt (.*)").expect("a pattern");
        let latency = of(&BEFORE, 0.1, &Gauge::Pattern(pattern, Better::Lower));
        assert_eq!(latency, "The forecast is of throughput, which was not measured.");
    }

    #[test]
    fn only_changes_that_are_made_have_a_forecast() {
        let knob = |nic: &str| Knob::Channels { nic: nic.to_owned(), which: "combined".to_owned() };
        let finding = |nic: &str, most: f64| {
            let advice = Advice::by_change("Use them.", Change::raise(knob(nic), 1, 8));
            let finding = Finding::new(Severity::Warning, nic, "few queues").advise(advice);
            finding.forecast([1.0, most], "if queues are the limit")
        };
        let entry = |nic: &str| Entry {
            check: "D14".to_owned(),
            knob: knob(nic),
            old: "1".to_owned(),
            new: "8".to_owned(),
            reason: "few queues".to_owned(),
            interface_index: None,
            step: Step::Planned,
        };
        let findings = [finding("eth0", 2.0), finding("eth1", 8.0), finding("eth2", 4.0)];
        assert_eq!(forecast(&findings, &[entry("eth3")]), None);
        let both = forecast(&findings, &[entry("eth0"), entry("eth2")]);
        assert_eq!(both, Some(Forecast { low: 1.0, high: 4.0 }));
        // What a second advice changes has no forecast.
        let mut second = finding("eth0", 2.0);
        second.advice.insert(0, Advice::by_hand("Or add CPUs.", &[]));
        assert_eq!(forecast(&[second], &[entry("eth0")]), None);
    }

    const BEFORE: [f64; 5] = [9.9, 10.1, 10.0, 10.2, 9.8];

    #[test]
    fn a_difference_counts_only_if_significant() {
        let twice = BEFORE.map(|value| value * 2.0);
        assert_eq!(judge(&BEFORE, &twice, Better::Higher).call, Call::Better);
        assert_eq!(judge(&BEFORE, &twice, Better::Lower).call, Call::Worse);
        let verdict = judge(&twice, &BEFORE, Better::Lower);
        assert_eq!(verdict.call, Call::Better);
        assert!((verdict.gain.expect("a ratio").value - 2.0).abs() < 1e-9);
        let noise = [10.0, 10.3, 9.7, 10.1, 9.9];
        assert_eq!(judge(&BEFORE, &noise, Better::Higher).call, Call::Same);
        assert_eq!(judge(&[1.0; 3], &[2.0; 3], Better::Higher).call, Call::Better);
        assert_eq!(judge(&[1.0; 3], &[1.0; 3], Better::Higher).call, Call::Same);
    }

    #[test]
    fn a_number_is_found_in_the_output() {
        let pattern = Regex::new(r"rtt ([\d.]+) ms").expect("a pattern");
        let gauge = Gauge::Pattern(pattern, Better::Lower);
        assert_eq!(gauge.read(9.0, "rtt 1 ms\nrtt 2.5 ms\n"), Ok(2.5));
        assert!(gauge.read(9.0, "nothing").is_err());
        let report = r#"{"end":{"sum_received":{"bits_per_second":1.5e9}}}"#;
        assert_eq!(Gauge::Iperf3.read(9.0, report), Ok(1.5e9));
        assert!(Gauge::Iperf3.read(9.0, "iperf3: error").is_err());
        let busy = r#"{"error":"the server is busy"}"#;
        assert_eq!(Gauge::Iperf3.read(9.0, busy), Err("the server is busy".to_owned()));
        assert_eq!(Gauge::Seconds.read(9.0, ""), Ok(9.0));
    }
}
