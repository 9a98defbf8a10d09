//! Frames that ringway drops at its own vifs and at the uplink.

use std::collections::{BTreeMap, BTreeSet};

use super::{is_much, to_paused};
use crate::finding::{Advice, Finding, Severity, shell_word};
use ringway_evidence::Quote;
use ringway_evidence::fact::{PausedGuests, Span, float, sum};
use ringway_evidence::parse::ringway::{Queue, Vif, Vifs};

/// Frames by the reason for which they were dropped.
type Dropped<'a> = BTreeMap<&'a str, u64>;

/// The reason of frames to the guest; all others are of frames that it sent.
const FULL: &str = "queue_full";
const DRIVER: &str = "Its driver sends frames that are not whole, or that ringway cannot read.";
const REPORT: &str = "Update the guest's driver, or report this to its authors.";
/// Reasons that say that something does not keep up or does not fit, each with a cause and advice.
const FAULTS: [(&str, &str, &str); 8] = [
    (
        FULL,
        "The guest takes frames more slowly than they arrive: its CPUs are busy or get no time, or \
         it posts too few buffers.",
        "In the guest: more CPU time (D02, D35), more buffers (ethtool -g), more queues (D14).",
    ),
    (
        "inbox_full",
        "A worker of ringway has no time for the frames that other workers pass to it.",
        "More CPUs for ringway's workers, or fewer busy programs beside them (D34, D35).",
    ),
    (
        "no_buffer",
        "The memory for frames is used up, most likely by guests that do not take theirs.",
        "Find those guests, or allow more memory (frame-memory-mib).",
    ),
    (
        "too_long",
        "It sends frames longer than the receiver or its own limit takes.",
        "Use one MTU for the guests, their vifs and the bridge (D08).",
    ),
    (
        "address_taken",
        "It sends from an Ethernet address that another port uses.",
        "Give each guest a mac of its own; for VRRP there is shared-macs.",
    ),
    ("malformed", DRIVER, REPORT),
    ("grant_copy", DRIVER, REPORT),
    (
        "bad_offload",
        "It asks for a checksum or a segmentation that the headers of its frames do not allow.",
        "In the guest: ethtool -K eth0 tx off tso off; and report this to its driver's authors.",
    ),
];
/// Reasons that lose no frame: a copy of one, a request, or what no bridge forwards.
const HARMLESS: [&str; 4] = ["link_local", "mirror_lost", "multicast_full", "port_disabled"];
/// The one of these that loses all that a guest sends and gets, where this is the mode of its vif.
const DISABLED: (&str, &str) = ("port_disabled", "disabled");
/// The end of reasons that are limits, which D30 reports.
const LIMIT: &str = "_limit";
/// Vifs that are quoted.
const QUOTED_MAX: usize = 4;

/// Vifs that lose many frames, and a note of all others that lose any.
pub(super) fn inspect(span: &Span<Vifs>, paused: &PausedGuests) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut others: Vec<(&Vif, Dropped<'_>)> = Vec::new();
    for vif in &span.after.all {
        let mut dropped = vif.dropped(&span.before);
        dropped.retain(|reason, _| is_loss(vif, reason));
        let full = paused.has(vif).then(|| dropped.remove(FULL)).flatten();
        found.extend(full.map(|frames| to_paused(&vif.name, frames, span.seconds)));
        for fault in FAULTS {
            let frames = dropped.get(fault.0).copied().unwrap_or(0);
            let of: fn(&Queue) -> u64 =
                if fault.0 == FULL { |one| one.rx_packets } else { |one| one.tx_packets };
            if is_much(frames, vif.grown(&span.before, of), span.seconds) {
                dropped.remove(fault.0);
                found.push(lossy(span, vif, frames, fault));
            }
        }
        if !dropped.is_empty() {
            others.push((vif, dropped));
        }
    }
    found.extend(rest(span, &others));
    found
}

/// Whether frames get lost for a reason that no other check reports.
fn is_loss(vif: &Vif, reason: &str) -> bool {
    let is_harmless = HARMLESS.contains(&reason) && (reason, &*vif.locking_mode) != DISABLED;
    !is_harmless && !reason.ends_with(LIMIT)
}

fn lossy(span: &Span<Vifs>, vif: &Vif, frames: u64, fault: (&str, &str, &str)) -> Finding {
    let (reason, cause, advice) = fault;
    let (name, rate) = (&vif.name, float(frames) / span.seconds);
    let summary = format!("ringway drops {rate:.0} frames a second at {name}: {reason}");
    let command = format!("ringway vif show {}", shell_word(name));
    Finding::new(Severity::Warning, name.clone(), summary)
        .cause(cause)
        .quote([quote(span, vif, &Dropped::from([(reason, frames)]))])
        .advise(Advice::by_hand(advice, &[&command]))
}

/// What is little, or meant by the rules of a vif: someone may miss it all the same.
fn rest(span: &Span<Vifs>, others: &[(&Vif, Dropped<'_>)]) -> Option<Finding> {
    let frames = |dropped: &Dropped<'_>| sum(dropped.values());
    let (worst, _) = others.iter().max_by_key(|(_, dropped)| frames(dropped))?;
    let all: Vec<u64> = others.iter().map(|(_, dropped)| frames(dropped)).collect();
    let rate = float(sum(&all)) / span.seconds;
    let name = worst.name.as_str();
    let (subject, at) = match others.len() {
        1 => (name, name.to_owned()),
        count => ("ringway", format!("{count} vifs, most at {name}")),
    };
    let reasons: BTreeSet<&str> =
        others.iter().flat_map(|(_, dropped)| dropped.keys().copied()).collect();
    let reasons = reasons.into_iter().collect::<Vec<_>>().join(", ");
    let summary = format!("ringway drops {rate:.1} frames a second at {at}: {reasons}");
    let finding = Finding::new(Severity::Note, subject, summary)
        .loses(format!("{rate:.1} frames a second die in ringway at {at}: {reasons}"))
        .cause(
            "Rules of a vif drop what they do not allow, a switch what has no receiver, and a full \
             queue that by which TCP finds its rate. Frames to a guest count at its vif, all \
             others at the vif that sent them.",
        )
        .quote(others.iter().take(QUOTED_MAX).map(|(vif, dropped)| quote(span, vif, dropped)))
        .advise(Advice::by_hand(
            "If frames are missed: \"Why frames are dropped\" in docs/xen.md has the cause and the \
             remedy of each reason, for all kinds of vifs.",
            &[&format!("ringway vif show {}", shell_word(name))],
        ));
    Some(finding)
}

fn quote(span: &Span<Vifs>, vif: &Vif, dropped: &Dropped<'_>) -> Quote {
    let counts: Vec<String> =
        dropped.iter().map(|(reason, frames)| format!("{reason} +{frames}")).collect();
    let passed = |of: fn(&Queue) -> u64| vif.grown(&span.before, of);
    let text = format!(
        "{}: {} in {:.1} s; sent {}, received {} frames",
        vif.name,
        counts.join(", "),
        span.seconds,
        passed(|queue| queue.tx_packets),
        passed(|queue| queue.rx_packets)
    );
    Quote { file: span.text.origin().to_owned(), line: None, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_at_its_limit_and_what_loses_no_frame_are_no_alarm() {
        let rules = include_str!("../../../../../../packaging/doctor/alerts.yml");
        let rule = rules.lines().find(|line| line.contains("vif_drops_total")).expect("its rule");
        let others = format!("reason!~\"rate_limit|{}\"", HARMLESS.join("|"));
        assert!(rule.contains(&others), "{rule}");
    }
}
