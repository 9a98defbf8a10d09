//! Selects the next run: the matrix in a seeded random order, and repeats until they suffice.
//!
//! A plan depends only on the study and on the runs that are done, so an interrupted study
//! continues with a new call. Repeats are interleaved: every cell has its first run before any has
//! its second, in a new order each round, so that changes over time affect all cells alike.

use std::collections::BTreeSet;

use ringway_stats::Summary;

use crate::metric::METRICS;
use crate::record::Run;
use crate::study::{Study, Subject};
use crate::value::Cell;

/// One run to make.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// The subject to measure.
    pub subject: Subject,
    /// Its cell.
    pub cell: Cell,
    /// Which repeat, from 0.
    pub repeat: u32,
}

/// Decides which runs a study needs.
#[derive(Debug)]
pub struct Plan<'a> {
    study: &'a Study,
    /// Half-width of a confidence interval, as a fraction of the mean, at which a cell needs no
    /// more repeats.
    precision: f64,
    seed: u64,
    given_up: BTreeSet<(Subject, Cell)>,
}

/// Attempts at a cell whose figures are contradicted, which happens where other programs use the
/// CPUs, also of a study that wants fewer repeats.
const ATTEMPTS_MIN: u32 = 5;

/// Estimate of a run's setup and teardown in seconds, until one was made.
pub const OVERHEAD_SECONDS: f64 = 1.5;

/// The progress of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Runs that are done.
    pub done: usize,
    /// Runs that are certain to follow.
    pub left: usize,
    /// Seconds that those take, without setup and teardown.
    pub seconds_left: f64,
}

impl Progress {
    /// Estimated seconds for the runs that are certain to follow, with setup and teardown.
    pub fn seconds(&self) -> f64 {
        self.seconds_left + ringway_stats::float(self.left) * OVERHEAD_SECONDS
    }
}

/// The time limit of a study: repeats get what the first runs leave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Seconds for all runs.
    pub seconds: f64,
    spent: f64,
    /// The shortest time that a run can take.
    shortest: f64,
    /// The time of the longest run so far: the next one is expected to take as long.
    longest: f64,
}

impl Budget {
    /// The budget of a study.
    pub fn of(study: &Study) -> Budget {
        let load = &study.load;
        let seconds = load.budget_seconds.unwrap_or(f64::INFINITY);
        let shortest = load.seconds + load.warmup_seconds;
        Budget { seconds, spent: 0.0, shortest, longest: shortest }
    }

    /// Records how long a run took, with setup and teardown.
    pub fn spend(&mut self, seconds: f64) {
        self.spent += seconds;
        self.longest = self.longest.max(seconds);
    }

    /// Whether there is time for a run. A cell's first run needs only the shortest possible time: a
    /// cell without runs leaves a hole in the figures.
    pub fn allows(&self, task: &Task) -> bool {
        let expected = if task.repeat == 0 { self.shortest } else { self.longest };
        self.spent + expected <= self.seconds
    }
}

impl<'a> Plan<'a> {
    /// A plan that repeats a cell until the half-width of its confidence interval is at most
    /// `ci_percent` of the mean, within the repeats that the study allows.
    pub fn new(study: &'a Study, ci_percent: f64, seed: u64) -> Plan<'a> {
        Plan { study, precision: ci_percent / 100.0, seed, given_up: BTreeSet::new() }
    }

    /// Plans no more runs of a cell, because they fail.
    pub fn give_up(&mut self, subject: Subject, cell: &Cell) {
        self.given_up.insert((subject, cell.clone()));
    }

    /// The run to make now; `None` when the study is done.
    pub fn next(&self, runs: &[Run]) -> Option<Task> {
        (0..self.study.load.max_repeats.max(ATTEMPTS_MIN)).find_map(|round| {
            self.order(round).into_iter().find_map(|(subject, cell)| {
                let done = runs_of(runs, subject, &cell);
                let is_due = done.len() <= usize::try_from(round).ok()?
                    && self.wants_another(subject, &cell, &done);
                let repeat = u32::try_from(done.len()).ok()?;
                is_due.then_some(Task { subject, cell, repeat })
            })
        })
    }

    /// How many runs are done and how many follow at least.
    pub fn progress(&self, runs: &[Run]) -> Progress {
        let load = &self.study.load;
        let missing = |(subject, cell): (Subject, Cell)| {
            let done = runs_of(runs, subject, &cell);
            let least = usize::try_from(load.repeats).unwrap_or(usize::MAX);
            match self.wants_another(subject, &cell, &done) {
                true => least.saturating_sub(sound(&done).len()).max(1),
                false => 0,
            }
        };
        let left: usize = self.order(0).into_iter().map(missing).sum();
        let each = load.seconds + load.warmup_seconds;
        Progress { done: runs.len(), left, seconds_left: ringway_stats::float(left) * each }
    }

    /// All cells of all subjects in the order of one round.
    fn order(&self, round: u32) -> Vec<(Subject, Cell)> {
        let mut all: Vec<_> = self.study.matrix().collect();
        fastrand::Rng::with_seed(self.seed ^ (u64::from(round) << 32)).shuffle(&mut all);
        all
    }

    fn wants_another(&self, subject: Subject, cell: &Cell, done: &[&Run]) -> bool {
        let load = &self.study.load;
        // Runs with contradicted figures count as attempts, but not as repeats.
        let sound = sound(done);
        let [attempts, repeats] =
            [done.len(), sound.len()].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let is_last = attempts >= load.max_repeats.max(ATTEMPTS_MIN) || repeats >= load.max_repeats;
        if is_last || self.given_up.contains(&(subject, cell.clone())) {
            return false;
        }
        repeats < load.repeats || !is_precise(&primary_values(self.study, &sound), self.precision)
    }
}

/// Whether repeats may stop: the half-width of the confidence interval is at most this fraction of
/// the mean.
pub fn is_precise(values: &[f64], precision: f64) -> bool {
    let summary = Summary::of(values);
    summary.and_then(|summary| summary.precision()).is_some_and(|part| part <= precision)
}

/// The metric that decides when a cell is done: the study's, or the first that the cell's tool
/// measures.
pub fn primary_metric<'a>(study: &'a Study, runs: &[&Run]) -> Option<&'a str> {
    let in_all =
        |name: &str| !runs.is_empty() && runs.iter().all(|run| run.values.contains_key(name));
    let names = std::iter::once(study.load.metric.as_str());
    names.chain(METRICS.iter().map(|metric| metric.name)).find(|name| in_all(name))
}

fn primary_values(study: &Study, runs: &[&Run]) -> Vec<f64> {
    let Some(name) = primary_metric(study, runs) else { return Vec::new() };
    runs.iter().filter_map(|run| run.values.get(name).copied()).collect()
}

fn runs_of<'a>(runs: &'a [Run], subject: Subject, cell: &Cell) -> Vec<&'a Run> {
    runs.iter().filter(|run| run.subject == subject && run.cell == *cell).collect()
}

/// The runs whose figures are not contradicted.
fn sound<'a>(runs: &[&'a Run]) -> Vec<&'a Run> {
    runs.iter().copied().filter(|run| run.contradiction().is_none()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::run;
    use crate::record::QueueUse;
    use crate::study::shipped;

    #[test]
    fn a_cell_that_is_given_up_is_not_asked_for_again() {
        let study = shipped("transmit").expect("it is shipped");
        let mut plan = Plan::new(&study, 5.0, 1);
        let first = plan.next(&[]).expect("nothing is done");
        assert_eq!(first, plan.next(&[]).expect("nothing is done"), "a seed repeats it");
        assert_ne!(Some(&first), Plan::new(&study, 5.0, 2).next(&[]).as_ref());
        let before = plan.progress(&[]);
        assert_eq!((before.done, before.left), (0, 240));
        assert!((before.seconds_left - 240.0 * 65.0).abs() < 1e-6);
        plan.give_up(first.subject, &first.cell);
        let next = plan.next(&[]).expect("there are others");
        assert_ne!((next.subject, &next.cell), (first.subject, &first.cell));
        assert_eq!(plan.progress(&[]).left, 230);
    }

    #[test]
    fn a_contradicted_run_is_made_again_also_if_one_is_enough() {
        let mut study = shipped("transmit").expect("it is shipped");
        (study.load.repeats, study.load.max_repeats) = (1, 1);
        let plan = Plan::new(&study, 5.0, 1);
        let Task { subject, cell, .. } = plan.next(&[]).expect("nothing is done");
        let wants_another = |runs: &[&Run]| plan.wants_another(subject, &cell, runs);
        let sound = run(0);
        assert!(!wants_another(&[&sound]));
        let mut bad = run(0);
        let (vif, index) = ("vif1.0".to_owned(), 0);
        let [tx_packets, tx_bytes, rx_packets, rx_bytes] = [1; 4];
        bad.queues = vec![QueueUse { vif, index, tx_packets, tx_bytes, rx_packets, rx_bytes }];
        assert!(bad.contradiction().is_some());
        assert!(wants_another(&[&bad]) && wants_another(&[&bad, &bad, &bad, &bad]));
        assert!(!wants_another(&[&bad, &sound]));
        assert!(!wants_another(&[&bad; 5]), "it is no accident");
    }

    #[test]
    fn a_budget_is_for_first_runs_and_what_it_leaves_for_repeats() {
        let study = shipped("bridge-or-ovs").expect("it is shipped").quick();
        let cells = Plan::new(&study, 5.0, 1).order(0).len();
        let task = |index: usize| {
            let (subject, cell) = Plan::new(&study, 5.0, 1).order(0).remove(index % cells);
            Task { subject, cell, repeat: u32::try_from(index / cells).expect("few") }
        };
        let runs_within = |seconds_each: f64| {
            let mut budget = Budget::of(&study);
            let fits = |index: &usize| {
                let fits = budget.allows(&task(*index));
                budget.spend(seconds_each);
                fits
            };
            (0..10 * cells).take_while(fits).count()
        };
        assert_eq!(runs_within(5.0), 21, "as many as 105 seconds have room for");
        assert_eq!(runs_within(20.0), 6, "the first runs of cells while there is time");
        assert_eq!(runs_within(1000.0), 1, "and not a moment longer");
        let mut whole = shipped("bridge-or-ovs").expect("it is shipped");
        let allows = |whole: &Study| {
            let mut budget = Budget::of(whole);
            budget.spend(1e9);
            budget.allows(&task(cells))
        };
        assert!(!allows(&whole));
        whole.load.budget_seconds = None;
        assert!(allows(&whole), "as long as it takes");
    }

    #[test]
    fn a_mean_is_precise_when_its_interval_is_narrow() {
        assert!(is_precise(&[100.0, 101.0, 99.0, 100.0], 0.02));
        assert!(!is_precise(&[100.0, 140.0, 60.0, 100.0], 0.05));
        assert!(!is_precise(&[100.0], 0.5), "one value has no interval");
    }
}
