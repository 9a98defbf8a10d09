//! Decides from measurements before and after whether a change helps.

use regex::Regex;
use ringway_stats::{Ratio, mean, ratio, welch};

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

#[cfg(test)]
mod tests {
    use super::*;

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
