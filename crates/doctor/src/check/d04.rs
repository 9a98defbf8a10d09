//! D04: one CPU does all the softirqs of a host, the others none.

use std::collections::BTreeSet;

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::host::{Basis, Host, NetIrq, NicRole, Span, float, share};
use crate::parse::cpu::CpuTimes;
use crate::parse::cpus::{cpu_mask, masked_cpus};
use crate::parse::interrupts::Interrupts;
use crate::parse::nic::{Moved, NicCounters};

pub(super) const CHECK: Check = Check {
    id: "D04",
    title: "one CPU does all the deferred work",
    group: Group::Processors,
    sources: &[
        "throughput-guide:softirq",
        "throughput-guide:card-queues",
        "throughput-guide:spread-interrupts",
        "throughput-guide:tools",
        "network-node-blog:one-core",
    ],
    explanation: include_str!("../../explain/D04.md"),
    look: Some(look),
};

/// Share of a CPU's time in softirqs from which it is the one.
const BUSY: f64 = 0.6;
/// Share below which the others idle in comparison: their median.
const IDLE: f64 = 0.2;

/// Interrupts of a network queue a second from which they are what keeps a CPU busy. It is low,
/// because a queue that is polled without a pause interrupts seldom.
const IRQS_MIN: f64 = 10.0;
/// Packets a second from which an interface receives anything.
const PACKETS_MIN: f64 = 1000.0;

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
    let busy_nics = receiving(host);
    let (cause, advice, quote) = brought_by(host, cpu, &busy_nics);
    let finding = Finding::new(Severity::Problem, format!("CPU {cpu}"), summary)
        .cause(cause)
        .quote([span.text.quote(line), span.text.quote(other)])
        .quote(quote)
        .confidence(confidence)
        .advise(advice);
    let changes = packet_steering(host, &span.after, &busy_nics);
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

/// Interfaces that receive packets; none if nothing says which.
fn receiving(host: &Host) -> Option<BTreeSet<String>> {
    let span: Span<NicCounters> = host.span("proc/net/dev").ok()?;
    let is_busy = |(nic, after): &(&String, &Moved)| {
        let before = span.past(span.before.nics.get(*nic));
        before.is_some_and(|before| {
            float(after.since(&before).rx_packets) / span.seconds >= PACKETS_MIN
        })
    };
    Some(span.after.nics.iter().filter(is_busy).map(|(nic, _)| nic.clone()).collect())
}

/// What brings the work to a CPU, as far as the evidence says it, and what to do about that.
fn brought_by(
    host: &Host,
    cpu: usize,
    busy: &Option<BTreeSet<String>>,
) -> (String, Advice, Option<Quote>) {
    let see = "grep -E 'CPU|eth|en|vif|virtio' /proc/interrupts";
    let span = host.span::<Interrupts>("proc/interrupts").ok();
    let irqs = span.as_ref().map(|span| host.net_irqs(span)).unwrap_or_default();
    let column = span.as_ref().and_then(|span| span.after.cpus.iter().position(|one| *one == cpu));
    let on_it = |irq: &&NetIrq<'_>| column.and_then(|at| irq.counts.get(at)).copied().unwrap_or(0);
    if let (Some(span), Some(most)) = (&span, irqs.iter().max_by_key(on_it)) {
        let rate = float(on_it(&most)) / span.seconds;
        if rate >= IRQS_MIN {
            let cause = format!(
                "{rate:.0} interrupts/s of {} come on it: its card has one queue, or all of them \
                 are served there.",
                most.of.device
            );
            let advice = Advice::by_hand(
                "Several lines of one card: D03 spreads them; one line: use more queues (D14).",
                &[see],
            );
            return (cause, advice, Some(span.text.quote(most.row.line)));
        }
    }
    let is_single = |nic: &&String| host.rx_queues(nic) == 1 && is_own(host, nic);
    let single = busy.as_ref().and_then(|busy| busy.iter().find(is_single));
    if let Some(nic) = single {
        let cause = format!("{nic} receives by one queue, which one CPU serves.");
        let advice = Advice::by_hand("Use more queues, if it has them (D14).", &[see]);
        return (cause, advice, None);
    }
    if span.is_none() || busy.is_none() {
        let cause = "What brings the work is not seen: a card with one queue, a card whose queues \
                     are all served there, or what programs of this host send through interfaces \
                     of software.";
        let advice = Advice::by_hand("See whose interrupts they are: D03, D14.", &[see]);
        return (cause.to_owned(), advice, None);
    }
    let cause = "No interrupt of a card comes on it, and no card with one queue receives much. So \
                 it is what programs of this host send through interfaces of software, which is \
                 done where they run, with its filters; or it is no network at all.";
    let advice = Advice::by_hand(
        "See which softirqs they are, and which programs run on that CPU; let those run on others, \
         or send less through filters and bridges.",
        &["cat /proc/softirqs"],
    );
    (cause.to_owned(), advice, None)
}

/// Whether an interface is where packets come into this host.
fn is_own(host: &Host, nic: &str) -> bool {
    !matches!(host.role(nic), NicRole::Software | NicRole::Backend)
}

/// RPS for interfaces that receive by one queue, of those that receive anything.
fn packet_steering(host: &Host, times: &CpuTimes, busy: &Option<BTreeSet<String>>) -> Vec<Change> {
    let online = times.cpus.keys().copied();
    let mut changes = Vec::new();
    for nic in host.nics() {
        let rx = host.rx_queues(&nic);
        let is_idle = busy.as_ref().is_some_and(|busy| !busy.contains(&nic));
        if rx != 1 || is_idle || !is_own(host, &nic) {
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
