//! D36: programs stall because memory is short.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{Basis, DiskPressure, MemoryPressure, Span, Tried, float};
use ringway_evidence::facts;
use ringway_evidence::parse::pressure::Pressure;

pub(crate) const CHECK: Check = Check {
    id: "D36",
    slug: "pressure",
    title: "programs wait for memory",
    group: Group::Processors,
    sources: &["kernel-psi:some-full"],
    explanation: include_str!("pressure.txt"),
    absent: "the kernel does not count pressure",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        memory: Tried<MemoryPressure>,
        disks: Tried<DiskPressure>,
    }
}

/// Fraction of the time that programs wait for memory, from which it matters.
const MEMORY: f64 = 0.1;
/// Fraction of the time that programs wait for disks, from which it is worth a note.
const DISKS: f64 = 0.4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let Some(MemoryPressure(span)) = facts.memory.ok() else { return not_here(CHECK.absent) };
    if span.basis == Basis::SinceBoot {
        return not_here("pressure is only known since the boot");
    }
    let (some, full) = parts(span);
    if some >= MEMORY {
        let summary = format!(
            "programs wait for memory {:.0} % of the time, all of them {:.0} %",
            some * 100.0,
            full * 100.0
        );
        let commands = ["cat /proc/pressure/memory", "cat /proc/meminfo"];
        out.add([Finding::new(Severity::Warning, "memory", summary)
            .cause(
                "Pages are reclaimed and needed again at once. A program that needs one stalls \
                 until it is back; this includes network programs.",
            )
            .quote([span.text.quote(1)])
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(
                "Find out which group or program it is: memory.pressure of control groups, and \
                 programs that grew. Give it more memory, or run less.",
                &commands,
            ))]);
    }
    if let Some(DiskPressure(span)) = facts.disks.ok() {
        let (some, _) = parts(span);
        if some >= DISKS {
            let summary = format!("programs wait for a disk {:.0} % of the time", some * 100.0);
            let finding = Finding::new(Severity::Note, "disks", summary);
            out.add([finding
                .cause("Networks rarely wait for disks, but programs that send files do.")
                .quote([span.text.quote(1)])]);
        }
    }
    let summary = format!("programs wait for memory {:.0} % of the time", some * 100.0);
    out.well(summary, Some(span.text.quote(1)));
    Ok(())
}

fn parts(span: &Span<Pressure>) -> (f64, f64) {
    let part = |before: u64, after: u64| float(after.saturating_sub(before)) / 1e6 / span.seconds;
    let Span { before, after, .. } = span;
    (part(before.some_us, after.some_us).min(1.0), part(before.full_us, after.full_us).min(1.0))
}
