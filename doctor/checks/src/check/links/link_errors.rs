//! D37: a link damages frames, or flaps.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    Basis, Carriers, Duplexes, Interfaces, LinkStates, NicRole, Span, Speeds, float, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::Single;
use ringway_evidence::parse::nic::{Moved, NicCounters};

pub(crate) const CHECK: Check = Check {
    id: "D37",
    slug: "link-errors",
    title: "a link has errors, or goes up and down",
    group: Group::Links,
    sources: &["kernel-statistics:errors"],
    explanation: include_str!("link_errors.txt"),
    absent: "no interface but the loopback",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        moved: Span<NicCounters>,
        carriers: Carriers,
        duplexes: Duplexes,
        speeds: Speeds,
        states: LinkStates,
        nics: Interfaces,
    }
}

/// Errors per second from which they are more than chance.
const ERRORS_MIN: f64 = 1.0;
/// Fraction of all frames from which errors matter: TCP halves its rate for each.
const ERRORS_PART: f64 = 0.0001;
/// Carrier changes from which a link flaps: down and up three times. A guest that restarts takes
/// its link down and up once, and twice if its firmware boots from the network.
const CHANGES_MIN: u64 = 6;
/// Carrier changes a second from which a link flaps: one a minute. In an hour a guest may well
/// restart some times.
const CHANGES_PER_SECOND_MIN: f64 = 1.0 / 60.0;
/// A modern card at this speed in Mbit/s or less has a bad cable or an old switch.
const SLOW_MBIT: u64 = 100;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.moved;
    if span.after.nics.keys().all(|nic| nic == "lo") {
        return not_here(CHECK.absent);
    }
    for (nic, after) in span.after.nics.iter().filter(|(nic, _)| nic.as_str() != "lo") {
        out.add(flaps(facts, nic));
        out.add(half(facts, nic));
        out.add(slow(facts, nic));
        if let Some(before) = span.past(span.before.nics.get(nic)) {
            out.add(errors(span, nic, &after.since(&before)));
        }
    }
    out.well(
        match span.basis {
            Basis::Samples => "links have almost no errors, and do not flap",
            Basis::SinceBoot => {
                "no link is slow or half duplex; errors are only known since the boot"
            }
        },
        None,
    );
    Ok(())
}

/// Changes of a link's carrier between the samples, and where they are, if it flaps.
fn changes(facts: &Facts, nic: &str) -> Option<(u64, Span<Single>)> {
    let span = facts.carriers.of(nic).ok().filter(|span| span.basis == Basis::Samples)?;
    let changes = span.after.0.saturating_sub(span.before.0);
    let is_often = float(changes) / span.seconds >= CHANGES_PER_SECOND_MIN;
    (changes >= CHANGES_MIN && is_often).then_some((changes, span))
}

fn flaps(facts: &Facts, nic: &str) -> Option<Finding> {
    let (changes, span) = changes(facts, nic)?;
    // A bridge or a VLAN has a link as long as one below it has.
    if facts.nics.lower(nic).iter().any(|below| self::changes(facts, below).is_some()) {
        return None;
    }
    let summary =
        format!("the link of {nic} went up or down {changes} times in {:.1} s", span.seconds);
    Some(
        Finding::new(Severity::Problem, nic, summary)
            .cause(
                "Each time, everything in flight is lost, and what depends on the link changes: \
                 bonds, bridges, routes. Causes are a cable, a transceiver, power saving of the \
                 card, or the program or switch at the other end.",
            )
            .quote([span.text.quote(1)])
            .advise(Advice::by_hand(
                "Check the kernel's messages and the other end; replace the cable and the \
                 transceiver, one at a time.",
                &["dmesg"],
            )),
    )
}

fn half(facts: &Facts, nic: &str) -> Option<Finding> {
    let duplex = facts.duplexes.of(nic).ok().filter(|text| text.value() == "half")?;
    if facts.states.of(nic).is_ok_and(|state| state.value() == "down") {
        return None;
    }
    let summary = format!("{nic} runs in half duplex");
    Some(
        Finding::new(Severity::Warning, nic, summary)
            .cause(
                "The two ends were set, or detected, differently: under load frames collide, and \
                 are sent again or lost.",
            )
            .quote([duplex.quote(1)])
            .advise(Advice::by_hand(
                "Use autonegotiation at both ends, or set both to the same. ethtool shows what \
                 this end has; ethtool -s sets autoneg, speed and duplex.",
                &[],
            )),
    )
}

fn slow(facts: &Facts, nic: &str) -> Option<Finding> {
    let text = facts.speeds.of(nic).ok()?;
    let mbit = text.number().ok().filter(|mbit| (1..=SLOW_MBIT).contains(mbit))?;
    if facts.nics.role(nic) != NicRole::Physical {
        return None;
    }
    let summary = format!("the link of {nic} runs at {mbit} Mbit/s");
    let finding = Finding::new(Severity::Note, nic, summary);
    Some(
        finding
            .cause(
                "Almost every card supports 1000 or more. A cable with only two working pairs or \
                 an old switch reduces it.",
            )
            .quote([text.quote(1)]),
    )
}

fn errors(span: &Span<NicCounters>, nic: &str, moved: &Moved) -> Option<Finding> {
    let of = |errors: u64, packets: u64, way: &str| {
        let rate = float(errors) / span.seconds;
        let part = share(errors, errors.saturating_add(packets));
        (rate >= ERRORS_MIN && part >= ERRORS_PART && span.basis == Basis::Samples)
            .then(|| format!("{rate:.1} a second {way}, {:.2} %", part * 100.0))
    };
    let received = of(moved.rx_errors, moved.rx_packets, "of what it receives");
    let sent = of(moved.tx_errors, moved.tx_packets, "of what it sends");
    let is_received = received.is_some();
    let both: Vec<String> = received.into_iter().chain(sent).collect();
    if both.is_empty() {
        return None;
    }
    let (cause, advice) = match is_received {
        true => (
            "Frames arrive damaged or too long, or the card had no room: a cable, a transceiver, \
             a duplex mismatch, a sender with a larger MTU. For a tunnel or TAP: headers that do \
             not match.",
            "Find out which errors these are (length, crc, frame, missed), replace cable and \
             port, and compare MTU and duplex with the other end.",
        ),
        false => (
            "Frames could not be sent: no carrier, collisions, or for a tunnel no route to its \
             other end.",
            "Find out which errors these are (carrier, window, collisions); for a tunnel, check \
             whether its other end has a route and a neighbour entry.",
        ),
    };
    Some(
        Finding::new(Severity::Warning, nic, format!("{nic} has errors: {}", both.join("; ")))
            .cause(cause)
            .quote([span.text.quote(moved.line)])
            .confidence(Confidence::High)
            .advise(Advice::by_hand(advice, &["ip -s -s link"])),
    )
}
