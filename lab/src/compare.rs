//! Compares two directories of records: what changed, and how certain that is.

use ringway_stats::{Ratio, holm, mean, ratio, welch};
use serde::Serialize;

use crate::analysis::{cell_name, values};
use crate::metric::{self, Better};
use crate::plan::primary_metric;
use crate::record::{Records, Run};

/// A change is reported if the probability that any of the cells changes so much by chance is below
/// this.
const CHANCE_MAX: f64 = 0.05;

/// Why two records cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// They are of different studies.
    #[error("one is of `{a}`, the other of `{b}`: compare two runs of the same study")]
    OtherStudy {
        /// The one study.
        a: String,
        /// The other.
        b: String,
    },
    /// No cell has runs in both.
    #[error("no cell was measured in both")]
    NothingInCommon,
}

/// What changed from one to the other.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Changes {
    /// The study.
    pub study: String,
    /// What differs between the two, such as the machine.
    pub differences: Vec<String>,
    /// Cell by cell.
    pub cells: Vec<Change>,
    /// Cells that only one of them has.
    pub only_in_one: Vec<String>,
}

/// What changed in a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Change {
    /// Subject and short name.
    pub cell: String,
    /// What is compared.
    pub metric: String,
    /// The mean before.
    pub before: f64,
    /// The mean after.
    pub after: f64,
    /// After divided by before.
    pub ratio: Option<Ratio>,
    /// The p-value of Welch's test, adjusted for the number of cells by Holm's method.
    pub chance: Option<f64>,
    /// The conclusion.
    pub verdict: Verdict,
}

/// The conclusion about a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is better now.
    Better,
    /// It is worse now.
    Worse,
    /// No significant change; the interval shows how large an undetected one could be.
    Unclear,
    /// There are too few runs for a test.
    TooFewRuns,
}

/// Compares `b` with `a`.
pub fn compare(a: &Records, b: &Records) -> Result<Changes, CompareError> {
    if a.study.id != b.study.id {
        let (a, b) = (a.study.id.clone(), b.study.id.clone());
        return Err(CompareError::OtherStudy { a, b });
    }
    let mut cells = Vec::new();
    let mut only_in_one = Vec::new();
    for subject in a.study.subjects() {
        let mut all = a.study.cells(subject);
        all.extend(b.study.cells(subject));
        all.sort();
        all.dedup();
        for cell in all {
            let name = cell_name(&a.study, subject, &cell);
            let runs = [a, b].map(|records| records.of_cell(subject, &cell).collect::<Vec<_>>());
            match change(a, &name, &runs) {
                Some(change) => cells.push(change),
                None if runs.iter().any(|runs| !runs.is_empty()) => only_in_one.push(name),
                None => {}
            }
        }
    }
    if cells.is_empty() {
        return Err(CompareError::NothingInCommon);
    }
    judge(&mut cells);
    let mut differences = a.host.differences(&b.host);
    if a.study.load != b.study.load || a.study.setup != b.study.setup {
        differences.push("the study: length of runs, or fixed parameters".to_owned());
    }
    Ok(Changes { study: a.study.id.clone(), differences, cells, only_in_one })
}

fn change(records: &Records, name: &str, [before, after]: &[Vec<&Run>; 2]) -> Option<Change> {
    let both: Vec<&Run> = before.iter().chain(after).copied().collect();
    let metric = primary_metric(&records.study, &both)?;
    let (before, after) = (values(before, metric), values(after, metric));
    (!before.is_empty() && !after.is_empty()).then(|| Change {
        cell: name.to_owned(),
        metric: metric.to_owned(),
        before: mean(&before),
        after: mean(&after),
        ratio: ratio(&after, &before),
        chance: chance(&before, &after),
        verdict: Verdict::TooFewRuns,
    })
}

/// The probability of such a difference by chance; `None` for a single run. Without any spread,
/// nothing is due to chance.
fn chance(before: &[f64], after: &[f64]) -> Option<f64> {
    let is_enough = before.len().min(after.len()) > 1;
    let is_equal = (mean(after) - mean(before)).abs() <= 0.0;
    let exact = || is_enough.then_some(if is_equal { 1.0 } else { 0.0 });
    welch(before, after).map(|test| test.chance).or_else(exact)
}

/// Adjusts the p-values for the number of tests, and decides.
fn judge(cells: &mut [Change]) {
    let chances: Vec<f64> = cells.iter().filter_map(|cell| cell.chance).collect();
    let tested = cells.iter_mut().filter(|cell| cell.chance.is_some());
    for (cell, chance) in tested.zip(holm(&chances)) {
        let better = metric::find(&cell.metric).map_or(Better::More, |metric| metric.better);
        let is_more = cell.after > cell.before;
        cell.chance = Some(chance);
        cell.verdict = match (chance < CHANCE_MAX, is_more == (better == Better::More)) {
            (false, _) => Verdict::Unclear,
            (true, true) => Verdict::Better,
            (true, false) => Verdict::Worse,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_spread_nothing_is_due_to_chance() {
        assert_eq!(chance(&[1.0; 5], &[2.0; 5]), Some(0.0));
        assert_eq!(chance(&[1.0; 5], &[1.0; 5]), Some(1.0));
        assert_eq!(chance(&[1.0], &[2.0]), None);
    }
}
