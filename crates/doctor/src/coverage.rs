//! Which check or explanation answers each row of the source documents.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::CATALOGUE;

/// Something that is explained and is no check.
pub struct Topic {
    /// What `doctor explain` takes.
    pub id: &'static str,
    /// In one line.
    pub title: &'static str,
    /// The rows that it answers.
    pub rows: &'static [&'static str],
    /// The text.
    pub explanation: &'static str,
}

/// All of them.
pub static TOPICS: &[Topic] = &[Topic {
    id: "measuring",
    title: "how to measure before and after",
    rows: &[
        "G1", "G2", "G19", "G20", "G21", "G22", "G23", "G24", "G25", "G26", "G27", "G28", "G30",
        "G31", "W11", "W16",
    ],
    explanation: include_str!("../explain/measuring.md"),
}];

/// A row, and who answers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Covered {
    /// Such as `G13`.
    pub row: String,
    /// What it is about.
    pub about: String,
    /// Checks that look for it.
    pub checks: Vec<String>,
    /// Checks and topics that only explain it.
    pub explained: Vec<String>,
}

/// Every row, in the order of the documents.
pub fn coverage() -> Vec<Covered> {
    rows().map(|(row, about)| covered(row, about)).collect()
}

/// The rows that nothing answers.
pub fn missing(coverage: &[Covered]) -> Vec<&Covered> {
    coverage.iter().filter(|row| row.checks.is_empty() && row.explained.is_empty()).collect()
}

fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("../data/rows.txt").lines();
    lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '))
}

fn covered(row: &str, about: &str) -> Covered {
    let of_row = CATALOGUE.iter().filter(|check| check.rows.contains(&row));
    let (looking, explaining): (Vec<_>, Vec<_>) = of_row.partition(|check| check.look.is_some());
    let topics = TOPICS.iter().filter(|topic| topic.rows.contains(&row)).map(|topic| topic.id);
    let explaining = explaining.iter().map(|check| check.id).chain(topics);
    Covered {
        row: row.to_owned(),
        about: about.to_owned(),
        checks: looking.iter().map(|check| check.id.to_owned()).collect(),
        explained: explaining.map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows that the doctor has to answer, by their ranges in the documents.
    fn required() -> impl Iterator<Item = String> {
        let ranges = [("G", 1, 70), ("W", 1, 17), ("P", 12, 16), ("L", 9, 9), ("A", 6, 8)];
        ranges.into_iter().flat_map(|(letter, first, last)| {
            (first..=last).map(move |number| format!("{letter}{number}"))
        })
    }

    #[test]
    fn every_row_is_answered() {
        let coverage = coverage();
        assert_eq!(missing(&coverage), Vec::<&Covered>::new());
        for row in required() {
            assert!(coverage.iter().any(|covered| covered.row == row), "{row} is not listed");
        }
    }

    #[test]
    fn no_check_answers_a_row_that_is_not_there() {
        let checks = CATALOGUE.iter().map(|check| (check.id, check.rows));
        let topics = TOPICS.iter().map(|topic| (topic.id, topic.rows));
        for (id, answered) in checks.chain(topics) {
            for row in answered {
                assert!(rows().any(|(known, _)| known == *row), "{id} names {row}");
            }
        }
    }

    #[test]
    fn what_answers_a_row_speaks_of_it() {
        for topic in TOPICS {
            for row in topic.rows {
                assert!(topic.explanation.contains(row), "{} does not name {row}", topic.id);
            }
        }
        for check in CATALOGUE {
            for row in check.rows {
                assert!(check.explanation.contains(row), "{} does not name {row}", check.id);
            }
        }
    }
}
