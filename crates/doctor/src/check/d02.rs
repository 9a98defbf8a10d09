//! D02: a guest's virtual CPU does nothing but run, as its host counts.

use std::collections::BTreeMap;

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::host::{Basis, FULL, Host, Kind, Span, float, share};
use crate::parse::cpu::CpuTimes;
use crate::parse::domains::VcpuTimes;
use crate::parse::nic::NicCounters;
use crate::parse::threads::{Thread, Threads};

pub(super) const CHECK: Check = Check {
    id: "D02",
    title: "a guest's CPU is full",
    group: Group::Processors,
    sources: &[
        "throughput-guide:guest-cpu",
        "throughput-guide:guest-cpu-advice",
        "throughput-guide:tools",
        "multi-queue-study:guest-cpus",
    ],
    explanation: include_str!("../../explain/D02.md"),
    look: Some(look),
};

/// Packets a second from which a guest works for its network.
const PACKETS_MIN: f64 = 1000.0;
/// Ticks of a second in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;
const CAUSE: &str = "More packets come than this CPU can handle; the guest's other CPUs do not \
                     help one that has its queue or its application.";

fn look(host: &Host) -> Looked {
    match host.kind().kind {
        Kind::XenDom0 => xen(host),
        Kind::KvmHost => kvm(host),
        Kind::KvmGuest | Kind::XenGuest | Kind::OtherGuest => inside(host),
        Kind::Bare | Kind::XenDriverDomain => Err(Gap::NotHere("no guests".to_owned())),
    }
}

fn xen(host: &Host) -> Looked {
    let span: Span<VcpuTimes> = host.command_span(&["xl", "vcpu-list"])?;
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
    if full.is_empty() {
        let quote = (most.1 > 0).then(|| span.text.quote(most.1));
        let summary = format!("no guest's CPU is full; the busiest runs {:.0} %", most.0 * 100.0);
        return Ok(vec![all_well(summary, quote)]);
    }
    Ok(full.iter().map(|(domain, lines)| of_domain(host, &span, *domain, lines)).collect())
}

fn of_domain(host: &Host, span: &Span<VcpuTimes>, domain: u32, lines: &[usize]) -> Finding {
    let vcpus = || span.after.vcpus.range((domain, 0)..=(domain, u32::MAX)).map(|(_, vcpu)| vcpu);
    let name = vcpus().next().map(|vcpu| vcpu.domain.clone()).unwrap_or_default();
    let (full, all) = (lines.len(), vcpus().count());
    let summary = format!("{full} of {all} CPUs of guest {name} (domain {domain}) are full");
    let quotes = lines.iter().take(QUOTES_MAX).map(|line| span.text.quote(*line));
    let finding = Finding::new(Severity::Problem, name, summary).cause(CAUSE).quote(quotes);
    let finding = match traffic(host, domain) {
        Ok((rate, quote)) if rate < PACKETS_MIN => {
            let cause = format!("It moves {rate:.0} packets/s, so its network is not why.");
            return Finding { severity: Severity::Note, ..finding }.cause(cause).quote(quote);
        }
        Ok((_, quote)) => finding.quote(quote).confidence(Confidence::High),
        Err(gap) => {
            let cause = format!("Whether its network is why, nobody can tell: {gap}.");
            return Finding { severity: Severity::Unknown, ..finding }.cause(cause);
        }
    };
    let finding = advise(finding);
    let more = format!("xl vcpu-set {domain} {}", all + 1);
    let finding = finding.advise(Advice::by_hand(
        "Then give it another CPU, as far as its configuration's maxvcpus goes, and a queue for it \
         (D14).",
        &[&more],
    ));
    if span.basis == Basis::Samples {
        return finding;
    }
    // Over the host's whole time, so at least that much.
    Finding { severity: Severity::Warning, ..finding }.confidence(Confidence::Low)
}

/// Packets a second through the vifs of a domain, with the busiest's line.
fn traffic(host: &Host, domain: u32) -> Result<(f64, Option<Quote>), Gap> {
    let span: Span<NicCounters> = host.span("proc/net/dev")?;
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

fn kvm(host: &Host) -> Looked {
    let span: Span<Threads> = host.span("threads")?;
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
        return Err(Gap::NotHere("no thread of a virtual CPU is seen".to_owned()));
    }
    if full.is_empty() {
        return Ok(vec![all_well("no guest's CPU is full", None)]);
    }
    let summary = format!("{} virtual CPUs of guests are full", full.len());
    let quotes = full.iter().take(QUOTES_MAX);
    let whose = full.first().map(|(thread, _)| format!("cat /proc/{}/cmdline", thread.id));
    let finding = Finding::new(Severity::Warning, "virtual CPUs", summary)
        .cause(format!("{CAUSE} The threads do not say whether it is their network."))
        .quote(quotes.map(|(thread, ticks)| thread.quote(*ticks, span.seconds)))
        .confidence(if span.basis == Basis::Samples { Confidence::Medium } else { Confidence::Low })
        .advise(Advice::by_hand(
            "See whose they are, and whether that guest's network is at work (ip -s link).",
            &whose.iter().map(String::as_str).collect::<Vec<_>>(),
        ));
    Ok(vec![advise(finding)])
}

fn advise(finding: Finding) -> Finding {
    finding.advise(Advice::by_hand(
        "Offloads first (D13), in the guest and of its interface: fewer, larger packets; then an \
         application with more threads. In the multi-queue study four CPUs were too few for 8 \
         queues.",
        &["ringway doctor explain D13"],
    ))
}

/// A guest does not know what its host gave to others, so it may say that something is up, no more.
fn inside(host: &Host) -> Looked {
    let span: Span<CpuTimes> = host.span("proc/stat")?;
    for (cpu, after) in &span.after.cpus {
        let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
        let spent = after.since(&before);
        let busy = 1.0 - share(spent.idle, spent.total.max(1));
        if busy >= FULL && spent.total > 0 {
            let summary = format!(
                "CPU {cpu} is {:.0} % busy by this guest's own count, which is good for comparison \
                 only: ask the host",
                busy * 100.0
            );
            let quote = span.text.quote(spent.line);
            let finding = Finding::new(Severity::Unknown, format!("CPU {cpu}"), summary);
            return Ok(vec![finding.quote([quote]).confidence(Confidence::Low)]);
        }
    }
    Ok(vec![all_well("no CPU is full by this guest's own count", None)])
}
