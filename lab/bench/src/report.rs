//! Every run, and the tables of the results.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ringway_stats::average::Spread;
use serde::Serialize;

use crate::host::{HostRecord, Noise, Watch};

/// ringway where it is measured with the guest that users have.
pub(crate) const NETFRONT: &str = "ringway+netfront";
/// ringway with a guest that copies no frame.
pub(crate) const BARE: &str = "ringway+bare";
/// The subjects that ratios are about.
const OURS: [&str; 3] = ["ringway", NETFRONT, BARE];

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

/// What a number is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    unit: &'static str,
    better: Better,
    /// Its column, if the cases of this name are the columns of one table.
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<String>,
}

impl Case {
    pub(crate) fn new(
        section: &'static str,
        name: impl Into<String>,
        unit: &'static str,
        better: Better,
    ) -> Case {
        Case { section, name: name.into(), unit, better, column: None }
    }

    /// Makes it a column of a table.
    pub(crate) fn in_column(self, column: String) -> Case {
        Case { column: Some(column), ..self }
    }
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
                // What is a column is too much for a line.
                let shown = cases.iter().zip(&values).filter(|(case, _)| case.column.is_none());
                let shown: Vec<_> = shown.map(|(_, value)| number(*value)).collect();
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
    /// is better (above 1) or worse (below 1), as the median and the range of the rounds' ratios.
    pub(crate) fn print(&self) {
        self.host.print();
        let mut section = "";
        let mut cases: Vec<&Case> = Vec::new();
        for series in &self.series {
            if !cases.contains(&&series.case) {
                cases.push(&series.case);
            }
        }
        for cases in
            cases.chunk_by(|one, next| (one.section, &one.name) == (next.section, &next.name))
        {
            let Some(first) = cases.first() else { continue };
            if first.section != section {
                section = first.section;
                println!("\n== {section} ==");
            }
            println!("{} ({})", first.name, first.unit);
            print!(
                "{}",
                if first.column.is_some() { self.columns(cases) } else { self.rows(first) }
            );
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

    fn of_case(&self, case: &Case) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(move |series| series.case == *case)
    }

    /// A line for each subject of a case: median, range, the most that was stolen from the machine
    /// during a run, and ratios.
    fn rows(&self, case: &Case) -> String {
        let is_ours = |series: &&Series| OURS.contains(&series.subject.as_str());
        let mut text = String::new();
        for series in self.of_case(case) {
            let Spread { min, median, max } = series.spread();
            let range = format!("[{} .. {}]", number(min), number(max));
            let steal = series.runs.iter().map(|run| run.noise.steal_percent).fold(0.0, f64::max);
            let steal = format!("steal {steal:.0} %");
            let ratio = |ours: &Series| {
                let ratio = series.ratio_of(ours, case.better)?;
                Some(format!("{} is {}", ours.subject, factor(ratio, self.rounds)))
            };
            let ours = self.of_case(case).filter(is_ours);
            let ratios: Vec<String> =
                if is_ours(&series) { vec![] } else { ours.filter_map(ratio).collect() };
            let (subject, median) = (&series.subject, number(median));
            let line = format!(
                "    {subject:<20}{median:>10}  {range:<24}{steal:<12}{}",
                ratios.join(", ")
            );
            text += line.trim_end();
            text += "\n";
        }
        text
    }

    /// A line for each subject with the medians of all cases, which are its columns.
    fn columns(&self, cases: &[&Case]) -> String {
        let cells = |cells: &mut dyn Iterator<Item = String>| {
            cells.map(|cell| format!("{cell:>8}")).collect::<String>() + "\n"
        };
        let heads = &mut cases.iter().map(|case| case.column.clone().unwrap_or_default());
        let mut text = format!("    {:<20}{}", "", cells(heads));
        for subject in cases.first().into_iter().flat_map(|first| self.of_case(first)) {
            let subject = &subject.subject;
            let value = |case: &&Case| {
                let series = self.of_case(case).find(|series| series.subject == *subject);
                series.map_or_else(String::new, |series| number(series.spread().median))
            };
            text += &format!("    {subject:<20}{}", cells(&mut cases.iter().map(value)));
        }
        text
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
        let handoffs: Vec<f64> = runs().filter_map(|run| run.noise.handoff_ns).collect();
        let handoffs = Spread::of(&handoffs);
        if let Some(Spread { min, max, .. }) = handoffs.filter(|it| it.max > it.min * HANDOFF_RATIO)
        {
            println!(
                "\nNOTICE: a cache line took {:.0} to {:.0} ns from CPU to CPU: the host moves \
                 them. Rates through shared memory depend on it, so compare runs with similar \
                 times, which --json lists.",
                min, max,
            );
        }
    }
}

impl Series {
    /// Each series has at least one run.
    fn spread(&self) -> Spread {
        let values: Vec<f64> = self.runs.iter().map(|run| run.value).collect();
        Spread::of(&values).unwrap_or(Spread { min: f64::NAN, median: f64::NAN, max: f64::NAN })
    }

    /// By which factor `ours` is better, in each round that has both: what disturbs the machine
    /// disturbs neighbouring runs alike. `None` if no round has a ratio.
    fn ratio_of(&self, ours: &Series, better: Better) -> Option<Spread> {
        let in_round = |round: usize| ours.runs.iter().find(|run| run.round == round);
        let ratios = self.runs.iter().filter_map(|theirs| {
            let ours = in_round(theirs.round)?.value;
            Some(match better {
                Better::More => ours / theirs.value,
                Better::Less => theirs.value / ours,
            })
        });
        Spread::of(&ratios.filter(|ratio| ratio.is_normal()).collect::<Vec<f64>>())
    }
}

/// A ratio, with its range if there may be one.
fn factor(ratio: Spread, rounds: usize) -> String {
    let Spread { min, median, max } = ratio;
    let range = format!(" [{min:.2} .. {max:.2}]");
    format!("x{median:.2}{}", if rounds > 1 { &range } else { "" })
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
    fn a_peer_is_compared_with_each_of_ours() {
        let mut report = Report::new(HostRecord::take(), 1);
        let case = Case::new("ring", "a case", "us", Better::Less);
        for (subject, value) in [(NETFRONT, 4.0), (BARE, 2.0), ("testpmd", 3.0), ("none", 0.0)] {
            report.measure(&case, subject, || Ok(value));
        }
        let rows = report.rows(&case);
        let rows: Vec<&str> =
            rows.lines().map(|row| row.split(" %").nth(1).unwrap_or("no steal")).collect();
        let ratios = "ringway+netfront is x0.75, ringway+bare is x1.50";
        assert_eq!(rows.iter().map(|row| row.trim()).collect::<Vec<_>>(), ["", "", ratios, ""]);
    }

    #[test]
    fn ratios_are_of_runs_in_the_same_round() {
        let mut report = Report::new(HostRecord::take(), 3);
        let case = Case::new("tcp", "a case", "Gbit/s", Better::More);
        for (round, ours, theirs) in [(0, 10.0, 20.0), (1, 4.0, 4.0), (2, 9.0, 10.0)] {
            report.begin_round(round);
            report.measure(&case, "ringway", || Ok(ours));
            report.measure(&case, "chain", || Ok(theirs));
        }
        // A round that has only one of the two.
        report.begin_round(3);
        report.measure(&case, "chain", || Ok(1000.0));
        let rows = report.rows(&case);
        // Of the medians it would be 0.6.
        assert!(rows.ends_with("ringway is x0.90 [0.50 .. 1.00]\n"), "{rows}");
    }

    #[test]
    fn cases_in_columns_are_one_table() {
        let mut report = Report::new(HostRecord::take(), 2);
        let case = |port: u16| {
            Case::new("latency", "by port", "us", Better::Less).in_column(port.to_string())
        };
        let cases = [case(20_001), case(20_002)];
        for values in [[1.0, 200.0], [3.0, 400.0]] {
            report.measure_all(&cases, "ringway", || Ok(Vec::from(values)));
        }
        report.measure_all(&cases, "veth+bridge", || Ok(vec![50.0, 6.0]));
        let table = report.columns(&cases.each_ref());
        let words: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        let rows = [["ringway", "2.00", "300"], ["veth+bridge", "50.0", "6.00"]];
        assert_eq!(words[0], ["20001", "20002"]);
        assert_eq!(words[1..], rows.map(Vec::from));
    }

    #[test]
    fn a_failure_is_kept_and_a_missing_peer_is_none() {
        let mut report = Report::new(HostRecord::take(), 1);
        let name = "a case".to_owned();
        let case = Case::new("ring", name, "Mpps", Better::More);
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
