//! How much of a host was checked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{Check, Ended};

/// How much was checked: the outcome of each selected check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Scope {
    /// Checks that ran. Evidence that they could not read is listed in the findings.
    pub ran: usize,
    /// Checks that could not read any of their evidence.
    pub unread: usize,
    /// Checks that do not apply, because the evidence shows that this host lacks their subject.
    pub not_here: usize,
    /// All checks, in order.
    pub checks: Vec<CheckOutcome>,
}

/// A check and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CheckOutcome {
    /// Such as `D18`.
    pub check: String,
    /// Its outcome.
    pub ended: How,
    /// Why it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// It ran.
    Ran,
    /// None of its evidence could be read.
    Unread,
    /// It does not apply: this host lacks its subject.
    NotHere,
}

impl Scope {
    /// Adds a check.
    pub(super) fn add(&mut self, check: &Check, ended: Ended) {
        let (count, ended, why) = match ended {
            Ended::Ran => (&mut self.ran, How::Ran, None),
            Ended::Unread(why) => (&mut self.unread, How::Unread, Some(why)),
            Ended::NotHere(why) => (&mut self.not_here, How::NotHere, Some(why)),
        };
        *count += 1;
        self.checks.push(CheckOutcome { check: check.id.to_owned(), ended, why });
    }

    /// Whether that is enough to say that nothing is wrong: most of the checks that apply to this
    /// host could read their evidence.
    pub fn is_enough(&self) -> bool {
        self.ran > 0 && self.ran >= self.unread
    }

    /// Those that did not run, for one of the two reasons.
    pub fn missed(&self, how: How) -> impl Iterator<Item = &CheckOutcome> {
        self.checks.iter().filter(move |one| one.ended == how)
    }

    /// A summary in one sentence, without a full stop.
    pub(super) fn summary(&self) -> String {
        let mut parts = vec![format!("{} of {} checks ran", self.ran, self.checks.len())];
        if self.unread > 0 {
            parts.push(format!("{} could not read their evidence", self.unread));
        }
        if self.not_here > 0 {
            parts.push(format!("{} do not apply to this host", self.not_here));
        }
        parts.join(", ")
    }
}
