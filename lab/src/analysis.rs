//! What the records of a study show: per cell, in comparison with published figures, and in a
//! paragraph.
//!
//! This is the content of `summary.json`, and the only input of the report, the export and the
//! rules.

pub mod disturbance;
pub mod forecast;
mod verdict;

use std::collections::BTreeMap;
use std::fmt;

use ringway_stats::{Ratio, Summary, drift, modes, ratio};
use ringway_steering::QueueIndex;
use ringway_steering::placement::split_of;
use serde::Serialize;

use self::disturbance::Disturbances;
use self::forecast::{Errors, Forecast};
use crate::metric::{self, Metric};
use crate::plan::primary_metric;
use crate::record::{Contradiction, Host, Records, Run};
use crate::setup::Setup;
use crate::study::{self, Comparison, Published, Study, Subject, TopologyKind};
use crate::value::Cell;
use crate::word::Driver;

/// With fewer runs, a mean gets a warning.
const RUNS_MIN: usize = 5;

/// What the records of a study show.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Analysis {
    /// The study.
    pub study: String,
    /// Its title.
    pub title: String,
    /// The question that it asks.
    pub question: String,
    /// The places of sources that it checks; files use the field name that scripts know.
    #[serde(rename = "rows")]
    pub sources: Vec<String>,
    /// What it found; empty if nothing was found.
    pub verdict: String,
    /// The machine.
    pub host: Host,
    /// All runs.
    pub runs: usize,
    /// The cells that have runs.
    pub cells: Vec<CellSummary>,
    /// How well the model predicts the cells on which it was not calibrated, if it predicts any.
    pub prediction_errors: Option<Errors>,
    /// Why it predicts none, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpredicted: Option<String>,
    /// Cells without any run, by their short names.
    pub missing: Vec<String>,
    /// Cells that this machine cannot measure.
    pub left_out: Vec<LeftOutCells>,
    /// Published figures and their counterparts here.
    pub published: Vec<PublishedRow>,
    /// Cells against cells.
    pub comparisons: Vec<ComparisonRow>,
    /// What disturbed the runs.
    pub disturbances: Disturbances,
    /// Problems in the files that could be worked around.
    pub notices: Vec<String>,
}

/// Cells that a machine cannot measure.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeftOutCells {
    /// Why, as a sentence that names what is left out.
    pub reason: String,
    /// By their short names.
    pub cells: Vec<String>,
}

/// What the runs of a cell show.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CellSummary {
    /// The measured subject.
    pub subject: Subject,
    /// Where.
    pub cell: Cell,
    /// Its short name.
    pub label: String,
    /// By name of the metric.
    pub values: BTreeMap<String, Summary>,
    /// How often each split of streams over queues occurred.
    pub splits: BTreeMap<String, usize>,
    /// Seconds of CPU time per second, by station.
    pub cpus_used: BTreeMap<String, Summary>,
    /// What the model says of its throughput; nothing if the cells with few queues do not calibrate
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Forecast>,
    /// Reasons to doubt its figures.
    pub warnings: Vec<Warning>,
}

/// A reason to doubt the figures of a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Warning {
    /// The machine has fewer CPUs than the cell keeps busy.
    FewCpus {
        /// What the cell needs, by [`Study::cpus_wanted`].
        wanted: u64,
        /// What the machine has.
        has: u32,
    },
    /// The router is a virtual machine without KVM, so its figures show behaviour and not speed.
    Emulated,
    /// Runs were left out, because their streams claim more than the queues below carried.
    Contradicted {
        /// How many.
        count: usize,
        /// Bytes that the streams of the first of them claim.
        claimed: f64,
        /// Bytes that its queues carried.
        carried: f64,
    },
    /// Too few runs.
    FewRuns {
        /// How many there are.
        count: usize,
    },
    /// The values fall into two groups, so the mean is typical of neither.
    Bimodal {
        /// Mean of the lower group.
        low: f64,
        /// Mean of the upper group.
        high: f64,
        /// Of which metric.
        metric: String,
    },
    /// The values change with time, so the repeats are not equivalent.
    Drifting {
        /// Kendall's tau: above 0 if they rise.
        tau: f64,
        /// The probability of such a trend by chance.
        chance: f64,
    },
}

/// For a list of the warnings of one cell.
impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::FewCpus { wanted, has } => {
                write!(f, "too few CPUs (about {wanted} wanted, {has} here)")
            }
            Warning::Emulated => f.write_str("emulated router: this is not real speed"),
            Warning::Contradicted { count, claimed, carried } => write!(
                f,
                "left out: {count} {}, whose streams report {:.0} MB but whose queues carried \
                 {:.0}",
                if *count == 1 { "run" } else { "runs" },
                claimed / 1e6,
                carried / 1e6
            ),
            Warning::FewRuns { count } => write!(f, "too few runs ({count})"),
            Warning::Bimodal { low, high, metric } => {
                let show = |value| metric::find(metric).map_or_else(String::new, |m| m.show(value));
                write!(f, "bimodal: around {} or around {}", show(*low), show(*high))
            }
            Warning::Drifting { tau, .. } => {
                write!(
                    f,
                    "drifting: it {} from run to run",
                    if *tau > 0.0 { "rose" } else { "fell" }
                )
            }
        }
    }
}

/// A published figure and its counterpart.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PublishedRow {
    /// What was published.
    #[serde(flatten)]
    pub published: Published,
    /// The short name of the cell that is compared with it, if that was measured.
    pub label: Option<String>,
    /// Measured here.
    pub measured: Option<Summary>,
    /// Measured divided by published. For a published range: 1 within it, else divided by the
    /// nearer end.
    pub ratio: Option<f64>,
}

/// Two cells.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ComparisonRow {
    /// What is compared.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// Short names of both cells.
    pub labels: [String; 2],
    /// The ratio, if both were measured.
    pub ratio: Option<Ratio>,
}

impl Analysis {
    /// Analyses all records of a study.
    pub fn of(records: &Records) -> Analysis {
        let study = &records.study;
        let mut cells = Vec::new();
        let mut missing = Vec::new();
        for (subject, cell) in study.matrix() {
            let runs: Vec<&Run> = records.of_cell(subject, &cell).collect();
            if runs.is_empty() {
                missing.push(cell_name(study, subject, &cell));
            } else {
                cells.push(summarise(records, subject, &cell, &runs));
            }
        }
        let forecasts = forecast::of_cells(records, &cells);
        cells.iter_mut().zip(forecasts).for_each(|(cell, forecast)| cell.predicted = forecast);
        let mut analysis = Analysis {
            study: study.id.clone(),
            title: study.title.clone(),
            question: question(study),
            sources: study.sources.clone(),
            verdict: String::new(),
            host: records.host.clone(),
            runs: records.runs.len(),
            published: study
                .comparable()
                .iter()
                .map(|one| compare_published(study, one, &cells))
                .collect(),
            comparisons: study
                .comparison
                .iter()
                .filter(|one| !study.is_around_router() || one.published.is_none())
                .map(|one| compare_cells(records, one))
                .collect(),
            prediction_errors: Errors::of(&cells),
            unpredicted: forecast::why_nothing(records, &cells),
            cells,
            missing,
            left_out: left_out(study),
            disturbances: Disturbances::of(records),
            notices: notices(records),
        };
        analysis.verdict = verdict::of(records, &analysis);
        analysis
    }

    /// The summary of a cell's runs.
    pub fn cell(&self, subject: Subject, cell: &Cell) -> Option<&CellSummary> {
        self.cells.iter().find(|one| one.subject == subject && one.cell == *cell)
    }

    /// The number of cells that this machine cannot measure.
    pub fn left_out_count(&self) -> usize {
        self.left_out.iter().map(|one| one.cells.len()).sum()
    }

    /// The cells that are not those of baselines.
    pub fn of_primary(&self) -> impl Iterator<Item = &CellSummary> {
        self.cells.iter().filter(|cell| !cell.subject.is_baseline())
    }
}

/// `q4.s8`, or `baseline-veth-bridge s8`.
pub fn cell_name(study: &Study, subject: Subject, cell: &Cell) -> String {
    match subject {
        one if !one.is_baseline() => study.label(cell),
        _ => format!("{subject} {}", study.label(cell)),
    }
}

/// What a study of streams around a router asks, if its own question is the one about a router.
const AROUND_QUESTION: &str = "How fast are streams that go around a router?";

/// The question of a study. A copy of a study of a router keeps its text when only the topology
/// is changed, but no longer asks that.
fn question(study: &Study) -> String {
    let is_of_router = |id| {
        let shipped = study::shipped(id);
        shipped.is_ok_and(|one| !one.is_around_router() && one.question == study.question)
    };
    match study.is_around_router() && study::ids().into_iter().any(is_of_router) {
        true => AROUND_QUESTION.to_owned(),
        false => study.question.clone(),
    }
}

/// The cells that are left out, by the reason.
fn left_out(study: &Study) -> Vec<LeftOutCells> {
    let mut all: Vec<LeftOutCells> = Vec::new();
    for (subject, cell, reason) in study.left_out_cells() {
        let name = cell_name(study, subject, &cell);
        match all.iter_mut().find(|one| one.reason == reason) {
            Some(one) => one.cells.push(name),
            None => all.push(LeftOutCells { reason: reason.to_owned(), cells: vec![name] }),
        }
    }
    all
}

/// Problems of single records, or of all records together.
fn notices(records: &Records) -> Vec<String> {
    let mut changed: BTreeMap<&str, usize> = BTreeMap::new();
    for difference in records.runs.iter().flat_map(|run| &run.differences) {
        *changed.entry(difference).or_default() += 1;
    }
    let all = records.runs.len();
    let changed = changed.into_iter().map(|(difference, count)| {
        format!("{count} of {all} runs were made after something changed: {difference}")
    });
    let own = records.notices.iter().cloned();
    own.chain(changed).chain(budget_notice(records)).chain(contradiction_notice(records)).collect()
}

/// Names the cells without some runs, left out because their streams claim more than queues
/// carried.
fn contradiction_notice(records: &Records) -> Option<String> {
    let study = &records.study;
    let lost = |(subject, cell): (Subject, Cell)| {
        let count = records.contradicted(subject, &cell).count();
        (count > 0).then(|| format!("{} ({count})", cell_name(study, subject, &cell)))
    };
    let lost: Vec<String> = study.matrix().filter_map(lost).collect();
    (!lost.is_empty()).then(|| {
        format!(
            "Runs whose streams report more than their queues carried are left out: their streams \
             did not all run at the same time, and rates of different times must not be added. By \
             cell: {}.",
            lost.join(", ")
        )
    })
}

/// Names the cells whose repeats the time limit has cut short.
fn budget_notice(records: &Records) -> Option<String> {
    let study = &records.study;
    let seconds = study.load.budget_seconds?;
    let wanted = usize::try_from(study.load.repeats).ok()?;
    let is_short =
        |(subject, cell): &(Subject, Cell)| records.all_of_cell(*subject, cell).count() < wanted;
    let short = study.matrix().filter(is_short).count();
    (short > 0).then(|| {
        format!(
            "Cells with fewer than {wanted} runs: {short}. No run was started that would have \
             ended later than {seconds} seconds after the first. Repeat the command to make the \
             missing runs."
        )
    })
}

/// Values of a metric in the order of time.
pub fn values(runs: &[&Run], metric: &str) -> Vec<f64> {
    runs.iter().filter_map(|run| run.values.get(metric).copied()).collect()
}

/// The values of a metric in a cell in the order of time.
pub fn cell_values(records: &Records, subject: Subject, cell: &Cell, metric: &str) -> Vec<f64> {
    values(&records.of_cell(subject, cell).collect::<Vec<_>>(), metric)
}

/// How the streams of a run were split over queues; `None` unless the queue of every stream is
/// known.
pub fn split(run: &Run) -> Option<Vec<usize>> {
    let queues: Option<Vec<QueueIndex>> =
        run.streams.iter().map(|stream| stream.queue.map(QueueIndex)).collect();
    queues.filter(|queues| !queues.is_empty()).map(|queues| split_of(&queues))
}

fn summarise(records: &Records, subject: Subject, cell: &Cell, runs: &[&Run]) -> CellSummary {
    let study = &records.study;
    let names: std::collections::BTreeSet<&String> =
        runs.iter().flat_map(|run| run.values.keys()).collect();
    let summary = |name: &String| Some((name.clone(), Summary::of(&values(runs, name))?));
    let mut splits = BTreeMap::new();
    for parts in runs.iter().filter_map(|run| split(run)) {
        *splits.entry(crate::placement::name(&parts)).or_default() += 1;
    }
    CellSummary {
        subject,
        cell: cell.clone(),
        label: study.label(cell),
        values: names.into_iter().filter_map(summary).collect(),
        splits,
        cpus_used: cpus_used(runs),
        predicted: None,
        warnings: warnings(records, subject, cell, runs),
    }
}

fn cpus_used(runs: &[&Run]) -> BTreeMap<String, Summary> {
    let mut used: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.seconds > 0.0) {
        for (station, seconds) in run.stations() {
            if let Some(seconds) = seconds {
                used.entry(station.to_owned()).or_default().push(seconds / run.seconds);
            }
        }
    }
    let summary = |(station, values): (String, Vec<f64>)| Some((station, Summary::of(&values)?));
    used.into_iter().filter_map(summary).collect()
}

fn warnings(records: &Records, subject: Subject, cell: &Cell, runs: &[&Run]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let (wanted, has) = (records.study.cpus_wanted(cell), records.host.cpus);
    if !subject.is_baseline() && wanted > u64::from(has) {
        warnings.push(Warning::FewCpus { wanted, has });
    }
    if is_emulated(&records.study, subject, cell) {
        warnings.push(Warning::Emulated);
    }
    let contradicted: Vec<Contradiction> = records.contradicted(subject, cell).collect();
    if let Some(Contradiction { claimed, carried }) = contradicted.first().copied() {
        warnings.push(Warning::Contradicted { count: contradicted.len(), claimed, carried });
    }
    if runs.len() < RUNS_MIN {
        warnings.push(Warning::FewRuns { count: runs.len() });
    }
    let Some(metric) = primary_metric(&records.study, runs) else { return warnings };
    let values = values(runs, metric);
    if let Some(found) = modes(&values) {
        let metric = metric.to_owned();
        warnings.push(Warning::Bimodal { low: found.low, high: found.high, metric });
    }
    if let Some(found) = drift(&values) {
        warnings.push(Warning::Drifting { tau: found.tau, chance: found.chance });
    }
    warnings
}

/// Whether the streams of a cell cross a virtual machine, which the lab runs without KVM.
fn is_emulated(study: &Study, subject: Subject, cell: &Cell) -> bool {
    let is_machine = || Setup::of(study, cell).is_ok_and(|setup| setup.driver == Driver::Machine);
    subject == Subject::Ringway && study.topology.kind == TopologyKind::Router && is_machine()
}

fn compare_published(study: &Study, published: &Published, cells: &[CellSummary]) -> PublishedRow {
    let better = metric::find(&published.metric).map(|metric| metric.better);
    let candidates = cells
        .iter()
        .filter(|cell| !cell.subject.is_baseline() && cell.cell.matches(&published.cell));
    let with_value =
        candidates.filter_map(|cell| Some((cell, cell.values.get(&published.metric)?)));
    let best = with_value.max_by(|a, b| {
        let order = a.1.mean.total_cmp(&b.1.mean);
        if better == Some(metric::Better::Less) { order.reverse() } else { order }
    });
    PublishedRow {
        published: published.clone(),
        label: best.map(|(cell, _)| study.label(&cell.cell)),
        measured: best.map(|(_, summary)| *summary),
        ratio: best.map(|(_, summary)| published_ratio(published, summary.mean)),
    }
}

fn published_ratio(published: &Published, mean: f64) -> f64 {
    match (published.value, published.low, published.high) {
        (Some(value), _, _) => mean / value,
        (None, Some(low), _) if mean < low => mean / low,
        (None, _, Some(high)) if mean > high => mean / high,
        _ => 1.0,
    }
}

fn compare_cells(records: &Records, comparison: &Comparison) -> ComparisonRow {
    let values = |cell| cell_values(records, records.study.primary(), cell, &comparison.metric);
    ComparisonRow {
        comparison: comparison.clone(),
        labels: [&comparison.of, &comparison.to].map(|cell| records.study.label(cell)),
        ratio: ratio(&values(&comparison.of), &values(&comparison.to)),
    }
}

impl Published {
    /// The figure for people: `9.40`, `at least 620`, `4 to 12`, without the unit.
    pub fn show(&self, metric: &Metric) -> String {
        match (self.value, self.low, self.high) {
            (Some(value), _, _) => metric.number(value),
            (None, Some(low), Some(high)) => {
                format!("{} to {}", metric.number(low), metric.number(high))
            }
            (None, Some(low), None) => format!("more than {}", metric.number(low)),
            (None, None, Some(high)) => format!("less than {}", metric.number(high)),
            (None, None, None) => String::new(),
        }
    }

    /// Whether comparisons use this figure.
    pub fn is_used(&self) -> bool {
        self.not_used.is_none()
    }
}
