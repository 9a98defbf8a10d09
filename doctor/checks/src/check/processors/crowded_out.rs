//! D35: network programs wait for a CPU that others use; and what uses a saturated CPU.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{Basis, FULL, Span, Tried, float, share};
use ringway_evidence::parse::cpu::CpuTimes;
use ringway_evidence::parse::programs::{Busiest, Busy, ProgramKind, Quota, Quotas};
use ringway_evidence::{Gap, facts};

pub(crate) const CHECK: Check = Check {
    id: "D35",
    slug: "crowded-out",
    title: "the network waits for a CPU that others use",
    group: Group::Processors,
    sources: &["kernel-sched-stats:schedstat", "man-sched:real-time", "man-sched:limit"],
    explanation: include_str!("crowded_out.txt"),
    absent: "there is no data on what uses the CPUs",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        busiest: Tried<Span<Busiest>>,
        quotas: Tried<Span<Quotas>>,
        times: Span<CpuTimes>,
    }
}

const ADVICE: &str = "Free a CPU for the network: move the program to other CPUs (taskset, \
                      AllowedCPUs of its service), lower its priority (nice, CPUWeight, a policy \
                      other than real time), or stop it. CPUs that it may use now:";
const REAL_TIME_CAUSE: &str = "A real-time program runs before all others, and before ksoftirqd, \
                               which handles packets that softirqs leave over. These packets wait \
                               until it sleeps.";

/// Fraction of time from which waiting is more than taking turns with related threads.
const WAITS: f64 = 0.25;
/// Fraction of a CPU from which an unrelated program is in the way.
const USES: f64 = 0.3;
/// Fraction for a real-time program, with which other threads cannot take turns.
const REAL_TIME_USES: f64 = 0.25;
/// Fraction of a CPU's time from which it handles softirqs.
const SOFTIRQS: f64 = 0.01;
/// Ticks per second in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;
const NANOSECONDS: f64 = 1e9;
/// Threads of the kernel that move packets.
const MOVERS: [&str; 6] = ["ksoftirqd/", "vhost-", "napi/", "vif", "netback/", "irq/"];
/// Programs that are named.
const NAMED_MAX: usize = 3;

/// A thread between both samples.
struct Used<'a> {
    busy: &'a Busy,
    ticks: u64,
    /// Fraction of a CPU that it used.
    used: f64,
    /// Fraction of the time that it waited for one.
    waited: f64,
}

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let Some(span) = facts.busiest.ok() else { return not_here(CHECK.absent) };
    if span.basis == Basis::SinceBoot {
        return not_here(CHECK.absent);
    }
    let mut all = used(span);
    let stopped = stopped(facts)?;
    // The kernel counts that as waiting too, but no other program is the reason: D34 reports it.
    for one in all.iter_mut().filter(|one| stopped.contains(&one.busy.process)) {
        one.waited = 0.0;
    }
    let cpus = facts.times.after.cpus.len();
    let mut by_cpu: BTreeMap<u64, Vec<&Used<'_>>> = BTreeMap::new();
    for one in &all {
        by_cpu.entry(one.busy.thread.cpu.unwrap_or(u64::MAX)).or_default().push(one);
    }
    let of_others = all.iter().filter(|one| one.is_in_the_way()).map(|one| one.used).sum::<f64>();
    // If others use half of all CPUs, every wait is for them, regardless of where each ran last.
    let is_crowded = of_others >= 0.5 * float(u64::try_from(cpus).unwrap_or(u64::MAX));
    let mut found = 0;
    for (cpu, here) in &by_cpu {
        let in_the_way: Vec<&Used<'_>> = match is_crowded {
            true => all.iter().filter(|one| one.is_in_the_way()).collect(),
            false => here.iter().copied().filter(|one| one.is_in_the_way()).collect(),
        };
        let used: f64 = in_the_way.iter().map(|one| one.used).sum();
        let is_real_time = in_the_way.iter().any(|one| one.busy.is_real_time);
        let least = if is_real_time { REAL_TIME_USES } else { USES };
        let waits = |one: &&&Used<'_>| one.is_network() && one.waited >= WAITS;
        let longest = here.iter().filter(waits).max_by(|a, b| a.waited.total_cmp(&b.waited));
        let Some(longest) = longest.filter(|_| used >= least) else { continue };
        found += 1;
        if found == 1 || !is_crowded {
            out.add([crowded(span, *cpu, longest, &in_the_way, cpus)]);
        }
    }
    if found == 0 {
        out.add(real_time(facts, span, &by_cpu));
        out.add(full(facts, &by_cpu));
    }
    out.well("no network program waits long for a CPU", None);
    Ok(())
}

/// Programs that a quota of their control group stopped.
fn stopped(facts: &Facts) -> Result<BTreeSet<u64>, Gap> {
    let span = match facts.quotas.get() {
        Err(Gap::Missing { .. } | Gap::NotHere(_)) => return Ok(BTreeSet::new()),
        other => other?,
    };
    let is_stopped = |(path, after): &(&String, &Quota)| {
        span.before.groups.get(*path).is_some_and(|before| after.throttled > before.throttled)
    };
    let groups = span.after.groups.iter().filter(is_stopped);
    let programs = groups.flat_map(|(_, quota)| &quota.programs);
    Ok(programs.map(|(process, _)| *process).collect())
}

fn used(span: &Span<Busiest>) -> Vec<Used<'_>> {
    let of = |(id, busy): (&u64, &'_ Busy)| -> (u64, f64) {
        let known = span.before.threads.get(id).filter(|one| one.process == busy.process);
        let ticks = busy.thread.ticks.saturating_sub(known.map_or(0, |one| one.thread.ticks));
        // One that was not seen before waited for an unknown time.
        let both = known.and_then(|known| known.waited_ns).zip(busy.waited_ns);
        let waited = both.map_or(0, |(before, after)| after.saturating_sub(before));
        // The two readings of a thread may be a little further apart than the samples.
        (ticks, (float(waited) / NANOSECONDS / span.seconds).min(1.0))
    };
    let threads = span.after.threads.iter().map(|(id, busy)| {
        let (ticks, waited) = of((id, busy));
        Used { busy, ticks, used: float(ticks) / TICKS_PER_SECOND / span.seconds, waited }
    });
    threads.collect()
}

impl Used<'_> {
    fn is_network(&self) -> bool {
        let name = &self.busy.thread.name;
        match self.busy.trade {
            ProgramKind::Network => true,
            ProgramKind::Kernel => MOVERS.iter().any(|start| name.starts_with(start)),
            ProgramKind::Other => self.is_guest(),
        }
    }

    /// The host's work is for its guests, even if a guest only computes.
    fn is_guest(&self) -> bool {
        self.busy.program.starts_with("qemu") || self.busy.thread.name.starts_with("CPU ")
    }

    fn is_in_the_way(&self) -> bool {
        let is_other = self.busy.trade == ProgramKind::Other && !self.is_guest();
        let is_first = self.busy.is_real_time && self.busy.trade != ProgramKind::Kernel;
        (is_other || is_first) && self.used >= 0.05
    }
}

/// The programs that use the most, each once, and whether they are several.
fn names(mut all: Vec<&Used<'_>>) -> (String, bool) {
    all.sort_by(|a, b| b.used.total_cmp(&a.used));
    let mut named: Vec<String> = Vec::new();
    for one in all {
        let name = format!("{} (process {})", one.busy.program, one.busy.process);
        if named.len() < NAMED_MAX && !named.contains(&name) {
            named.push(name);
        }
    }
    (named.join(", "), named.len() > 1)
}

fn crowded(
    span: &Span<Busiest>,
    cpu: u64,
    longest: &Used<'_>,
    in_the_way: &[&Used<'_>],
    cpus: usize,
) -> Finding {
    let mut most = in_the_way.to_vec();
    most.sort_by(|a, b| b.used.total_cmp(&a.used));
    let used: f64 = most.iter().map(|one| one.used).sum();
    let (who, are_several) = names(most.clone());
    let verb = if are_several { "use" } else { "uses" };
    let summary = format!(
        "{} waits {:.0} % of the time for a CPU, while {who} {verb} {:.0} % of one",
        longest.busy.name(),
        longest.waited * 100.0,
        used * 100.0
    );
    let quotes = most.iter().take(NAMED_MAX).map(|one| one.busy.quote(one.ticks, span.seconds));
    let waits = span.text.quote(longest.busy.line);
    let is_real_time = most.iter().any(|one| one.busy.is_real_time);
    let cause = if is_real_time {
        REAL_TIME_CAUSE
    } else {
        "Programs without a network socket use the CPU that it needs, and it must take turns with \
         them. Packets that it does not handle in time wait, and are then dropped."
    };
    let pid = most.first().map_or(0, |one| one.busy.process);
    let command = format!("taskset -cp {pid}");
    let advice = if cpus > 1 {
        ADVICE
    } else {
        "Lower its priority (nice, CPUWeight, a policy other than real time), stop it, or give the \
         machine another CPU. CPUs that it may use now:"
    };
    Finding::new(Severity::Warning, format!("CPU {cpu}"), summary)
        .cause(cause)
        .quote([waits])
        .quote(quotes)
        .confidence(Confidence::High)
        .advise(Advice::by_hand(advice, &[&command]))
}

/// Real-time programs on a CPU that handles softirqs, where no waiting thread was seen.
fn real_time(
    facts: &Facts,
    span: &Span<Busiest>,
    by_cpu: &BTreeMap<u64, Vec<&Used<'_>>>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (cpu, here) in by_cpu {
        let first: Vec<&Used<'_>> = here
            .iter()
            .copied()
            .filter(|one| one.busy.is_real_time && one.is_in_the_way())
            .collect();
        let used: f64 = first.iter().map(|one| one.used).sum();
        let Ok(index) = usize::try_from(*cpu) else { continue };
        let Some(after) = facts.times.after.cpus.get(&index) else { continue };
        let Some(before) = facts.times.past(facts.times.before.cpus.get(&index)) else { continue };
        let spent = after.since(&before);
        if used < REAL_TIME_USES || share(spent.softirq, spent.had()) < SOFTIRQS {
            continue;
        }
        let (who, are_several) = names(first.clone());
        let verb = if are_several { "use" } else { "uses" };
        let summary = format!(
            "{who}, with real-time priority, {verb} {:.0} % of CPU {cpu}, which also handles \
             softirqs",
            used * 100.0
        );
        let pid = first.first().map_or(0, |one| one.busy.process);
        let command = format!("taskset -cp {pid}");
        let quotes = first.iter().map(|one| one.busy.quote(one.ticks, span.seconds));
        found.push(
            Finding::new(Severity::Warning, format!("CPU {cpu}"), summary)
                .cause(REAL_TIME_CAUSE)
                .quote(quotes)
                .quote([facts.times.text.quote(spent.line)])
                .confidence(Confidence::Medium)
                .advise(Advice::by_hand(ADVICE, &[&command])),
        );
    }
    found
}

/// The users of a saturated CPU: a note only, because any busy host looks like that.
fn full(facts: &Facts, by_cpu: &BTreeMap<u64, Vec<&Used<'_>>>) -> Vec<Finding> {
    let span = &facts.times;
    let mut found = Vec::new();
    for (cpu, after) in &span.after.cpus {
        let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
        let spent = after.since(&before);
        if spent.total == 0 || 1.0 - share(spent.idle, spent.total) < FULL {
            continue;
        }
        let part = |ticks: u64| share(ticks, spent.total) * 100.0;
        let mut parts = vec![
            (part(spent.softirq), "softirqs".to_owned()),
            (part(spent.irq), "interrupts".to_owned()),
            (part(spent.steal), "the hypervisor, for others".to_owned()),
        ];
        let key = u64::try_from(*cpu).unwrap_or(u64::MAX);
        for one in by_cpu.get(&key).into_iter().flatten() {
            let (used, name) = (one.used * 100.0, one.busy.name());
            // Threads of a program that have no names of their own are one line.
            match parts.iter_mut().find(|(_, known)| *known == name) {
                Some((part, _)) => *part += used,
                None => parts.push((used, name)),
            }
        }
        parts.retain(|(part, _)| *part >= 5.0);
        parts.sort_by(|a, b| b.0.total_cmp(&a.0));
        parts.truncate(NAMED_MAX);
        if parts.is_empty() {
            continue;
        }
        let who: Vec<String> =
            parts.iter().map(|(part, who)| format!("{who} {:.0} %", part.min(100.0))).collect();
        let summary = format!("CPU {cpu} is full: {}", who.join(", "));
        found.push(
            Finding::new(Severity::Note, format!("CPU {cpu}"), summary)
                .cause(
                    "It has no time left. If this is more than usual, begin here; the findings \
                     above say whether it also delays other work.",
                )
                .quote([span.text.quote(spent.line)])
                .confidence(Confidence::Medium),
        );
    }
    found
}
