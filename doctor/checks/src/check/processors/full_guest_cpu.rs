//! D02: a guest's virtual CPU does nothing but run, as its host counts.

use std::collections::BTreeMap;

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{Basis, FULL, HostKind, Kind, Span, Tried, float, share};
use ringway_evidence::facts;
use ringway_evidence::parse::cpu::CpuTimes;
use ringway_evidence::parse::domains::VcpuTimes;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::threads::{Thread, Threads};
use ringway_evidence::{Gap, Quote};

pub(crate) const CHECK: Check = Check {
    id: "D02",
    slug: "full-guest-cpu",
    title: "a guest's CPU is full",
    group: Group::Processors,
    sources: &[
        "throughput-guide:guest-cpu",
        "throughput-guide:guest-cpu-advice",
        "throughput-guide:tools",
        "multi-queue-study:guest-cpus",
    ],
    explanation: include_str!("full_guest_cpu.txt"),
    absent: "no guests",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        kind: HostKind,
        vcpus: Tried<Span<VcpuTimes>>,
        moved: Tried<Span<NicCounters>>,
        threads: Tried<Span<Threads>>,
        times: Tried<Span<CpuTimes>>,
    }
}

const CAUSE: &str = "More packets arrive than this CPU can handle; the guest's other CPUs do not \
                     help the one that serves its queue or runs its application.";

/// Packets per second from which a guest's load is its network.
const PACKETS_MIN: f64 = 1000.0;
/// Ticks of a second in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    match facts.kind.kind {
        Kind::XenDom0 => xen(facts, out),
        Kind::KvmHost => kvm(facts, out),
        Kind::KvmGuest | Kind::XenGuest | Kind::OtherGuest => inside(facts, out),
        Kind::Bare | Kind::XenDriverDomain => not_here(CHECK.absent),
    }
}

fn xen(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = facts.vcpus.get()?;
    let mut full: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut most = (0.0, 0);
    for (key, after) in span.after.vcpus.iter().filter(|((domain, _), _)| *domain != 0) {
        let known = span.before.vcpus.get(key).map(|vcpu| vcpu.seconds);
        let Some(before) = span.past(known.as_ref()) else { continue };
        let busy = (after.seconds - before) / span.seconds;
        if busy > most.0 {
            most = (busy, after.line);
        }
        if busy >= FULL {
            full.entry(key.0).or_default().push(after.line);
        }
    }
    let quote = (most.1 > 0).then(|| span.text.quote(most.1));
    out.well(format!("no guest's CPU is full; the busiest runs {:.0} %", most.0 * 100.0), quote);
    out.add(full.iter().map(|(domain, lines)| of_domain(facts, span, *domain, lines)));
    Ok(())
}

fn of_domain(facts: &Facts, span: &Span<VcpuTimes>, domain: u32, lines: &[usize]) -> Finding {
    let vcpus = || span.after.vcpus.range((domain, 0)..=(domain, u32::MAX)).map(|(_, vcpu)| vcpu);
    let name = vcpus().next().map(|vcpu| vcpu.domain.clone()).unwrap_or_default();
    let (full, all) = (lines.len(), vcpus().count());
    let summary = format!("{full} of {all} CPUs of guest {name} (domain {domain}) are full");
    let quotes = lines.iter().take(QUOTES_MAX).map(|line| span.text.quote(*line));
    let finding = Finding::new(Severity::Problem, name, summary).cause(CAUSE).quote(quotes);
    let finding = match traffic(facts, domain) {
        Ok((rate, quote)) if rate < PACKETS_MIN => {
            let cause = format!(
                "It moves {rate} packets/s, so its network is not the cause.",
                rate = format_args!("{rate:.0}")
            );
            return Finding { severity: Severity::Note, ..finding }.cause(cause).quote(quote);
        }
        Ok((_, quote)) => finding.quote(quote).confidence(Confidence::High),
        Err(gap) => {
            let cause = format!(
                "A guest whose CPU is full moves no more packets. Whether its network fills the \
                 CPU is unknown: {gap}."
            );
            return Finding { severity: Severity::Note, ..finding }
                .cause(cause)
                .confidence(Confidence::Low);
        }
    };
    let finding = advise(finding);
    let more = format!("xl vcpu-set {domain} {}", all + 1);
    let finding = finding.advise(Advice::by_hand(
        "Then give it another CPU, within its configuration's maxvcpus, and a queue for it (D14).",
        &[&more],
    ));
    if span.basis == Basis::Samples {
        return finding;
    }
    // Averaged since boot, so the present value is at least that much.
    Finding { severity: Severity::Warning, ..finding }.confidence(Confidence::Low)
}

/// Packets a second through the vifs of a domain, with the busiest's line.
fn traffic(facts: &Facts, domain: u32) -> Result<(f64, Option<Quote>), Gap> {
    let span = facts.moved.get()?;
    let start = format!("vif{domain}.");
    let (mut packets, mut most) = (0_u64, (0, 0));
    for (nic, after) in span.after.nics.iter().filter(|(nic, _)| nic.starts_with(&start)) {
        let Some(before) = span.past(span.before.nics.get(nic)) else { continue };
        let moved = after.since(&before).packets();
        packets = packets.saturating_add(moved);
        most = most.max((moved, after.line));
    }
    let quote = (most.1 > 0).then(|| span.text.quote(most.1));
    Ok((float(packets) / span.seconds, quote))
}

fn kvm(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = facts.threads.get()?;
    let mut full: Vec<(&Thread, u64)> = Vec::new();
    let mut is_any = false;
    for (id, thread) in &span.after.threads {
        if !(thread.name.starts_with("CPU ") && thread.name.ends_with("/KVM")) {
            continue;
        }
        is_any = true;
        let known = span.before.threads.get(id).map(|thread| thread.ticks);
        let Some(before) = span.past(known.as_ref()) else { continue };
        let ticks = thread.ticks.saturating_sub(before);
        if float(ticks) / TICKS_PER_SECOND / span.seconds >= FULL {
            full.push((thread, ticks));
        }
    }
    if !is_any {
        return not_here("no thread of a virtual CPU is visible");
    }
    if full.is_empty() {
        out.well("no guest's CPU is full", None);
        return Ok(());
    }
    let summary = format!("{} virtual CPUs of guests are full", full.len());
    let quotes = full.iter().take(QUOTES_MAX);
    let whose = full.first().map(|(thread, _)| format!("cat /proc/{}/cmdline", thread.id));
    let finding = Finding::new(Severity::Warning, "virtual CPUs", summary)
        .cause(format!("{CAUSE} The threads do not show whether the network is the cause."))
        .quote(quotes.map(|(thread, ticks)| thread.quote(*ticks, span.seconds)))
        .confidence(if span.basis == Basis::Samples { Confidence::Medium } else { Confidence::Low })
        .advise(Advice::by_hand(
            "Find out which guest they belong to, and whether its network is busy (ip -s link).",
            &whose.iter().map(String::as_str).collect::<Vec<_>>(),
        ));
    out.add([advise(finding)]);
    Ok(())
}

fn advise(finding: Finding) -> Finding {
    finding.advise(Advice::by_hand(
        "Offloads first (D13), in the guest and on its interface: fewer, larger packets; then an \
         application with more threads. In the multi-queue study four CPUs were too few for 8 \
         queues.",
        &["ringway doctor explain D13"],
    ))
}

/// A guest does not see what its host did meanwhile, so it reports what it counts, and no more.
fn inside(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = facts.times.get()?;
    for (cpu, after) in &span.after.cpus {
        let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
        let spent = after.since(&before);
        let busy = 1.0 - share(spent.idle, spent.total.max(1));
        if busy >= FULL && spent.total > 0 {
            let summary = format!("CPU {cpu} is {:.0} % busy, as this guest counts", busy * 100.0);
            let finding = Finding::new(Severity::Note, format!("CPU {cpu}"), summary);
            out.add([finding
                .cause(
                    "By that count it has no time left. The host may have run other guests in a \
                     part of that time: this check on the host counts without them. D35 says what \
                     uses the CPU.",
                )
                .quote([span.text.quote(spent.line)])
                .confidence(Confidence::Low)]);
        }
    }
    out.well("no CPU is full by this guest's own count", None);
    Ok(())
}
