//! How much of a host was checked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{Check, Ended};

/// How much was checked: of each check that was wanted, how it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Scope {
    /// Checks that ran; what they could not read of their evidence is among the findings.
    pub ran: usize,
    /// Checks that could read none of their evidence.
    pub unread: usize,
    /// Checks about what this host does not have, as far as the evidence says.
    pub not_here: usize,
    /// Each of them, in their order.
    pub checks: Vec<CheckOutcome>,
}

/// A check, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CheckOutcome {
    /// Such as `D18`.
    pub check: String,
    /// How it ended.
    pub ended: How,
    /// Why it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// It ran.
    Ran,
    /// None of its evidence could be read.
    Unread,
    /// It is about what this host does not have.
    NotHere,
}

impl Scope {
    /// Takes a check in.
    pub(super) fn add(&mut self, check: &Check, ended: Ended) {
        let (count, ended, why) = match ended {
            Ended::Ran => (&mut self.ran, How::Ran, None),
            Ended::Unread(why) => (&mut self.unread, How::Unread, Some(why)),
            Ended::NotHere(why) => (&mut self.not_here, How::NotHere, Some(why)),
        };
        *count += 1;
        self.checks.push(CheckOutcome { check: check.id.to_owned(), ended, why });
    }

    /// Whether that is enough to say that nothing is wrong: most of the checks that this host is
    /// one for could read their evidence.
    pub fn is_enough(&self) -> bool {
        self.ran > 0 && self.ran >= self.unread
    }

    /// Those that did not run, for one of the two reasons.
    pub fn missed(&self, how: How) -> impl Iterator<Item = &CheckOutcome> {
        self.checks.iter().filter(move |one| one.ended == how)
    }

    /// How much that is, in one sentence without its end.
    pub(super) fn summary(&self) -> String {
        let mut parts = vec![format!("{} of {} checks ran", self.ran, self.checks.len())];
        if self.unread > 0 {
            parts.push(format!("{} could not read their evidence", self.unread));
        }
        if self.not_here > 0 {
            parts.push(format!("{} are about what is not here", self.not_here));
        }
        parts.join(", ")
    }
}
