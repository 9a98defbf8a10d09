//! D50: CPUs that save power while the network waits for them: they run slowly under load, or wake
//! up late.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    Basis, Connections, CpuFrequencies, CpuSleeps, Frequency, Span, Tried, float, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::cpu::CpuTimes;

pub(crate) const CHECK: Check = Check {
    id: "D50",
    slug: "power-saving",
    title: "CPUs run slowly, or wake up late, to save power",
    group: Group::Processors,
    sources: &["kernel-cpufreq:governors", "kernel-cpuidle:latency"],
    explanation: include_str!("power_saving.txt"),
    absent: "this kernel sets neither frequencies nor idle states of its CPUs",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        times: Span<CpuTimes>,
        frequencies: CpuFrequencies,
        sleeps: CpuSleeps,
        connections: Tried<Connections>,
    }
}

/// Fraction of its time from which a CPU is so busy that it should run fast.
const BUSY: f64 = 0.5;
/// Fraction of its maximum frequency below which a CPU is slow: with all others busy, it cannot
/// reach the maximum.
const SLOW: f64 = 0.7;
/// Governors that keep a busy CPU slow, with the drivers for which the name means that.
const SLOW_GOVERNORS: [&str; 3] = ["conservative", "powersave", "userspace"];
/// Drivers whose `powersave` is a balance that follows the load.
const BALANCED: [&str; 3] = ["amd-pstate-epp", "amd_pstate_epp", "intel_pstate"];
/// Wake-up latency in microseconds from which a neighbour's round trip is affected, and wake-ups
/// per second.
const LATENCY_US: u64 = 100;
const WAKES_MIN: f64 = 200.0;
/// A round trip this many times as long is not affected.
const ROUND_TRIPS: f64 = 10.0;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    if facts.times.basis == Basis::SinceBoot {
        return not_here("CPU usage is only known since the boot");
    }
    let frequencies = Verdicts::part(CHECK.absent, |out| frequencies(facts, out));
    let sleeps = Verdicts::part(CHECK.absent, |out| sleeps(facts, out));
    out.both(frequencies, sleeps, CHECK.title)
}

fn frequencies(facts: &Facts, out: &mut Verdicts) -> Judged {
    if !facts.frequencies.are_set() {
        return not_here(CHECK.absent);
    }
    for (cpu, used) in used(facts).into_iter().filter(|(_, used)| *used >= BUSY) {
        let frequency = facts.frequencies.of(cpu)?;
        if float(frequency.now_khz) < SLOW * float(frequency.able_khz) {
            out.add([slow(cpu, used, &frequency)]);
        }
    }
    out.well("busy CPUs run at full speed", None);
    Ok(())
}

/// A busy CPU that runs slowly, and who keeps it slow.
fn slow(cpu: usize, used: f64, frequency: &Frequency) -> Finding {
    let is_held = |governor: &str, driver: &str| {
        SLOW_GOVERNORS.contains(&governor) && !BALANCED.contains(&driver)
    };
    let governor = frequency.governor.value();
    let summary = format!(
        "CPU {cpu} is {:.0} % busy and runs at {:.2} of {:.2} GHz",
        used * 100.0,
        ghz(frequency.now_khz),
        ghz(frequency.able_khz)
    );
    let is_capped = float(frequency.allowed_khz) < SLOW * float(frequency.able_khz);
    let subject = format!("CPU {cpu}");
    let finding = |severity, summary| {
        Finding::new(severity, subject, summary)
            .quote([frequency.now.quote(1)])
            .confidence(Confidence::Medium)
    };
    if is_capped {
        finding(Severity::Warning, format!("{summary}: its limit allows no more"))
            .cause(
                "scaling_max_freq is far below the CPU's maximum. An administrator set it, or a \
                 power saving service, or a program that keeps the machine cool.",
            )
            .quote([frequency.allowed.quote(1)])
            .advise(Advice::by_hand(
                "Find out what lowered it (tuned, power-profiles-daemon, thermald, the firmware's \
                 power limit), and write the value of cpuinfo_max_freq to scaling_max_freq beside \
                 it.",
                &[],
            ))
    } else if is_held(governor, &frequency.driver) {
        let knob = u32::try_from(cpu).ok().map(|cpu| Knob::Governor { cpu });
        let change =
            knob.and_then(|knob| Change::replace(knob, Some(governor.to_owned()), "performance"));
        finding(Severity::Warning, format!("{summary}: its governor is {governor}"))
            .cause(
                "It requests a lower frequency than the load needs, so packets take longer on the \
                 CPU that serves them.",
            )
            .quote([frequency.governor.quote(1)])
            .advise(Advice::by_change(
                "performance requests the highest frequency. Tools that set governors at the \
                 start (tuned, cpupower) will overwrite it.",
                change,
            ))
    } else {
        finding(Severity::Note, summary).cause(
            "It may be hot, share its power with other CPUs, or have started its work just now.",
        )
    }
}

fn sleeps(facts: &Facts, out: &mut Verdicts) -> Judged {
    let mut worst: Option<(usize, f64, ringway_evidence::fact::Sleep)> = None;
    let mut is_seen = false;
    for (cpu, _) in used(facts) {
        for sleep in facts.sleeps.of(cpu)? {
            is_seen = true;
            let span = &sleep.entered;
            let Some(before) = span.past(Some(&span.before.0)) else { continue };
            let rate = float(span.after.0.saturating_sub(before)) / span.seconds;
            let is_late = sleep.latency_us >= LATENCY_US && rate >= WAKES_MIN;
            if is_late && worst.as_ref().is_none_or(|(_, most, _)| rate > *most) {
                worst = Some((cpu, rate, sleep));
            }
        }
    }
    if !is_seen {
        return not_here(CHECK.absent);
    }
    if let Some((cpu, rate, sleep)) = worst {
        let near = near(facts, sleep.latency_us);
        let summary = format!(
            "CPU {cpu} enters a sleep state ({}) {rate:.0} times a second that takes {} us to \
             wake up from",
            sleep.name, sleep.latency_us
        );
        let severity = if near.is_some() { Severity::Warning } else { Severity::Note };
        let said = sleep.entered.text.quote(1);
        out.add([Finding::new(severity, format!("CPU {cpu}"), summary)
            .cause(
                "A packet that arrives while a CPU sleeps waits until it is awake. Some \
                 connections have round trips so short that this matters. More traffic would keep \
                 the CPU awake: the effect is worst under low load.",
            )
            .quote([sleep.latency.quote(1), said])
            .quote(near)
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(
                "Keep the CPUs that serve the network out of that state: tuned-adm profile \
                 network-latency, or cpupower idle-set -D with fewer microseconds than it takes. \
                 Measure round trips before and after.",
                &[],
            ))]);
    }
    out.well("CPUs wake up fast enough", None);
    Ok(())
}

/// A connection to another host that is so near that waking up is a good part of its round trip.
fn near(facts: &Facts, latency_us: u64) -> Option<ringway_evidence::Quote> {
    let known = facts.connections.ok()?;
    let longest_ms = float(latency_us) * ROUND_TRIPS / 1000.0;
    let is_near = |rtt: Option<f64>| rtt.is_some_and(|rtt| rtt <= longest_ms);
    let mut all = known.sockets.all.iter();
    let near = all.find(|socket| !socket.is_local() && is_near(socket.rtt_ms))?;
    Some(known.text.quote(near.line))
}

/// How busy each CPU was, 0 to 1.
fn used(facts: &Facts) -> Vec<(usize, f64)> {
    let span = &facts.times;
    let used = span.after.cpus.iter().filter_map(|(cpu, after)| {
        let spent = after.since(&span.past(span.before.cpus.get(cpu))?);
        Some((*cpu, 1.0 - share(spent.idle, spent.total.max(1))))
    });
    used.collect()
}

fn ghz(khz: u64) -> f64 {
    float(khz) / 1e6
}
