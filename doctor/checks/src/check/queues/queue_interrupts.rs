//! D16: the two interrupts of a queue on different CPUs, or two queues on one while others idle.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{Check, Group, Judged, Verdicts, placing, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    Interfaces, Layout, NetIrq, NetIrqs, NicRole, Queue, Span, float, sum,
};
use ringway_evidence::facts;
use ringway_evidence::parse::cpus::{cpu_mask, masked_cpus};
use ringway_evidence::parse::interrupts::Interrupts;
use ringway_evidence::{Quote, Text};

pub(crate) const CHECK: Check = Check {
    id: "D16",
    slug: "queue-interrupts",
    title: "a queue's interrupts are on different CPUs",
    group: Group::Queues,
    sources: &[
        "multi-queue-study:interrupts",
        "throughput-guide:interrupts-by-hand",
        "throughput-guide:read-queues",
    ],
    explanation: include_str!("queue_interrupts.txt"),
    absent: "one CPU, or no queue with an interrupt",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        irqs: NetIrqs,
        nics: Interfaces,
    }
}

/// Interrupts a second from which a place on a CPU matters.
const RATE_MIN: f64 = 500.0;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.irqs.span;
    let cpus = &span.after.cpus;
    let irqs = facts.irqs.all();
    let mut queues: BTreeMap<Queue, Vec<&NetIrq<'_>>> = BTreeMap::new();
    for irq in &irqs {
        let count = sum(&irq.counts);
        if float(count) / span.seconds >= RATE_MIN {
            queues.entry(irq.queue()).or_default().push(irq);
        }
    }
    if cpus.len() < 2 || irqs.is_empty() {
        return Ok(());
    }
    let torn =
        queues.values().filter(|irqs| irqs.windows(2).any(|two| column(two[0]) != column(two[1])));
    let torn: Vec<&NetIrq<'_>> = torn.flatten().copied().collect();
    let mut used: BTreeMap<usize, Vec<&NetIrq<'_>>> = BTreeMap::new();
    for irqs in queues.values() {
        used.entry(column(irqs[0])).or_default().push(irqs[0]);
    }
    let shared: Vec<&NetIrq<'_>> =
        used.values().filter(|irqs| irqs.len() > 1).flatten().copied().collect();
    // A card near few CPUs has its queues on them, however many others there are.
    let layout = facts.irqs.layout(irqs.iter().filter(|irq| irq.came()), cpus);
    let planned: BTreeSet<usize> =
        queues.keys().filter_map(|queue| layout.queues.get(queue).copied()).collect();
    let is_crowded = !shared.is_empty() && used.len() < planned.len();
    let mut findings = Vec::new();
    if !torn.is_empty() {
        let summary = "tx and rx interrupts of a queue arrive on different CPUs";
        findings.push(finding(span, &torn, summary));
    }
    if is_crowded {
        let summary =
            format!("{} queues share {} of {} CPUs", queues.len(), used.len(), cpus.len());
        findings.push(finding(span, &shared, &summary));
    }
    let strays = strays(facts, &queues, cpus);
    if !strays.is_empty() {
        let summary = "CPUs send by queues whose interrupts arrive on other CPUs (XPS)";
        let irqs: Vec<&NetIrq<'_>> = strays.iter().map(|stray| stray.irq).collect();
        let masks = strays.iter().take(QUOTES_MAX).map(|stray| stray.mask.quote(1));
        findings.push(finding(span, &irqs, summary).quote(masks));
    }
    let Some(first) = findings.pop() else {
        out.well(format!("{} busy queues, each on its own CPU", queues.len()), None);
        return Ok(());
    };
    findings.push(first.advise(one_layout(facts, &layout, &irqs)));
    if let [others @ .., last] = findings.as_mut_slice() {
        others.iter_mut().for_each(|other| other.advice.clone_from(&last.advice));
    }
    out.add(findings);
    Ok(())
}

/// One layout fixes all.
fn one_layout<'a>(facts: &Facts, layout: &Layout, irqs: &'a [NetIrq<'a>]) -> Advice {
    let mut changes = placing(&facts.irqs, layout, irqs);
    changes.extend(steering(facts, layout));
    Advice::by_change(
        "Stop irqbalance first. Then put each queue on its own CPU near its card, with both of \
         its interrupts, and let that CPU send by it. The backend's thread of a queue follows its \
         interrupts, or can be bound with taskset.",
        changes,
    )
}

/// A queue that is sent by from other CPUs than that of its interrupts.
struct Stray<'a> {
    irq: &'a NetIrq<'a>,
    mask: Text,
}

/// Queues of which XPS is in use and leaves out the CPU of their interrupts.
fn strays<'a>(
    facts: &Facts,
    queues: &BTreeMap<Queue, Vec<&'a NetIrq<'a>>>,
    cpus: &[usize],
) -> Vec<Stray<'a>> {
    let stray = |(queue, irqs): (&Queue, &Vec<&'a NetIrq<'a>>)| {
        let irq = *irqs.first()?;
        let (mask, senders) = senders(facts, queue)?;
        let is_stray = !senders.contains(cpus.get(column(irq))?);
        is_stray.then_some(Stray { irq, mask })
    };
    queues.iter().filter_map(stray).collect()
}

/// The CPUs that XPS lets send by a queue; none if it is not in use. Xen's drivers choose a queue
/// by a hash and do not ask it.
fn senders(facts: &Facts, (nic, queue): &Queue) -> Option<(Text, Vec<usize>)> {
    if facts.nics.role(nic) == NicRole::Backend || facts.nics.driver(nic).as_deref() == Some("vif")
    {
        return None;
    }
    let mask = facts.nics.xps_cpus(nic, (*queue)?)?;
    let cpus = masked_cpus(mask.value()).filter(|cpus| !cpus.is_empty())?;
    Some((mask, cpus))
}

/// XPS as the layout has it, where it is in use.
fn steering(facts: &Facts, layout: &Layout) -> Vec<Change> {
    let change = |(queue, cpu): (&Queue, &usize)| {
        let (mask, senders) = senders(facts, queue)?;
        let knob = Knob::Xps { nic: queue.0.clone(), queue: u32::try_from(queue.1?).ok()? };
        let change = Change::replace(knob, Some(mask.value().to_owned()), cpu_mask([*cpu]));
        change.filter(|_| senders != [*cpu])
    };
    layout.queues.iter().filter_map(change).collect()
}

/// The column on which most of an interrupt came.
fn column(irq: &NetIrq<'_>) -> usize {
    let most = irq.counts.iter().enumerate().max_by_key(|(_, count)| **count);
    most.map_or(0, |(column, _)| column)
}

fn finding(span: &Span<Interrupts>, irqs: &[&NetIrq<'_>], summary: &str) -> Finding {
    let quotes: Vec<Quote> =
        irqs.iter().take(QUOTES_MAX).map(|irq| span.text.quote(irq.row.line)).collect();
    let first = irqs.first().map(|irq| irq.of.device.clone()).unwrap_or_default();
    Finding::new(Severity::Warning, first, summary)
        .cause(
            "Data that both halves of a queue share moves between CPUs, or queues take turns on \
             one CPU.",
        )
        .quote(quotes)
        .confidence(Confidence::Medium)
}
