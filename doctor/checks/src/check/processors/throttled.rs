//! D34: network programs are throttled, because their control group has used up its CPU quota.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Finding, Severity};
use ringway_evidence::fact::{Basis, Span, Tried, float, share};
use ringway_evidence::facts;
use ringway_evidence::parse::programs::{Quota, Quotas};

pub(crate) const CHECK: Check = Check {
    id: "D34",
    slug: "throttled",
    title: "a CPU quota stops a program",
    group: Group::Processors,
    sources: &[
        "kernel-sched-bwc:throttled",
        "kernel-sched-bwc:default-period",
        "kernel-sched-bwc:statistics",
    ],
    explanation: include_str!("throttled.txt"),
    absent: "there is no data on quotas of control groups",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        quotas: Tried<Span<Quotas>>,
    }
}

/// Fraction of throttled periods from which it is not by chance.
const STOPPED: f64 = 0.05;
/// The least number of throttled periods; a period is usually 100 ms.
const STOPPED_MIN: u64 = 3;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let Some(span) = facts.quotas.ok() else { return not_here(CHECK.absent) };
    if span.basis == Basis::SinceBoot {
        return not_here(CHECK.absent);
    }
    let count = span.after.groups.len();
    let quote = span.after.groups.values().next().map(|quota| span.text.quote(quota.line));
    out.well(format!("no program waits for its CPU quota ({count} groups have one)"), quote);
    for (path, after) in &span.after.groups {
        let Some(before) = span.before.groups.get(path) else { continue };
        out.add(of_group(span, path, before, after));
    }
    Ok(())
}

fn of_group(span: &Span<Quotas>, path: &str, before: &Quota, after: &Quota) -> Option<Finding> {
    let periods = after.periods.saturating_sub(before.periods);
    let stopped = after.throttled.saturating_sub(before.throttled);
    let part = share(stopped, periods);
    if stopped < STOPPED_MIN || part < STOPPED {
        return None;
    }
    let named = |(process, name): &(u64, String)| format!("{name} (process {process})");
    let programs: Vec<String> = after.programs.iter().map(named).collect();
    let programs = match programs.is_empty() {
        true => path.to_owned(),
        false => programs.join(", "),
    };
    let waited = float(after.throttled_us.saturating_sub(before.throttled_us)) / 1000.0;
    let summary = format!(
        "{programs}: stopped by its CPU quota in {:.0} % of all periods, {:.0} ms a second",
        part * 100.0,
        waited / span.seconds
    );
    let cpus = share(after.quota_us, after.period_us);
    let finding = Finding::new(Severity::Warning, path, summary)
        .cause(format!(
            "Its control group may use {cpus} CPUs, and used them up before the end of the \
             period. All its threads stop until the next period, and packets for them wait.",
            cpus = format_args!("{cpus:.2}")
        ))
        .quote([span.text.quote(after.line)]);
    if !after.is_network {
        let cause = "None of its programs seems to have a network socket, so it probably does not \
                     slow the network.";
        return Some(Finding { severity: Severity::Note, ..finding }.cause(cause));
    }
    let unit = path.rsplit('/').find(|name| name.ends_with(".service") && is_plain(name));
    let command = unit.map(|unit| format!("systemctl show -p CPUQuotaPerSecUSec {unit}"));
    let commands: Vec<&str> = command.iter().map(String::as_str).collect();
    Some(finding.advise(Advice::by_hand(
        "Give the group more CPU time: the CPU limit of the container, CPUQuota of the service, \
         or cpu.max of the group. Or let the program use less, with fewer threads.",
        &commands,
    )))
}

fn is_plain(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"@._-:".contains(&byte);
    name.bytes().all(is_letter) && !name.starts_with('-')
}
