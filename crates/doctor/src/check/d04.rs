//! D04: one CPU does all the softirqs of a host, the others none.

use super::{Check, Group, Looked, all_well};
use crate::evidence::Gap;
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::host::{Basis, Host, NicRole, Span, share};
use crate::parse::cpu::CpuTimes;
use crate::parse::cpus::{cpu_mask, masked_cpus};

pub(super) const CHECK: Check = Check {
    id: "D04",
    title: "one CPU does all the deferred work",
    group: Group::Processors,
    rows: &["G10", "G11", "G12", "G29", "W4"],
    explanation: include_str!("../../explain/D04.md"),
    look: Some(look),
};

/// Share of a CPU's time in softirqs from which it is the one.
const BUSY: f64 = 0.6;
/// Share below which the others idle in comparison: their median.
const IDLE: f64 = 0.2;

fn look(host: &Host) -> Looked {
    let span: Span<CpuTimes> = host.span("proc/stat")?;
    let mut shares: Vec<(f64, usize, usize)> = Vec::new();
    for (cpu, after) in &span.after.cpus {
        let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
        let spent = after.since(&before);
        shares.push((share(spent.softirq, spent.had()), *cpu, spent.line));
    }
    if shares.len() < 2 {
        return Err(Gap::NotHere("one CPU".to_owned()));
    }
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (busy, cpu, line) = shares[0];
    // The median of the others, so that one of two CPUs can be seen as well.
    let others = &shares[1..];
    let (median, _, other) = others[others.len() / 2];
    let percent = busy * 100.0;
    if busy < BUSY || median >= IDLE {
        let summary = format!("softirqs take at most {percent:.0} % of a CPU (CPU {cpu})");
        return Ok(vec![all_well(summary, Some(span.text.quote(line)))]);
    }
    let summary = format!(
        "softirqs take {percent:.0} % of CPU {cpu}, and {:.0} % of most others",
        median * 100.0
    );
    let confidence = if span.basis == Basis::Samples { Confidence::High } else { Confidence::Low };
    let finding = Finding::new(Severity::Problem, format!("CPU {cpu}"), summary)
        .cause("All interrupts of a card are on it, or the card has one queue.")
        .quote([span.text.quote(line), span.text.quote(other)])
        .confidence(confidence)
        .advise(Advice::by_hand(
            "See whose interrupts they are. Several lines of one card: D03 spreads them; one line: \
             use more queues (D14).",
            &["grep -E 'CPU|eth|en|vif|virtio' /proc/interrupts"],
        ));
    let changes = packet_steering(host, &span.after);
    Ok(vec![if changes.is_empty() {
        finding
    } else {
        finding.advise(Advice::by_change(
            "A card with one queue can hand frames to all CPUs in software (RPS). It costs an \
             interrupt between CPUs for each batch.",
            changes,
        ))
    }])
}

/// RPS for interfaces that receive by one queue.
fn packet_steering(host: &Host, times: &CpuTimes) -> Vec<Change> {
    let online = times.cpus.keys().copied();
    let mut changes = Vec::new();
    for nic in host.nics() {
        let rx = host.rx_queues(&nic);
        if rx != 1 || matches!(host.role(&nic), NicRole::Software | NicRole::Backend) {
            continue;
        }
        let path = format!("sys/class/net/{nic}/queues/rx-0/rps_cpus");
        let current = host.file(&path).ok().map(|text| text.value().to_owned());
        let had = current.as_deref().and_then(masked_cpus).unwrap_or_default();
        if online.clone().all(|cpu| had.contains(&cpu)) {
            continue;
        }
        let knob = Knob::Rps { nic, queue: 0 };
        changes.extend(Change::replace(knob, current, cpu_mask(online.clone().chain(had))));
    }
    changes
}
