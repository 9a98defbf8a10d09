//! D03: one CPU handles all network interrupts and is saturated by them.

use crate::check::{Check, Group, Judged, Verdicts, not_here, placing, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{Basis, NetIrq, NetIrqs, Span, Tried, float, share, sum};
use ringway_evidence::facts;
use ringway_evidence::parse::cpu::CpuTimes;
use ringway_evidence::parse::cpus::cpu_list;
use ringway_evidence::parse::interrupts::Interrupts;

pub(crate) const CHECK: Check = Check {
    id: "D03",
    slug: "crowded-interrupts",
    title: "all interrupts go to one CPU",
    group: Group::Processors,
    sources: &[
        "throughput-guide:first-cpu",
        "throughput-guide:first-cpu-advice",
        "throughput-guide:windows-second-cpu",
        "multi-queue-study:interrupts",
        "multi-queue-study:rx-limits",
        "multi-queue-series:conditions",
    ],
    explanation: include_str!("crowded_interrupts.txt"),
    absent: "no interrupt of a network queue",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        irqs: NetIrqs,
        times: Tried<Span<CpuTimes>>,
    }
}

/// Share of the interrupts from which one CPU counts as having them all.
const SHARE_MIN: f64 = 0.9;
/// Share of its time in interrupts and softirqs from which a CPU is saturated.
const FULL: f64 = 0.8;
/// Share from which it is nearly saturated.
const BUSY: f64 = 0.4;
/// Network interrupts per second below which there is no load. It is low, because a queue that is
/// polled continuously seldom interrupts.
const RATE_MIN: f64 = 10.0;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.irqs.span;
    let cpus = &span.after.cpus;
    if cpus.len() < 2 {
        return not_here("one CPU");
    }
    let seen = facts.irqs.all();
    if seen.is_empty() {
        return Ok(());
    }
    let crowd = match busiest(span, &seen) {
        Ok(crowd) => crowd,
        Err(summary) => match only_allowed(facts, &seen) {
            Some(crowd) => crowd,
            None => {
                out.well(summary, None);
                return Ok(());
            }
        },
    };
    let cpu = crowd.cpu;
    let times = facts.times.get()?;
    let Some(after) = times.after.cpus.get(&cpu) else {
        let why = format!("no line for CPU {cpu}, which serves interrupts");
        return Err(times.text.unreadable(None, why));
    };
    let Some(before) = times.past(times.before.cpus.get(&cpu)) else {
        return Err(times.text.unreadable(Some(after.line), "this CPU is new"));
    };
    let spent = after.since(&before);
    let busy = share(spent.softirq.saturating_add(spent.irq), spent.had());
    let summary = format!("{}; they take {:.0} % of its time", crowd.how, busy * 100.0);
    if busy < BUSY {
        out.well(summary, Some(times.text.quote(spent.line)));
        return Ok(());
    }
    let severity = if busy >= FULL { Severity::Problem } else { Severity::Warning };
    let confidence = if span.basis == Basis::Samples { Confidence::High } else { Confidence::Low };
    let finding = Finding::new(severity, format!("CPU {cpu}"), summary)
        .cause("One CPU handles the frames of all queues, and the others cannot help it.")
        .quote(crowd.quotes)
        .quote([times.text.quote(spent.line)])
        .confidence(confidence)
        .gain("about 16 % from spreading alone (throughput guide), more with many queues");
    out.add([advise(finding, facts, &crowd.irqs, cpus)]);
    Ok(())
}

/// The CPU that all interrupts crowd on.
struct Crowd<'a> {
    cpu: usize,
    irqs: Vec<&'a NetIrq<'a>>,
    /// The beginning of a sentence.
    how: String,
    quotes: Vec<Quote>,
}

/// Finds the CPU by the counts; an error describes the counts if no CPU stands out.
fn busiest<'a>(span: &Span<Interrupts>, seen: &'a [NetIrq<'a>]) -> Result<Crowd<'a>, String> {
    let cpus = &span.after.cpus;
    let per_cpu: Vec<u64> =
        (0..cpus.len()).map(|column| sum(seen.iter().map(|seen| &seen.counts[column]))).collect();
    let total = sum(&per_cpu);
    let rate = float(total) / span.seconds;
    let (column, most) =
        per_cpu.iter().enumerate().max_by_key(|(_, count)| **count).unwrap_or((0, &0));
    let cpu = cpus[column];
    let concentrated = share(*most, total);
    let percent = concentrated * 100.0;
    if rate < RATE_MIN || concentrated < SHARE_MIN {
        return Err(format!("{rate:.0} network interrupts/s, {percent:.0} % on CPU {cpu}"));
    }
    let mut lines: Vec<&NetIrq<'_>> = seen.iter().filter(|seen| seen.counts[column] > 0).collect();
    lines.sort_by_key(|seen| std::cmp::Reverse(seen.counts[column]));
    Ok(Crowd {
        cpu,
        irqs: seen.iter().filter(|seen| seen.came()).collect(),
        how: format!("CPU {cpu} takes {percent:.0} % of {rate:.0} network interrupts/s"),
        quotes: lines.iter().take(QUOTES_MAX).map(|seen| span.text.quote(seen.row.line)).collect(),
    })
}

/// Finds the CPU by the affinities. A queue that always has packets is polled and no longer
/// interrupts; so the busier a CPU is, the fewer interrupts are counted.
fn only_allowed<'a>(facts: &Facts, seen: &'a [NetIrq<'a>]) -> Option<Crowd<'a>> {
    let allowed = |seen: &NetIrq<'_>| cpu_list(&facts.irqs.affinity(seen.irq)?);
    let cpus = allowed(seen.first()?)?;
    let [cpu] = cpus[..] else { return None };
    if seen.iter().any(|seen| allowed(seen).as_ref() != Some(&cpus)) {
        return None;
    }
    let quote = |seen: &NetIrq<'_>| facts.irqs.affinity_file(seen.irq).map(|text| text.quote(1));
    Some(Crowd {
        cpu,
        irqs: seen.iter().collect(),
        how: format!("only CPU {cpu} may serve the network interrupts, which polling masks"),
        quotes: seen.iter().filter_map(quote).take(QUOTES_MAX).collect(),
    })
}

fn advise(finding: Finding, facts: &Facts, seen: &[&NetIrq<'_>], cpus: &[usize]) -> Finding {
    let layout = facts.irqs.layout(seen.iter().copied(), cpus);
    if layout.queues.len() < 2 {
        return finding.advise(Advice::by_hand(
            "There is one queue, so there is nothing to spread: use more queues (D14), or let RPS \
             pass frames to other CPUs.",
            &["ringway doctor explain D14"],
        ));
    }
    finding.advise(Advice::by_change(
        "Spread the queues over the CPUs near their card, both interrupts of a queue on the same \
         one. Stop irqbalance first, or it moves them back.",
        placing(&facts.irqs, &layout, seen.iter().copied()),
    ))
}
