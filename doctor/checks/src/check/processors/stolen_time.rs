//! D27: this guest has work, and the hypervisor does not run it.

use crate::check::{Check, Group, Judged, Verdicts, all_well, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::Gap;
use ringway_evidence::fact::{Basis, HostKind, Kind, Span, Tried, XenDomains, XenInfo, share};
use ringway_evidence::facts;
use ringway_evidence::parse::cpu::CpuTimes;
use ringway_evidence::parse::domains::{Domains, XlInfo};

pub(crate) const CHECK: Check = Check {
    id: "D27",
    slug: "stolen-time",
    title: "the hypervisor does not run this guest when it has work",
    group: Group::Processors,
    sources: &["throughput-guide:cpu-bound", "throughput-guide:one-cpu-guests"],
    explanation: include_str!("stolen_time.txt"),
    absent: "no hypervisor that can steal CPU time",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        kind: HostKind,
        times: Tried<Span<CpuTimes>>,
        domains: Tried<XenDomains>,
        xen: Tried<XenInfo>,
    }
}

/// Stolen share of the time of all CPUs, from which it matters.
const STOLEN: f64 = 0.05;
/// Stolen share from which no other check is meaningful.
const STARVED: f64 = 0.20;

/// CPUs that the guide left to domain 0 when it gave each of the others to a guest
/// (`throughput-guide:one-cpu-guests`).
const LEFT_TO_DOM0: u32 = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    out.add([stolen(facts)?]);
    out.add(promised(facts)?);
    Ok(())
}

/// More virtual CPUs than the guide found best; only domain 0 can see that.
fn promised(facts: &Facts) -> Result<Option<Finding>, Gap> {
    if facts.kind.kind != Kind::XenDom0 {
        return Ok(None);
    }
    let (Some(list), Some(info)) = (facts.domains.ok(), facts.xen.ok()) else { return Ok(None) };
    let guests = Domains::parse(list)?.domains;
    let guests = guests.iter().filter(|(id, _)| **id != 0).map(|(_, guest)| guest.vcpus);
    let vcpus = guests.fold(0, u32::saturating_add);
    let parsed = XlInfo::parse(info)?;
    let Some((cpus, line)) = parsed.get("nr_cpus") else { return Ok(None) };
    let cpus: u32 =
        cpus.parse().map_err(|_| info.unreadable(Some(line), "expected a number of CPUs"))?;
    let best = cpus.saturating_sub(LEFT_TO_DOM0);
    if vcpus <= best {
        return Ok(None);
    }
    let summary = format!("guests have {vcpus} virtual CPUs on {cpus} physical ones");
    let finding = Finding::new(Severity::Note, "guests", summary)
        .cause(format!(
            "In the guide, guests of one CPU together were fastest with {best} guests on a host \
             of this size: its CPUs less 4, which domain 0 used. That applies to guests that all \
             move packets at once; idle guests cost nothing."
        ))
        .quote([info.quote(line)]);
    Ok(Some(finding))
}

fn stolen(facts: &Facts) -> Result<Finding, Gap> {
    if matches!(facts.kind.kind, Kind::Bare | Kind::KvmHost) {
        return not_here(CHECK.absent);
    }
    let span = facts.times.get()?;
    let (mut stolen, mut total) = (0_u64, 0_u64);
    let mut worst = (0, 0);
    for (cpu, after) in &span.after.cpus {
        let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
        let spent = after.since(&before);
        stolen = stolen.saturating_add(spent.steal);
        total = total.saturating_add(spent.total);
        worst = worst.max((spent.steal, spent.line));
    }
    let part = share(stolen, total);
    let percent = part * 100.0;
    let quote = Some(span.text.quote(worst.1)).filter(|_| worst.1 > 0);
    if part <= STOLEN {
        return Ok(all_well(format!("{percent:.1} % of the CPU time was stolen"), quote));
    }
    let severity = if part >= STARVED { Severity::Problem } else { Severity::Warning };
    let summary =
        format!("the hypervisor did not run this guest for {percent:.0} % of its CPU time (steal)");
    let finding = Finding::new(severity, "steal", summary)
        .cause(
            "This guest had work in that time, and the hypervisor did not run it: other guests or \
             the host used the CPU, or the guest has a limit. Packets wait until it runs again, \
             and rates and times that are measured in the guest include these pauses.",
        )
        .quote(quote)
        .confidence(if span.basis == Basis::Samples { Confidence::High } else { Confidence::Low })
        .advise(Advice::by_hand(
            "Find out on the host which it is: who uses its CPUs, and whether this guest has a \
             limit (quota, cap). Then use fewer virtual CPUs there, dedicated CPUs for the guests \
             that move packets, or a higher limit. Measure again only after that.",
            &[],
        ));
    Ok(finding)
}
