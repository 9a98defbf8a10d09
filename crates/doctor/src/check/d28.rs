//! D28: a card's interrupts are served on another NUMA node than its own, or a guest's CPUs are
//! held to where they cannot do well.

mod pinning;

use std::collections::BTreeMap;

use super::{Check, Group, Looked, all_well, both, placing};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::host::{Host, Layout, NetIrq, Span, share};
use crate::parse::cpus::cpu_list;
use crate::parse::interrupts::Interrupts;

pub(super) const CHECK: Check = Check {
    id: "D28",
    title: "queues, cards and guests' CPUs are in different places",
    group: Group::Processors,
    sources: &["throughput-guide:pinning"],
    explanation: include_str!("../../explain/D28.md"),
    look: Some(look),
};

/// Share of a card's interrupts that come on another node.
const FOREIGN: f64 = 0.5;
/// Interrupts between the samples that are needed to tell.
const COUNT_MIN: u64 = 1000;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn look(host: &Host) -> Looked {
    both(pinning::look(host), cards(host), CHECK.title)
}

/// The CPUs of each NUMA node of this kernel.
fn nodes(host: &Host) -> Result<BTreeMap<usize, Vec<usize>>, Gap> {
    let mut nodes = BTreeMap::new();
    for name in host.list("sys/devices/system/node") {
        let Some(node) = name.strip_prefix("node").and_then(|node| node.parse().ok()) else {
            continue;
        };
        let list = host.file(&format!("sys/devices/system/node/{name}/cpulist"))?;
        // A node without CPUs has an empty list.
        let cpus = if list.value().is_empty() { Some(Vec::new()) } else { cpu_list(list.value()) };
        let cpus = cpus.ok_or_else(|| list.unreadable(Some(1), "expected a list of CPUs"))?;
        nodes.insert(node, cpus);
    }
    if nodes.len() < 2 {
        return Err(Gap::NotHere("one NUMA node".to_owned()));
    }
    Ok(nodes)
}

/// The node of a card, and the line that says so. -1 stands for a device that is near no node.
fn node_of(host: &Host, nic: &str) -> Option<(usize, Quote)> {
    let text = host.file(&format!("sys/class/net/{nic}/device/numa_node")).ok()?;
    Some((text.value().parse().ok()?, text.quote(1)))
}

fn cards(host: &Host) -> Looked {
    let nodes = nodes(host)?;
    let span: Span<Interrupts> = host.span("proc/interrupts")?;
    let irqs = host.net_irqs(&span);
    let mut findings = Vec::new();
    let layout = host.irq_layout(irqs.iter().filter(|irq| irq.came()), &span.after.cpus);
    let mut judged = 0;
    for nic in host.nics() {
        let own: Vec<&NetIrq<'_>> = irqs.iter().filter(|irq| irq.of.device == nic).collect();
        let Some((node, quote)) = node_of(host, &nic) else { continue };
        let Some(cpus) = nodes.get(&node) else { continue };
        judged += 1;
        findings.extend(judge(host, &nic, &span, &own, (cpus, &layout), quote));
    }
    if judged == 0 {
        return Err(Gap::NotHere("no card says its NUMA node".to_owned()));
    }
    if findings.is_empty() {
        findings.push(all_well("cards are served on their own NUMA nodes", None));
    }
    Ok(findings)
}

fn judge(
    host: &Host,
    nic: &str,
    span: &Span<Interrupts>,
    irqs: &[&NetIrq<'_>],
    (near, layout): (&[usize], &Layout),
    quote: Quote,
) -> Option<Finding> {
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
    let summary = format!("{:.0} % of {nic}'s interrupts come on another NUMA node", part * 100.0);
    let finding = Finding::new(Severity::Warning, nic, summary)
        .cause("Every packet that the card wrote is fetched from the other socket's memory.")
        .quote([quote])
        .quote(irqs.iter().take(QUOTES_MAX).map(|irq| span.text.quote(irq.row.line)))
        .confidence(Confidence::Medium)
        .advise(Advice::by_change(
            "Serve the card on its own node, then move the backend's threads and the guest's CPUs \
             there as well. Measure: pinning easily makes things worse.",
            placing(host, layout, irqs.iter().copied()),
        ));
    Some(finding)
}
