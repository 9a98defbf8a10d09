//! Rules for scripts: `transmit.q4.s8 >= 0.9*baseline`.
//!
//! ```text
//! rule   = side, (">=" | "<=" | ">" | "<"), side
//! side   = [number, "*"], (number | "baseline" | subject | [study, "."], cell)
//! number = digits, with an optional "k", "M" or "G"
//! cell   = a short name such as q4.s8, with an optional metric: q4.s8[rtt-p99-us]
//! ```
//!
//! `baseline` is the first baseline of the study, in the cell of the other side. A rule compares
//! means; the output also says whether the intervals settle it.

use std::fmt;
use std::str::FromStr;

use ringway_stats::{mean, student_interval, welch};
use serde::Serialize;

use crate::analysis::cell_values;
use crate::metric;
use crate::record::Records;
use crate::study::{Study, Subject};
use crate::value::Cell;

/// A rule that must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    text: String,
    left: Side,
    relation: Relation,
    right: Side,
}

#[derive(Debug, Clone, PartialEq)]
struct Side {
    factor: f64,
    term: Term,
}

#[derive(Debug, Clone, PartialEq)]
enum Term {
    Number(f64),
    /// `None` for the first baseline.
    Baseline(Option<Subject>),
    Cell {
        label: String,
        metric: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    AtLeast,
    AtMost,
    More,
    Less,
}

/// Why a rule is invalid, or cannot be checked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// It is malformed.
    #[error("`{text}` is no rule: {fault}; write one as in 'transmit.q4.s8 >= 0.9*baseline'")]
    Malformed {
        /// The rule.
        text: String,
        /// What is wrong.
        fault: String,
    },
    /// The records lack the data to check it.
    #[error("`{text}` cannot be checked: {fault}")]
    NoData {
        /// The rule.
        text: String,
        /// What is missing.
        fault: String,
    },
}

/// The result of a rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outcome {
    /// The rule.
    pub rule: String,
    /// Whether it holds for the means.
    pub holds: bool,
    /// Whether the data settle it at 95 % confidence; if not, another measurement might differ.
    pub is_certain: bool,
    /// What is compared.
    pub metric: String,
    /// Mean of the left side.
    pub left: f64,
    /// Mean of the right side.
    pub right: f64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "holds" } else { "FAILS" };
        let doubt = if self.is_certain { "" } else { ", not certain: the 95 % interval has both" };
        let show = |value| metric::find(&self.metric).map_or_else(String::new, |m| m.show(value));
        let (left, right) = (show(self.left), show(self.right));
        write!(f, "{verdict}: {} ({left} against {right}{doubt})", self.rule)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        let malformed =
            |fault: &str| RuleError::Malformed { text: text.to_owned(), fault: fault.to_owned() };
        // The longer ones first, so that `>=` is not read as `>`.
        let relations = [
            (">=", Relation::AtLeast),
            ("<=", Relation::AtMost),
            (">", Relation::More),
            ("<", Relation::Less),
        ];
        let found =
            relations.iter().find_map(|(sign, relation)| Some((text.split_once(sign)?, *relation)));
        let ((left, right), relation) = found.ok_or_else(|| malformed("it has no >= or <="))?;
        let side =
            |text: &str| Side::parse(text.trim()).ok_or_else(|| malformed("one side is empty"));
        let (left, right) = (side(left)?, side(right)?);
        if !matches!(left.term, Term::Cell { .. }) && !matches!(right.term, Term::Cell { .. }) {
            return Err(malformed("neither side is a cell"));
        }
        Ok(Rule { text: text.to_owned(), left, relation, right })
    }
}

impl Side {
    fn parse(text: &str) -> Option<Side> {
        let (factor, term) = match text.split_once('*') {
            Some((factor, term)) => (quantity(factor.trim())?, term.trim()),
            None => (1.0, text),
        };
        Some(Side { factor, term: Term::parse(term)? })
    }
}

impl Term {
    fn parse(text: &str) -> Option<Term> {
        if let Some(number) = quantity(text) {
            return Some(Term::Number(number));
        }
        if text == "baseline" {
            return Some(Term::Baseline(None));
        }
        if let Some(subject) = Subject::ALL.into_iter().find(|subject| subject.id() == text) {
            return Some(Term::Baseline(Some(subject)));
        }
        let (label, metric) = match text.split_once('[') {
            Some((label, rest)) => (label, Some(rest.strip_suffix(']')?.to_owned())),
            None => (text, None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        (!label.is_empty() && label.chars().all(is_name))
            .then(|| Term::Cell { label: label.to_owned(), metric })
    }
}

/// `9.4G` is 9.4e9.
fn quantity(text: &str) -> Option<f64> {
    let prefixes = [('k', 1e3), ('M', 1e6), ('G', 1e9)];
    let (digits, factor) = prefixes
        .iter()
        .find_map(|(prefix, factor)| Some((text.strip_suffix(*prefix)?, *factor)))
        .unwrap_or((text, 1.0));
    // Words that Rust parses as numbers, such as `inf`, are names here.
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit());
    digits.parse::<f64>().ok().filter(|_| is_number).map(|number| number * factor)
}

impl Rule {
    /// Checks that the rule names what the study has, so that it can be checked once the study is
    /// done.
    ///
    /// # Errors
    /// If it names something else.
    pub fn fits(&self, study: &Study) -> Result<(), RuleError> {
        let no_data = |fault: String| RuleError::NoData { text: self.text.clone(), fault };
        for side in [&self.left, &self.right] {
            match &side.term {
                Term::Number(_) => {}
                Term::Baseline(subject) => {
                    let is_there = match subject {
                        Some(subject) => study.baselines.contains(subject),
                        None => !study.baselines.is_empty(),
                    };
                    if !is_there {
                        return Err(no_data(format!("`{}` has no such baseline", study.id)));
                    }
                }
                Term::Cell { label, metric } => {
                    Self::cell(study, label).map_err(no_data)?;
                    if let Some(name) = metric.as_deref().filter(|m| metric::find(m).is_none()) {
                        return Err(no_data(format!("there is no metric `{name}`")));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks it with the records of a study.
    pub fn check(&self, records: &Records) -> Result<Outcome, RuleError> {
        let no_data = |fault: String| RuleError::NoData { text: self.text.clone(), fault };
        let of_cell = [&self.left, &self.right].into_iter().find_map(|side| match &side.term {
            Term::Cell { label, metric } => Some((label, metric)),
            _ => None,
        });
        let (label, metric) = of_cell.expect("a valid rule has a cell");
        let cell = Self::cell(&records.study, label).map_err(no_data)?;
        let metric = metric.as_deref().unwrap_or(&records.study.load.metric);
        if metric::find(metric).is_none() {
            return Err(no_data(format!("there is no metric `{metric}`")));
        }
        let values = |side: &Side| self.values(records, side, &cell, metric).map_err(no_data);
        let (left, right) = (values(&self.left)?, values(&self.right)?);
        let (left_mean, right_mean) = (mean(&left), mean(&right));
        let holds = match self.relation {
            Relation::AtLeast => left_mean >= right_mean,
            Relation::AtMost => left_mean <= right_mean,
            Relation::More => left_mean > right_mean,
            Relation::Less => left_mean < right_mean,
        };
        let is_certain = is_certain([(&self.left, &left), (&self.right, &right)]);
        Ok(Outcome {
            rule: self.text.clone(),
            holds,
            is_certain,
            metric: metric.to_owned(),
            left: left_mean,
            right: right_mean,
        })
    }

    /// The cell with a short name, which may have the study as a prefix.
    fn cell(study: &Study, label: &str) -> Result<Cell, String> {
        let plain = label.strip_prefix(&format!("{}.", study.id)).unwrap_or(label);
        study.cell_of_label(plain).ok_or_else(|| {
            if let Some(reason) = study.why_left_out(plain) {
                return format!("`{label}` was not measured: {reason}");
            }
            let example = study.cells(study.primary()).first().map(|cell| study.label(cell));
            let example = example.unwrap_or_default();
            format!("`{label}` is no cell of `{}`; one is {example}", study.id)
        })
    }

    fn values(
        &self,
        records: &Records,
        side: &Side,
        cell: &Cell,
        metric: &str,
    ) -> Result<Vec<f64>, String> {
        let study = &records.study;
        let (subject, cell) = match &side.term {
            Term::Number(number) => return Ok(vec![number * side.factor]),
            Term::Baseline(subject) => {
                let first = study.baselines.first().copied();
                let subject = subject.or(first).ok_or("the study has no baseline")?;
                (subject, study.projected(cell, subject))
            }
            Term::Cell { label, .. } => (study.primary(), Self::cell(study, label)?),
        };
        let values = cell_values(records, subject, &cell, metric);
        if values.is_empty() {
            let name = crate::analysis::cell_name(study, subject, &cell);
            return Err(format!("there is no {metric} of {name}"));
        }
        Ok(values.into_iter().map(|value| value * side.factor).collect())
    }
}

/// Whether the interval of the difference excludes 0. A plain number is exact.
fn is_certain(sides: [(&Side, &[f64]); 2]) -> bool {
    match sides {
        [(Side { term: Term::Number(_), .. }, [number]), (_, values)]
        | [(_, values), (Side { term: Term::Number(_), .. }, [number])] => {
            student_interval(values).is_some_and(|interval| !interval.has(*number))
        }
        [(_, left), (_, right)] => welch(left, right).is_some_and(|test| !test.difference.has(0.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_rule_is_refused_with_an_example() {
        for good in [
            "transmit.q4.s8 >= 0.9*baseline",
            "q4.s8>=9.4G",
            "latency.host.sockperf[rtt-p99-us] <= 500",
            "q8.s8 > 1.5 * q1.s8",
            "0.5*q8.s8 < baseline-tap-relay",
        ] {
            assert!(good.parse::<Rule>().is_ok(), "{good}");
        }
        for bad in
            ["", "q4.s8", "q4.s8 = 1", ">= 1", "1 >= 2", "q4 s8 >= 1", "q4[rtt >= 1", "x*q >= 1"]
        {
            let error = bad.parse::<Rule>().expect_err(bad).to_string();
            assert!(error.contains("baseline'"), "{error}");
        }
    }
}
