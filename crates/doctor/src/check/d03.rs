//! D03: all interrupts of the network on one CPU, which is full of them.

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::host::{Basis, Host, NetIrq, Span, float, share, sum};
use crate::parse::cpu::CpuTimes;
use crate::parse::interrupts::Interrupts;

pub(super) const CHECK: Check = Check {
    id: "D03",
    title: "all interrupts go to one CPU",
    group: Group::Processors,
    rows: &["G8", "G9", "G34", "P14", "P16", "L6"],
    explanation: include_str!("../../explain/D03.md"),
    look: Some(look),
};

/// Share of the interrupts from which one CPU has them all.
const SHARE_MIN: f64 = 0.9;
/// Share of its time in interrupts and softirqs from which a CPU is full of them.
const FULL: f64 = 0.8;
/// The same, from which it is on its way.
const BUSY: f64 = 0.4;
/// Fewer network interrupts a second than this are no load.
const RATE_MIN: f64 = 500.0;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn look(host: &Host) -> Looked {
    let span: Span<Interrupts> = host.span("proc/interrupts")?;
    let cpus = &span.after.cpus;
    if cpus.len() < 2 {
        return Err(Gap::NotHere("one CPU".to_owned()));
    }
    let seen = host.net_irqs(&span);
    if seen.is_empty() {
        return Err(Gap::NotHere("no interrupt of a network queue".to_owned()));
    }
    let per_cpu: Vec<u64> =
        (0..cpus.len()).map(|column| sum(seen.iter().map(|seen| &seen.counts[column]))).collect();
    let total = sum(&per_cpu);
    let rate = float(total) / span.seconds;
    let (column, most) =
        per_cpu.iter().enumerate().max_by_key(|(_, count)| **count).unwrap_or((0, &0));
    let cpu = cpus[column];
    let concentrated = share(*most, total);
    if rate < RATE_MIN || concentrated < SHARE_MIN {
        let summary =
            format!("{rate:.0} network interrupts/s, {:.0} % on CPU {cpu}", concentrated * 100.0);
        return Ok(vec![all_well(summary, None)]);
    }
    let times: Span<CpuTimes> = host.span("proc/stat")?;
    let Some(after) = times.after.cpus.get(&cpu) else {
        let why = format!("no line for CPU {cpu}, which takes interrupts");
        return Err(times.text.unreadable(None, why));
    };
    let Some(before) = times.past(times.before.cpus.get(&cpu)) else {
        return Err(times.text.unreadable(Some(after.line), "this CPU is new"));
    };
    let spent = after.since(&before);
    let busy = share(spent.softirq.saturating_add(spent.irq), spent.total);
    if busy < BUSY {
        let summary = format!(
            "CPU {cpu} takes {:.0} % of the network interrupts, and {:.0} % of its time for them",
            concentrated * 100.0,
            busy * 100.0
        );
        return Ok(vec![all_well(summary, Some(times.text.quote(spent.line)))]);
    }
    let summary = format!(
        "CPU {cpu} takes {:.0} % of {rate:.0} network interrupts/s, {:.0} % of its time",
        concentrated * 100.0,
        busy * 100.0
    );
    let severity = if busy >= FULL { Severity::Problem } else { Severity::Warning };
    let confidence = if span.basis == Basis::Samples { Confidence::High } else { Confidence::Low };
    let finding = Finding::new(severity, format!("CPU {cpu}"), summary)
        .cause("One CPU takes in what all queues bring, and the others cannot help it.")
        .quote(quotes(&span, &seen, column))
        .quote([times.text.quote(spent.line)])
        .confidence(confidence)
        .gain("about 16 % from spreading alone (row G33), more with many queues");
    Ok(vec![advise(finding, host, &seen, cpus)])
}

/// The lines with the most interrupts on the CPU.
fn quotes(span: &Span<Interrupts>, seen: &[NetIrq<'_>], column: usize) -> Vec<Quote> {
    let mut seen: Vec<&NetIrq<'_>> = seen.iter().filter(|seen| seen.counts[column] > 0).collect();
    seen.sort_by_key(|seen| std::cmp::Reverse(seen.counts[column]));
    seen.iter().take(QUOTES_MAX).map(|seen| span.text.quote(seen.row.line)).collect()
}

fn advise(finding: Finding, host: &Host, seen: &[NetIrq<'_>], cpus: &[usize]) -> Finding {
    let mut queues: Vec<(&String, Option<usize>)> = Vec::new();
    for one in seen.iter().filter(|seen| seen.counts.iter().any(|count| *count > 0)) {
        let queue = (&one.of.device, one.of.queue);
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    // In the order of D16, which would contradict otherwise.
    queues.sort_unstable();
    if queues.len() < 2 {
        return finding.advise(Advice::by_hand(
            "There is one queue, so there is nothing to spread: use more queues (D14), or let RPS \
             hand frames to other CPUs.",
            &["ringway doctor explain D14"],
        ));
    }
    // Both interrupts of a queue on one CPU, different queues on different ones (row P14).
    let change = |seen: &NetIrq<'_>| {
        let place = queues.iter().position(|queue| *queue == (&seen.of.device, seen.of.queue))?;
        let cpu = cpus[place % cpus.len()];
        let current = host.irq_affinity(seen.irq);
        let is_set = current.as_deref() == Some(cpu.to_string().as_str());
        (!is_set).then(|| Change::new(Knob::IrqAffinity { irq: seen.irq }, current, cpu))
    };
    finding.advise(Advice::by_change(
        "Spread the queues over the CPUs, both interrupts of a queue on the same one. Stop \
         irqbalance first, or it moves them back.",
        seen.iter().filter_map(change).collect(),
    ))
}
