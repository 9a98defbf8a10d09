//! Decides which changes are made, and which are refused before anything is touched.

use std::collections::BTreeSet;

use super::journal::{Entry, Step};
use super::settings::{Settings, is_same};
use ringway_checks::finding::{Change, Finding};

/// A change that a finding proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The check.
    pub check: String,
    /// Its finding.
    pub reason: String,
    /// What to change.
    pub change: Change,
}

/// Whether changes that interrupt traffic are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disruption {
    /// They are made.
    Allowed,
    /// They are refused.
    Refused,
}

/// A plan, based on the current settings.
#[derive(Debug, Default)]
pub struct Plan {
    /// Changes to make.
    pub entries: Vec<Entry>,
    /// Proposals that are already in effect.
    pub settled: Vec<Proposal>,
    /// Proposals that will not be applied, and why.
    pub refused: Vec<(Proposal, String)>,
}

/// The changes that findings propose: for each finding, the first advice that a program can apply,
/// because the others are alternatives to it.
///
/// # Errors
/// If two of them propose different values for one setting; the sentence names both.
pub fn proposals<'a>(
    findings: impl IntoIterator<Item = &'a Finding>,
) -> Result<Vec<Proposal>, String> {
    let mut all: Vec<Proposal> = Vec::new();
    for finding in findings {
        let advice = finding.advice.iter().find(|advice| !advice.changes.is_empty());
        for change in advice.into_iter().flat_map(|advice| &advice.changes) {
            if let Some(other) = all.iter().find(|other| other.change.knob == change.knob) {
                if is_same(&change.knob, &other.change.proposed, &change.proposed) {
                    continue;
                }
                return Err(format!(
                    "{} needs {} to be {:?}, but {} needs {:?}: choose one of them",
                    other.check,
                    change.knob.name(),
                    other.change.proposed,
                    finding.check,
                    change.proposed
                ));
            }
            let (check, reason) = (finding.check.clone(), finding.summary.clone());
            all.push(Proposal { check, reason, change: change.clone() });
        }
    }
    Ok(all)
}

/// Changes of findings for which the host has none that can be made, and why: a program that is
/// asked for them must say so.
pub fn impossible<'a>(
    findings: impl IntoIterator<Item = &'a Finding>,
) -> impl Iterator<Item = (Proposal, String)> {
    let is_none = |finding: &&Finding| finding.advice.iter().all(|one| one.changes.is_empty());
    findings.into_iter().filter(is_none).flat_map(|finding| {
        let advice = finding.advice.iter().find(|advice| !advice.left_out.is_empty());
        let left_out = advice.into_iter().flat_map(|advice| &advice.left_out);
        left_out.map(|(change, why)| {
            let (check, reason) = (finding.check.clone(), finding.summary.clone());
            (Proposal { check, reason, change: change.clone() }, why.clone())
        })
    })
}

/// Compares proposals with the current settings. `admin_links` are the interfaces over which an
/// administrator may be logged in.
pub fn plan(
    settings: &Settings,
    proposals: Vec<Proposal>,
    disruption: Disruption,
    admin_links: &BTreeSet<String>,
) -> Plan {
    let mut plan = Plan::default();
    for proposal in proposals {
        let Change { knob, proposed, .. } = &proposal.change;
        let old = match settings.get(knob) {
            Ok(old) => old,
            Err(error) => {
                plan.refused.push((proposal, error.to_string()));
                continue;
            }
        };
        if is_same(knob, proposed, &old) {
            plan.settled.push(proposal);
        } else if let Some(why) = objection(&proposal, &old, disruption, admin_links) {
            plan.refused.push((proposal, why));
        } else {
            let interface_index = knob.nic().and_then(|nic| settings.interface_index(nic));
            let entry = Entry {
                knob: knob.clone(),
                old,
                new: proposed.clone(),
                check: proposal.check,
                reason: proposal.reason,
                interface_index,
                step: Step::Planned,
            };
            plan.entries.push(entry);
        }
    }
    plan
}

/// Why a change must not be made.
fn objection(
    proposal: &Proposal,
    old: &str,
    disruption: Disruption,
    admin_links: &BTreeSet<String>,
) -> Option<String> {
    let Change { knob, current, .. } = &proposal.change;
    if let Some(seen) = current.as_ref().filter(|seen| !is_same(knob, seen, old)) {
        return Some(format!("it was {seen:?} when it was checked, but is {old:?} now"));
    }
    if disruption == Disruption::Allowed || !knob.is_disruptive() {
        return None;
    }
    let is_admins = knob.nic().is_some_and(|nic| admin_links.contains(nic));
    Some(if is_admins {
        "it can take down the link that you may be logged in over; --allow-disruptive permits it"
            .to_owned()
    } else {
        "it can interrupt traffic; --allow-disruptive permits it".to_owned()
    })
}
