//! D28: a card's interrupts are served on another NUMA node than its own, or a guest's CPUs are
//! pinned to unsuitable CPUs.

#[path = "placement/pinning.rs"]
mod pinning;

use std::collections::BTreeMap;

use crate::check::{Check, Group, Judged, Verdicts, not_here, placing, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    CardNodes, Guests, HostKind, Interfaces, Layout, NetIrq, NetIrqs, NumaNodes, Stack, Tried,
    XapiGuests, XenVcpus, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::cpus::cpu_list;
use ringway_evidence::{Gap, Quote};

pub(crate) const CHECK: Check = Check {
    id: "D28",
    slug: "placement",
    title: "queues, cards and guests' CPUs are in different places",
    group: Group::Processors,
    sources: &["throughput-guide:pinning"],
    explanation: include_str!("placement.txt"),
    absent: "no card reports its NUMA node",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        kind: HostKind,
        nodes: NumaNodes,
        irqs: Tried<NetIrqs>,
        nics: Interfaces,
        cards: CardNodes,
        stack: Stack,
        vcpus: Tried<XenVcpus>,
        xapi: Tried<XapiGuests>,
        guests: Guests,
    }
}

/// Share of a card's interrupts on another node, from which it matters.
const FOREIGN: f64 = 0.5;
/// Interrupts between the samples that are needed for a verdict.
const COUNT_MIN: u64 = 1000;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let pinned = Verdicts::part("no guests", |out| pinning::judge(facts, out));
    out.both(pinned, Verdicts::part(CHECK.absent, |out| cards(facts, out)), CHECK.title)
}

/// The CPUs of each NUMA node of this kernel.
fn nodes(facts: &Facts) -> Result<BTreeMap<usize, Vec<usize>>, Gap> {
    let mut nodes = BTreeMap::new();
    for (node, list) in facts.nodes.all()? {
        // A node without CPUs has an empty list.
        let cpus = if list.value().is_empty() { Some(Vec::new()) } else { cpu_list(list.value()) };
        let cpus = cpus.ok_or_else(|| list.unreadable(Some(1), "expected a list of CPUs"))?;
        nodes.insert(node, cpus);
    }
    if nodes.len() < 2 {
        return not_here("one NUMA node");
    }
    Ok(nodes)
}

/// The node of a card, with its line. -1 means that the device is near no node.
fn node_of(facts: &Facts, nic: &str) -> Option<(usize, Quote)> {
    let text = facts.cards.of(nic).ok()?;
    Some((text.value().parse().ok()?, text.quote(1)))
}

fn cards(facts: &Facts, out: &mut Verdicts) -> Judged {
    let nodes = nodes(facts)?;
    let known = facts.irqs.get()?;
    let span = &known.span;
    let irqs = known.all();
    let layout = known.layout(irqs.iter().filter(|irq| irq.came()), &span.after.cpus);
    let mut judged = 0;
    for nic in facts.nics.names() {
        let own: Vec<&NetIrq<'_>> = irqs.iter().filter(|irq| irq.of.device == nic).collect();
        let Some((node, quote)) = node_of(facts, &nic) else { continue };
        let Some(cpus) = nodes.get(&node) else { continue };
        judged += 1;
        out.add(far(known, &nic, &own, (cpus, &layout), quote));
    }
    if judged > 0 {
        out.well("cards are served on their own NUMA nodes", None);
    }
    Ok(())
}

fn far(
    known: &NetIrqs,
    nic: &str,
    irqs: &[&NetIrq<'_>],
    (near, layout): (&[usize], &Layout),
    quote: Quote,
) -> Option<Finding> {
    let span = &known.span;
    let (mut foreign, mut total) = (0_u64, 0_u64);
    for irq in irqs {
        for (cpu, count) in span.after.cpus.iter().zip(&irq.counts) {
            total = total.saturating_add(*count);
            if !near.contains(cpu) {
                foreign = foreign.saturating_add(*count);
            }
        }
    }
    let part = share(foreign, total);
    if total < COUNT_MIN || part < FOREIGN || near.is_empty() {
        return None;
    }
    let summary =
        format!("{:.0} % of {nic}'s interrupts arrive on another NUMA node", part * 100.0);
    let finding = Finding::new(Severity::Warning, nic, summary)
        .cause("Every packet that the card wrote is read from the other socket's memory.")
        .quote([quote])
        .quote(irqs.iter().take(QUOTES_MAX).map(|irq| span.text.quote(irq.row.line)))
        .confidence(Confidence::Medium)
        .advise(Advice::by_change(
            "Serve the card on its own node, then move the backend's threads and the guest's CPUs \
             there as well. Measure: pinning easily makes performance worse.",
            placing(known, layout, irqs.iter().copied()),
        ));
    Some(finding)
}
