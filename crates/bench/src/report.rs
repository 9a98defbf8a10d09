//! Every run, and the tables of the results.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::host::{HostRecord, Noise, Watch};

/// The subject that ratios are about.
const OURS: &str = "ringway";

/// Hand-offs that differ more than by this factor are between differently placed CPUs.
const HANDOFF_RATIO: f64 = 1.5;

/// Whether more of a unit is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Better {
    /// As with throughput.
    More,
    /// As with latency and cost.
    Less,
}

/// One line of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
}

/// One subject in one case.
#[derive(Debug, Serialize)]
struct Series {
    case: Case,
    subject: String,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Run {
    round: usize,
    value: f64,
    noise: Noise,
}

/// Why something has no number.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Gap {
    kind: GapKind,
    section: &'static str,
    subject: String,
    reason: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum GapKind {
    Skipped,
    Failed,
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    host: HostRecord,
    rounds: usize,
    #[serde(skip)]
    round: usize,
    series: Vec<Series>,
    gaps: Vec<Gap>,
}

impl Report {
    pub(crate) fn new(host: HostRecord, rounds: usize) -> Report {
        Report { host, rounds, round: 0, series: Vec::new(), gaps: Vec::new() }
    }

    pub(crate) fn begin_round(&mut self, round: usize) {
        self.round = round;
    }

    /// Runs `run` and records its number. A failure is recorded, too, and does not end the program.
    pub(crate) fn measure(
        &mut self,
        case: &Case,
        subject: &str,
        run: impl FnOnce() -> Result<f64>,
    ) {
        self.measure_all(std::slice::from_ref(case), subject, || run().map(|value| vec![value]));
    }

    /// As [`measure`](Report::measure), for a run that yields a number for each of several cases.
    pub(crate) fn measure_all(
        &mut self,
        cases: &[Case],
        subject: &str,
        run: impl FnOnce() -> Result<Vec<f64>>,
    ) {
        let Some(first) = cases.first() else { return };
        let (round, rounds) = (self.round + 1, self.rounds);
        eprint!("[{round}/{rounds}] {}: {}: {subject} ", first.section, first.name);
        let result = Watch::start().and_then(|watch| Ok((run()?, watch.stop()?)));
        match result {
            Ok((values, noise)) => {
                let mark = if noise.is_high() { "  (NOISY)" } else { "" };
                let apart = noise.handoff_ns.map(|ns| format!("  (hand-off {ns:.0} ns)"));
                let apart = apart.unwrap_or_default();
                let shown: Vec<_> = values.iter().map(|value| number(*value)).collect();
                eprintln!("{} {}{apart}{mark}", shown.join(" / "), first.unit);
                for (case, value) in cases.iter().zip(values) {
                    self.keep(case, subject, Run { round: self.round, value, noise });
                }
            }
            Err(error) => {
                eprintln!("FAILED");
                self.gap(GapKind::Failed, first.section, subject, &format!("{error:#}"));
            }
        }
    }

    /// Notes, once, that something was not measured.
    pub(crate) fn skip(&mut self, section: &'static str, subject: &str, reason: &str) {
        self.gap(GapKind::Skipped, section, subject, reason);
    }

    fn keep(&mut self, case: &Case, subject: &str, run: Run) {
        let is_same = |series: &&mut Series| series.case == *case && series.subject == subject;
        match self.series.iter_mut().find(is_same) {
            Some(series) => series.runs.push(run),
            None => self.series.push(Series {
                case: case.clone(),
                subject: subject.to_owned(),
                runs: vec![run],
            }),
        }
    }

    fn gap(&mut self, kind: GapKind, section: &'static str, subject: &str, reason: &str) {
        let gap = Gap { kind, section, subject: subject.to_owned(), reason: reason.to_owned() };
        if !self.gaps.contains(&gap) {
            let word = if gap.kind == GapKind::Skipped { "SKIPPED" } else { "FAILED" };
            eprintln!("{word}: {section}: {subject}: {reason}");
            self.gaps.push(gap);
        }
    }

    /// True if a measurement failed; a missing program is no failure.
    pub(crate) fn has_failures(&self) -> bool {
        self.gaps.iter().any(|gap| gap.kind == GapKind::Failed)
    }

    /// Writes every run as JSON.
    pub(crate) fn write_json(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
    }

    /// Prints the tables: for each subject the median and the range, and by which factor ringway
    /// is better (above 1) or worse (below 1).
    pub(crate) fn print(&self) {
        self.host.print();
        let mut section = "";
        let mut cases: Vec<&Case> = Vec::new();
        for series in &self.series {
            if !cases.contains(&&series.case) {
                cases.push(&series.case);
            }
        }
        for case in cases {
            if case.section != section {
                section = case.section;
                println!("\n== {section} ==");
            }
            println!("{} ({})", case.name, case.unit);
            let of_case = || self.series.iter().filter(|series| series.case == *case);
            let ours = of_case().find(|series| series.subject == OURS).map(Series::spread);
            for series in of_case() {
                let Spread { min, median, max } = series.spread();
                let range = format!("[{} .. {}]", number(min), number(max));
                let ratio = match ours {
                    Some(ours) if series.subject != OURS && median > 0.0 && ours.median > 0.0 => {
                        let factor = match case.better {
                            Better::More => ours.median / median,
                            Better::Less => median / ours.median,
                        };
                        format!("ringway is x{factor:.2}")
                    }
                    _ => String::new(),
                };
                println!("    {:<20}{:>10}  {range:<24}{ratio}", series.subject, number(median));
            }
        }
        if !self.gaps.is_empty() {
            println!();
        }
        for gap in &self.gaps {
            let word = if gap.kind == GapKind::Skipped { "SKIPPED" } else { "FAILED" };
            println!("{word}: {}: {}: {}", gap.section, gap.subject, gap.reason);
        }
        self.print_noise();
    }

    fn print_noise(&self) {
        let runs = || self.series.iter().flat_map(|series| &series.runs);
        let noisy = runs().filter(|run| run.noise.is_high()).count();
        if noisy > 0 {
            let most = |of: fn(Noise) -> f64| runs().map(|run| of(run.noise)).fold(0.0, f64::max);
            println!(
                "\nNOTICE: {noisy} of {} runs shared the machine (steal up to {:.0} %, foreign \
                 load up to {:.0} %): ratios are less certain than they look.",
                runs().count(),
                most(|noise| noise.steal_percent),
                most(|noise| noise.foreign_percent),
            );
        }
        let handoffs = spread(runs().filter_map(|run| run.noise.handoff_ns).collect());
        if handoffs.max > handoffs.min * HANDOFF_RATIO {
            println!(
                "\nNOTICE: a cache line took {:.0} to {:.0} ns from CPU to CPU: the host moves \
                 them. Rates through shared memory depend on it, so compare runs with similar \
                 times, which --json lists.",
                handoffs.min, handoffs.max,
            );
        }
    }
}

/// The median and the range of a series of runs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Series {
    fn spread(&self) -> Spread {
        spread(self.runs.iter().map(|run| run.value).collect())
    }
}

/// Of at least one value; the median of an even number is the mean of the middle two.
fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied().unwrap_or(f64::NAN);
    let median = match values.get(middle.wrapping_sub(1)) {
        Some(lower) if values.len() % 2 == 0 => lower.midpoint(upper),
        _ => upper,
    };
    let ends = (values.first().copied(), values.last().copied());
    Spread { min: ends.0.unwrap_or(f64::NAN), median, max: ends.1.unwrap_or(f64::NAN) }
}

/// A number with three digits: none of these numbers is more precise.
fn number(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(spread(vec![3.0, 1.0, 9.0]), Spread { min: 1.0, median: 3.0, max: 9.0 });
        assert_eq!(spread(vec![4.0, 1.0]), Spread { min: 1.0, median: 2.5, max: 4.0 });
        assert_eq!(spread(vec![5.0]), Spread { min: 5.0, median: 5.0, max: 5.0 });
    }

    #[test]
    fn a_failure_is_kept_and_a_missing_peer_is_none() {
        let mut report = Report::new(HostRecord::take(), 1);
        let name = "a case".to_owned();
        let case = Case { section: "ring", name, unit: "Mpps", better: Better::More };
        report.skip("ring", "testpmd", "not installed");
        report.skip("ring", "testpmd", "not installed");
        report.measure(&case, "ringway", || Ok(1.0));
        assert!(!report.has_failures());
        assert_eq!(report.gaps.len(), 1, "once is enough");
        report.measure(&case, "ringway", || anyhow::bail!("broken"));
        assert!(report.has_failures());
        assert_eq!(report.series.len(), 1);
    }
}
