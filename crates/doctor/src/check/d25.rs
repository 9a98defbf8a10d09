//! D25: a backend spends its time calling the hypervisor.

use super::{Check, Group, Looked, all_well};
use crate::evidence::manifest::PROFILE;
use crate::evidence::{Gap, NicSettings};
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use crate::host::{Host, Kind, NicRole};
use crate::parse::coalesce::Coalescing;
use crate::parse::profile::{Profile, Sampled};

pub(super) const CHECK: Check = Check {
    id: "D25",
    title: "hypercalls take the time",
    group: Group::Processors,
    sources: &["arm64-latency-report:domain-switch"],
    explanation: include_str!("../../explain/D25.md"),
    look: Some(look),
};

/// Share of a backend's time from which calls are the work.
const CALLS_MAX: f64 = 0.4;
/// Share of all samples below which the backend idles, and the shares of so few say nothing.
const WORK_MIN: f64 = 0.02;
/// Threads of backends, by the beginning of their names; softirqs are where vifs send from.
/// Microseconds that a card may wait: a tenth of what a round trip through a guest takes.
const WAIT_USECS: u64 = 50;
const BACKENDS: [&str; 5] = ["vif", "netback", "napi/vif", "ringway", "ksoftirqd"];
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn look(host: &Host) -> Looked {
    if !matches!(host.kind().kind, Kind::XenDom0 | Kind::XenDriverDomain) {
        return Err(Gap::NotHere("no backend of Xen".to_owned()));
    }
    let text = host.command(PROFILE[1])?;
    let profile = Profile::parse(&text)?;
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
        return Ok(vec![all_well(summary, quote)]);
    }
    let summary = format!("{:.0} % of the backend's time goes into hypercalls", part * 100.0);
    let finding = Finding::new(Severity::Warning, "hypercalls", summary)
        .cause(
            "Each notification, wait and batch of copies is a call of the hypervisor, and a \
             switch of domains behind it took 10 us on an Arm board. With few packets a \
             call, the calls are the work. Copies themselves are made in the call as well: that \
             part of it cannot be saved.",
        )
        .quote(calls.iter().take(QUOTES_MAX).map(|row| text.quote(row.line)))
        .confidence(Confidence::Medium);
    Ok(vec![advise(finding, host, &calls)])
}

fn is_backends(row: &Sampled) -> bool {
    BACKENDS.iter().any(|start| row.thread.starts_with(start))
}

/// A call, unless it is how a paravirtual kernel sleeps.
fn is_call(row: &Sampled) -> bool {
    row.symbol.starts_with("xen_hypercall_") && !row.symbol.contains("sched_op")
}

/// The command that lets a card wait for longer; none if it does, or does not say how long.
fn longer_wait(host: &Host, nic: &str) -> Option<String> {
    if host.role(nic) != NicRole::Physical || nic.starts_with('-') {
        return None;
    }
    let settings = host.settings(nic, NicSettings::Coalescing).ok()?;
    let (usecs, _) = Coalescing::parse(&settings).ok()?.usecs?;
    (usecs < WAIT_USECS).then(|| format!("ethtool -C {} rx-usecs {WAIT_USECS}", shell_word(nic)))
}

fn advise(finding: Finding, host: &Host, calls: &[&Sampled]) -> Finding {
    let of = |name: &str| calls.iter().any(|row| row.symbol.contains(name));
    let finding = if of("event_channel_op") {
        let command = host.nics().iter().find_map(|nic| longer_wait(host, nic));
        finding.advise(Advice::by_hand(
            "Notifications are among them. Let the card wait for more frames before it interrupts: \
             batches get larger, at the price of that much delay.",
            &command.iter().map(String::as_str).collect::<Vec<_>>(),
        ))
    } else {
        finding
    };
    finding.advise(Advice::by_hand(
        "Larger batches: fewer queues for the same load, offloads, so that a packet carries more \
         (D13); a newer backend; a domain 0 of type PVH, which enters its own kernel without the \
         hypervisor. See which calls they are:",
        &["xentrace -D -e 0x0020f000 -T 1 /dev/stdout | xenalyze --summary"],
    ))
}
