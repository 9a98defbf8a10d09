//! D25: a backend spends its time calling the hypervisor.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use ringway_evidence::fact::{Coalescence, CpuProfile, HostKind, Interfaces, Kind, NicRole, Tried};
use ringway_evidence::facts;
use ringway_evidence::parse::coalesce::Coalescing;
use ringway_evidence::parse::profile::{Profile, Sampled};

pub(crate) const CHECK: Check = Check {
    id: "D25",
    slug: "hypercalls",
    title: "the backend spends its time in hypercalls",
    group: Group::Processors,
    sources: &["arm64-latency-report:domain-switch"],
    explanation: include_str!("hypercalls.txt"),
    absent: "no backend of Xen",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        kind: HostKind,
        profile: Tried<CpuProfile>,
        nics: Interfaces,
        coalescence: Coalescence,
    }
}

/// Share of a backend's time from which hypercalls dominate.
const CALLS_MAX: f64 = 0.4;
/// Share of all samples below which the backend is idle, so that its own shares mean nothing.
const WORK_MIN: f64 = 0.02;
/// Threads of backends, by the beginning of their names; softirqs are where vifs send from.
/// Microseconds that a card may wait: a tenth of a round trip through a guest.
const WAIT_USECS: u64 = 50;
const BACKENDS: [&str; 5] = ["vif", "netback", "napi/vif", "ringway", "ksoftirqd"];
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    if !matches!(facts.kind.kind, Kind::XenDom0 | Kind::XenDriverDomain) {
        return not_here(CHECK.absent);
    }
    let CpuProfile(text) = facts.profile.get()?;
    let profile = Profile::parse(text)?;
    let rows: Vec<&Sampled> = profile.rows.iter().filter(|row| is_backends(row)).collect();
    let work: f64 = rows.iter().map(|row| row.share).sum();
    let calls: Vec<&Sampled> = rows.iter().filter(|row| is_call(row)).copied().collect();
    let spent: f64 = calls.iter().map(|row| row.share).sum();
    let part = if work > 0.0 { spent / work } else { 0.0 };
    if work < WORK_MIN || part <= CALLS_MAX {
        let summary = format!(
            "the backend is in {:.0} % of the samples, {:.0} % of that in hypercalls",
            work * 100.0,
            part * 100.0
        );
        let quote = rows.first().map(|row| text.quote(row.line));
        out.well(summary, quote);
        return Ok(());
    }
    let summary = format!("{:.0} % of the backend's time goes into hypercalls", part * 100.0);
    let finding = Finding::new(Severity::Warning, "hypercalls", summary)
        .cause(
            "Each notification, wait and batch of copies is a hypercall, and a switch of domains \
             took 10 us on an Arm board. With few packets in each hypercall, hypercalls dominate. \
             The copies themselves also happen inside the hypercall: that part cannot be saved.",
        )
        .quote(calls.iter().take(QUOTES_MAX).map(|row| text.quote(row.line)))
        .confidence(Confidence::Medium);
    out.add([advise(finding, facts, &calls)]);
    Ok(())
}

fn is_backends(row: &Sampled) -> bool {
    BACKENDS.iter().any(|start| row.thread.starts_with(start))
}

/// Whether it is a hypercall, except those with which a paravirtual kernel sleeps.
fn is_call(row: &Sampled) -> bool {
    row.symbol.starts_with("xen_hypercall_") && !row.symbol.contains("sched_op")
}

/// The command that lets a card wait longer; `None` if it already does, or if its wait is unknown.
fn longer_wait(facts: &Facts, nic: &str) -> Option<String> {
    if facts.nics.role(nic) != NicRole::Physical || nic.starts_with('-') {
        return None;
    }
    let settings = facts.coalescence.of(nic).ok()?;
    let (usecs, _) = Coalescing::parse(&settings).ok()?.usecs?;
    (usecs < WAIT_USECS).then(|| format!("ethtool -C {} rx-usecs {WAIT_USECS}", shell_word(nic)))
}

fn advise(finding: Finding, facts: &Facts, calls: &[&Sampled]) -> Finding {
    let of = |name: &str| calls.iter().any(|row| row.symbol.contains(name));
    let finding = if of("event_channel_op") {
        let command = facts.nics.names().iter().find_map(|nic| longer_wait(facts, nic));
        finding.advise(Advice::by_hand(
            "Notifications are a part of them. Let the card wait for more frames before it \
             interrupts: batches get larger, at the price of that delay.",
            &command.iter().map(String::as_str).collect::<Vec<_>>(),
        ))
    } else {
        finding
    };
    finding.advise(Advice::by_hand(
        "Use larger batches: fewer queues for the same load; offloads, so that a packet carries \
         more (D13); a newer backend; a domain 0 of type PVH, which enters its own kernel without \
         the hypervisor. To see which hypercalls they are:",
        &["xentrace -D -e 0x0020f000 -T 1 /dev/stdout | xenalyze --summary"],
    ))
}
