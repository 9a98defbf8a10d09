//! D29: a card drops because its ring is full, or it interrupts too often or too late.

#[path = "rings/coalescing.rs"]
mod coalescing;

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use ringway_evidence::Gap;
use ringway_evidence::fact::{
    Basis, Coalescence, Interfaces, Missed, NetIrqs, NicRole, Rings, Span, Tried, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::ethtool::Settings;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::sockets::Sockets;

pub(crate) const CHECK: Check = Check {
    id: "D29",
    slug: "rings",
    title: "rings are too small, or there are too many interrupts",
    group: Group::Links,
    sources: &["throughput-guide:packet-cost"],
    explanation: include_str!("rings.txt"),
    absent: "no card that reports ring misses or coalescing",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        nics: Interfaces,
        missed: Missed,
        rings: Rings,
        coalescence: Coalescence,
        irqs: Tried<NetIrqs>,
        moved: Tried<Span<NicCounters>>,
        sockets: Tried<Span<Sockets>>,
    }
}

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let (mut is_any_seen, mut has_one_sample) = (false, false);
    for nic in facts.nics.names() {
        if matches!(facts.nics.role(&nic), NicRole::Software | NicRole::Backend) {
            continue;
        }
        for part in [rings, coalescing::judge] {
            match part(facts, &nic) {
                Ok(found) => out.add(found),
                Err(Gap::Missing { .. }) => continue,
                Err(Gap::NotHere(_)) => {
                    has_one_sample = true;
                    continue;
                }
                Err(gap) => out.unread(nic.clone(), &gap),
            }
            is_any_seen = true;
        }
    }
    match (has_one_sample, is_any_seen) {
        (true, true) => {
            let said = "no card is late to interrupt; full rings are only known since the boot";
            out.well(said, None);
        }
        (true, false) => return out.one_sample("full rings are"),
        (false, true) => out.well("no ring was full, and no card interrupts too often", None),
        (false, false) => {}
    }
    Ok(())
}

fn rings(facts: &Facts, nic: &str) -> Result<Option<Finding>, Gap> {
    let span = facts.missed.of(nic)?;
    if span.basis == Basis::SinceBoot {
        return not_here(CHECK.absent);
    }
    let missed = span.after.0.saturating_sub(span.before.0);
    if missed == 0 {
        return Ok(None);
    }
    let rate = float(missed) / span.seconds;
    let finding = Finding::new(
        Severity::Problem,
        nic,
        format!("{nic} drops {rate:.1} frames/s because its receive ring is full"),
    )
    .cause("The CPU that empties the ring is late: it is busy, or a burst is longer than the ring.")
    .quote([span.text.quote(1)])
    .advise(Advice::by_hand(
        "First check whether that CPU is full: D03, D04. Then its queues: D14.",
        &["ringway doctor explain D04"],
    ));
    let text = facts.rings.of(nic)?;
    let rings = Settings::parse(&text)?;
    let (Some(current), Some(max)) = (rings.current.get("rx"), rings.maximum.get("rx")) else {
        return Ok(Some(finding));
    };
    let finding = finding.quote([text.quote(max.line), text.quote(current.line)]);
    if current.value >= max.value {
        return Ok(Some(finding));
    }
    let knob = Knob::Ring { nic: nic.to_owned(), which: "rx".to_owned() };
    let change = Change::raise(knob, current.value, max.value);
    Ok(Some(finding.advise(Advice::by_change(
        "If bursts are the cause, use a larger ring. The link goes down for a moment, and a \
         larger ring uses more cache.",
        change,
    ))))
}
