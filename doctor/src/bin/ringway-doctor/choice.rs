//! Which of the changes that checks propose are selected, and which of those can be made.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use ringway_doctor::changes::guard;
use ringway_doctor::changes::journal::{DIRECTORY, Entry};
use ringway_doctor::changes::plan::{Disruption, Plan, impossible, plan, proposals};
use ringway_doctor::changes::settings::Settings;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Finding, Knob, Severity};
use ringway_doctor::report::Report;
use ringway_terminal::options::seconds;

use super::known_check;

/// Exit code: something was refused, or is not as requested.
pub(super) const NOT_ALL: u8 = 3;

/// Where transactions are written.
#[derive(Debug, Args)]
pub(super) struct Place {
    /// The directory of the journal
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    pub(super) journal: PathBuf,
}

/// The selection among the changes that checks propose.
#[derive(Debug, Args)]
pub(super) struct Choice {
    /// The checks
    #[arg(required = true, value_name = "ID", value_parser = known_check)]
    pub(super) ids: Vec<String>,
    /// Only findings about this interface or sysctl
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// Allow changes that can interrupt traffic: MTU, channels, rings
    #[arg(long)]
    allow_disruptive: bool,
    /// Seconds between the two samples
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds(1..=3600_u64))]
    pub(super) interval: u64,
    /// Also find the longest packet that reaches this host, for D08; may be repeated
    #[arg(long = "path", value_name = "HOST")]
    pub(super) paths: Vec<String>,
    #[command(flatten)]
    pub(super) place: Place,
}

impl Choice {
    /// What the checks find on this host.
    pub(super) fn findings(&self, host: &Host) -> Vec<Finding> {
        let mut findings = Report::of(host, &self.ids).findings;
        findings.retain(|finding| {
            finding.severity >= Severity::Note
                && self.subject.as_ref().is_none_or(|subject| *subject == finding.subject)
        });
        findings
    }

    /// The changes to make on this host.
    pub(super) fn plan(&self, findings: &[Finding]) -> Result<Plan> {
        let proposals = proposals(findings.iter()).map_err(anyhow::Error::msg)?;
        let disruption =
            if self.allow_disruptive { Disruption::Allowed } else { Disruption::Refused };
        let mut plan = plan(&Settings::live(), proposals, disruption, &guard::admin_links());
        plan.refused.extend(impossible(findings.iter()));
        Ok(plan)
    }
}

/// What a plan changes and what it leaves out, one line each.
pub(super) fn describe(plan: &Plan) -> String {
    let mut text = String::new();
    for Entry { check, knob, old, new, .. } in &plan.entries {
        text += &format!("  {check} {}: {old} -> {new}\n", knob.name());
    }
    for proposal in &plan.settled {
        let (name, value) = (proposal.change.knob.name(), &proposal.change.proposed);
        text += &format!("  {} {name} is {value} already\n", proposal.check);
    }
    for (proposal, why) in &plan.refused {
        text += &format!("  {} {} rejected: {why}\n", proposal.check, proposal.change.knob.name());
    }
    if text.is_empty() {
        text += "These checks found nothing that they can change.\n";
    }
    let is_moving = plan.entries.iter().any(|entry| matches!(entry.knob, Knob::IrqAffinity { .. }));
    if is_moving && guard::is_running("irqbalance") {
        text += "irqbalance is running and will move interrupts again: stop it, or exclude these \
             interrupts (--banirq).\n";
    }
    text
}
