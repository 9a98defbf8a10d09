//! D04: one CPU handles all the softirqs of a host.

use std::collections::BTreeSet;

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    Basis, Interfaces, NetIrq, NetIrqs, NicRole, Span, Tried, float, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::cpu::CpuTimes;
use ringway_evidence::parse::cpus::{cpu_mask, masked_cpus};
use ringway_evidence::parse::nic::{Moved, NicCounters};
use ringway_evidence::{Quote, Text};

pub(crate) const CHECK: Check = Check {
    id: "D04",
    slug: "crowded-softirqs",
    title: "one CPU handles all softirqs",
    group: Group::Processors,
    sources: &[
        "throughput-guide:softirq",
        "throughput-guide:card-queues",
        "throughput-guide:spread-interrupts",
        "throughput-guide:tools",
        "network-node-blog:one-core",
    ],
    explanation: include_str!("crowded_softirqs.txt"),
    absent: "one CPU",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        times: Span<CpuTimes>,
        nics: Interfaces,
        moved: Tried<Span<NicCounters>>,
        irqs: Tried<NetIrqs>,
    }
}

/// Share of a CPU's time in softirqs from which it is the busy one.
const BUSY: f64 = 0.6;
/// Median share of the others below which they are idle in comparison.
const IDLE: f64 = 0.2;

/// Interrupts per second of a network queue from which they keep a CPU busy. It is low, because a
/// queue that is polled continuously seldom interrupts.
const IRQS_MIN: f64 = 10.0;
/// Packets per second from which an interface counts as receiving.
const PACKETS_MIN: f64 = 1000.0;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.times;
    let mut shares: Vec<(f64, usize, usize)> = Vec::new();
    for (cpu, after) in &span.after.cpus {
        let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
        let spent = after.since(&before);
        shares.push((share(spent.softirq, spent.had()), *cpu, spent.line));
    }
    if shares.len() < 2 {
        return not_here(CHECK.absent);
    }
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (busy, cpu, line) = shares[0];
    // The median of the others, so that one of two CPUs can be seen as well.
    let others = &shares[1..];
    let (median, _, other) = others[others.len() / 2];
    let percent = busy * 100.0;
    if busy < BUSY || median >= IDLE {
        let summary = format!("softirqs take at most {percent:.0} % of a CPU (CPU {cpu})");
        out.well(summary, Some(span.text.quote(line)));
        return Ok(());
    }
    let summary = format!(
        "softirqs take {percent:.0} % of CPU {cpu}, and {:.0} % of most others",
        median * 100.0
    );
    let confidence = if span.basis == Basis::Samples { Confidence::High } else { Confidence::Low };
    let busy_nics = receiving(facts);
    let (cause, advice, quote) = brought_by(facts, cpu, &busy_nics);
    let finding = Finding::new(Severity::Problem, format!("CPU {cpu}"), summary)
        .cause(cause)
        .quote([span.text.quote(line), span.text.quote(other)])
        .quote(quote)
        .confidence(confidence)
        .advise(advice);
    let changes = packet_steering(facts, &span.after, &busy_nics);
    out.add([if changes.is_empty() {
        finding
    } else {
        finding.advise(Advice::by_change(
            "An interface with one queue can pass frames to all CPUs in software (RPS). It costs \
             an interrupt between CPUs for each batch.",
            changes,
        ))
    }]);
    Ok(())
}

/// Interfaces that receive packets; `None` if that is unknown.
fn receiving(facts: &Facts) -> Option<BTreeSet<String>> {
    let span = facts.moved.ok()?;
    let is_busy = |(nic, after): &(&String, &Moved)| {
        let before = span.past(span.before.nics.get(*nic));
        before.is_some_and(|before| {
            float(after.since(&before).rx_packets) / span.seconds >= PACKETS_MIN
        })
    };
    Some(span.after.nics.iter().filter(is_busy).map(|(nic, _)| nic.clone()).collect())
}

/// What brings the work to a CPU, as far as the evidence shows it, and what to do about that.
fn brought_by(
    facts: &Facts,
    cpu: usize,
    busy: &Option<BTreeSet<String>>,
) -> (String, Advice, Option<Quote>) {
    if let Some((nic, text)) = steered(facts, cpu, busy) {
        let cause = format!(
            "RPS of {nic} hands all its frames to this CPU alone, whatever CPU takes them in."
        );
        let advice = Advice::by_hand(
            "Let RPS use more CPUs, or turn it off if the interface has a queue for each CPU.",
            &[],
        );
        return (cause, advice, Some(text.quote(1)));
    }
    if let Some(by_interrupts) = interrupted(facts, cpu) {
        return by_interrupts;
    }
    let is_single = |nic: &&String| facts.nics.rx_queues(nic) == 1 && is_own(facts, nic);
    let single = busy.as_ref().and_then(|busy| busy.iter().find(is_single));
    if let Some(nic) = single {
        let cause = format!("{nic} receives with one queue, which one CPU serves.");
        let advice = Advice::by_hand("Use more queues, if it has them (D14).", &[SEE]);
        return (cause, advice, None);
    }
    if facts.irqs.ok().is_none() || busy.is_none() {
        let cause = "The source of this work is not visible: a card with one queue, a card whose \
                     queues this CPU serves alone, or programs of this host that send through \
                     virtual interfaces.";
        let advice = Advice::by_hand("Find out whose interrupts these are: D03, D14.", &[SEE]);
        return (cause.to_owned(), advice, None);
    }
    let cause = "No interrupt of a card arrives on it, and no card with one queue receives much. \
                 So programs of this host send through virtual interfaces, and that work, \
                 including filters, runs on the CPU that sends; or the softirqs are not from the \
                 network.";
    let advice = Advice::by_hand(
        "Find out which softirqs these are, and which programs run on that CPU. Move the programs \
         to other CPUs, or send less through filters and bridges.",
        &["cat /proc/softirqs"],
    );
    (cause.to_owned(), advice, None)
}

/// Shows which interrupts each CPU has.
const SEE: &str = "grep -E 'CPU|eth|en|vif|virtio' /proc/interrupts";

/// What to do about the card whose interrupts arrive on a CPU, if many do.
fn interrupted(facts: &Facts, cpu: usize) -> Option<(String, Advice, Option<Quote>)> {
    let known = facts.irqs.ok()?;
    let (span, irqs) = (&known.span, known.all());
    let column = span.after.cpus.iter().position(|one| *one == cpu);
    let on_it = |irq: &&NetIrq<'_>| column.and_then(|at| irq.counts.get(at)).copied().unwrap_or(0);
    let most = irqs.iter().max_by_key(on_it)?;
    let rate = float(on_it(&most)) / span.seconds;
    if rate < IRQS_MIN {
        return None;
    }
    let cause = format!(
        "{rate:.0} interrupts/s of {card} arrive on it: its card has one queue, or this CPU serves \
         all of them.",
        card = most.of.device
    );
    let advice = Advice::by_hand(
        "If the card has several lines, D03 spreads them; if it has one, use more queues (D14).",
        &[SEE],
    );
    Some((cause, advice, Some(span.text.quote(most.row.line))))
}

/// An interface whose frames RPS hands to one CPU only, from all its queues.
fn steered(facts: &Facts, cpu: usize, busy: &Option<BTreeSet<String>>) -> Option<(String, Text)> {
    let nics = busy.as_ref()?.iter();
    let mut all = nics.filter_map(|nic| {
        let queues = 0..facts.nics.rx_queues(nic);
        let masks: Option<Vec<Text>> =
            queues.map(|queue| facts.nics.rps_cpus(nic, queue)).collect();
        let masks = masks.filter(|masks| !masks.is_empty())?;
        let is_it = |text: &Text| masked_cpus(text.value()).is_some_and(|cpus| cpus == [cpu]);
        masks.iter().all(is_it).then(|| (nic.clone(), masks[0].clone()))
    });
    all.next()
}

/// Whether packets enter this host through an interface.
fn is_own(facts: &Facts, nic: &str) -> bool {
    !matches!(facts.nics.role(nic), NicRole::Software | NicRole::Backend)
}

/// Advice to use RPS for interfaces that receive packets by a single queue.
fn packet_steering(
    facts: &Facts,
    times: &CpuTimes,
    busy: &Option<BTreeSet<String>>,
) -> Vec<Change> {
    let online = times.cpus.keys().copied();
    let mut changes = Vec::new();
    for nic in facts.nics.names() {
        let rx = facts.nics.rx_queues(&nic);
        let is_idle = busy.as_ref().is_some_and(|busy| !busy.contains(&nic));
        let set = facts.nics.rps_cpus(&nic, 0);
        let has_rps =
            set.is_some_and(|text| masked_cpus(text.value()).is_some_and(|cpus| !cpus.is_empty()));
        if rx != 1 || is_idle || !(is_own(facts, &nic) || has_rps) {
            continue;
        }
        let current = facts.nics.rps_cpus(&nic, 0).map(|text| text.value().to_owned());
        let had = current.as_deref().and_then(masked_cpus).unwrap_or_default();
        if online.clone().all(|cpu| had.contains(&cpu)) {
            continue;
        }
        let knob = Knob::Rps { nic, queue: 0 };
        changes.extend(Change::replace(knob, current, cpu_mask(online.clone().chain(had))));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{host, net_dev, sampled};

    #[test]
    fn frames_that_rps_hands_to_one_cpu_are_its_work() {
        let mut files = sampled(|sample| {
            let (ticks, packets) = (90 * sample, 9000 * sample);
            let stat = format!("cpu0 0 0 0 {ticks} 0 0 0\ncpu1 0 0 0 9 0 0 {ticks}\nintr 0\n");
            let row = format!("veth0: 0 {packets} 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
            [("proc/stat", stat), ("proc/net/dev", net_dev(&row))]
        });
        let rps = "sys/class/net/veth0/queues/rx-0/rps_cpus";
        files.push((rps.to_owned(), "2\n".to_owned()));
        let found = CHECK.run(&host(files));
        assert!(found[0].cause.starts_with("RPS of veth0"), "{found:#?}");
        let command = "echo 3 > /sys/class/net/veth0/queues/rx-0/rps_cpus";
        assert_eq!(found[0].advice[1].commands, [command], "{found:#?}");
    }
}
