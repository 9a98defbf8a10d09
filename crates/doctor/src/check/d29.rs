//! D29: a card drops because its ring is full, or it interrupts too often or too late.

mod coalescing;

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, NicSettings};
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use crate::host::{Basis, Host, NicRole, Span, float};
use crate::parse::Single;
use crate::parse::ethtool::Settings;

pub(super) const CHECK: Check = Check {
    id: "D29",
    title: "rings are too small, or interrupts too many",
    group: Group::Links,
    sources: &["throughput-guide:packet-cost"],
    explanation: include_str!("../../explain/D29.md"),
    look: Some(look),
};

fn look(host: &Host) -> Looked {
    let mut findings = Vec::new();
    let mut is_any_seen = false;
    for nic in host.nics() {
        if matches!(host.role(&nic), NicRole::Software | NicRole::Backend) {
            continue;
        }
        for look in [rings, coalescing::look] {
            match look(host, &nic) {
                Ok(found) => findings.extend(found),
                Err(Gap::Missing { .. }) => continue,
                Err(gap) => findings.push(Finding::gap(nic.clone(), &gap)),
            }
            is_any_seen = true;
        }
    }
    if !is_any_seen {
        return Err(Gap::NotHere("no card that says what its ring missed, or waits".to_owned()));
    }
    if findings.is_empty() {
        findings.push(all_well("no ring was full, and no card interrupts too often", None));
    }
    Ok(findings)
}

fn rings(host: &Host, nic: &str) -> Result<Option<Finding>, Gap> {
    let path = format!("sys/class/net/{nic}/statistics/rx_missed_errors");
    let span: Span<Single> = host.span(&path)?;
    let missed = span.after.0.saturating_sub(span.before.0);
    if missed == 0 || span.basis == Basis::SinceBoot {
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
        "First see whether that CPU is full: D03, D04. Then its queues: D14.",
        &["ringway doctor explain D04"],
    ));
    let text = host.settings(nic, NicSettings::Rings)?;
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
        "If it is bursts: a larger ring. The link goes down for a moment, and it costs cache.",
        change,
    ))))
}
