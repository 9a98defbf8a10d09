//! D51: pause frames: a card is asked to stop sending, or asks its peers to stop.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{Basis, Interfaces, NicRole, QueueCounters, Span, float};
use ringway_evidence::facts;
use ringway_evidence::parse::ethtool::{Statistics, counts_pauses};

pub(crate) const CHECK: Check = Check {
    id: "D51",
    slug: "pauses",
    title: "pause frames stop a link",
    group: Group::Links,
    sources: &["kernel-ethtool-pause:statistics"],
    explanation: include_str!("pauses.txt"),
    absent: "no card that counts pause frames",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        nics: Interfaces,
        counters: QueueCounters,
    }
}

/// Pause frames per second from which they take a good part of a link: at 10 Gbit/s one frame stops
/// the link for up to 3.4 ms.
const PAUSES_MIN: f64 = 50.0;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let (mut is_counted, mut is_compared) = (false, false);
    for nic in facts.nics.names() {
        if facts.nics.role(&nic) != NicRole::Physical {
            continue;
        }
        let Ok(span) = facts.counters.of(&nic) else { continue };
        is_counted |= span.after.counters.keys().any(|name| counts_pauses(name).is_some());
        if span.basis == Basis::Samples {
            is_compared = true;
            out.add(of_way(&span, &nic, false));
            out.add(of_way(&span, &nic, true));
        }
    }
    if !is_counted {
        return not_here(CHECK.absent);
    }
    if !is_compared {
        return out.one_sample("pause frames are");
    }
    out.well("cards almost never pause each other", None);
    Ok(())
}

fn of_way(span: &Span<Statistics>, nic: &str, is_sent: bool) -> Option<Finding> {
    // A driver may count the same frames under several names.
    let grown = span.after.counters.iter().filter_map(|(name, (count, line))| {
        if counts_pauses(name) != Some(is_sent) {
            return None;
        }
        let known = span.before.counters.get(name).map(|(before, _)| before);
        Some((count.saturating_sub(span.past(known)?), *line))
    });
    let (count, line) = grown.max()?;
    let rate = float(count) / span.seconds;
    if rate < PAUSES_MIN {
        return None;
    }
    let (summary, cause, advice) = if is_sent {
        let summary = format!("{nic} asks the other end to pause, {rate:.0} times a second");
        (
            summary,
            "This host receives more slowly than frames arrive: the card's memory or ring is \
             full, because the CPU that empties it, or the bus, is too slow. All senders behind \
             the switch wait.",
            "See D03, D18 and D29 for the CPUs and rings of this host, and D28 for the card's \
             node.",
        )
    } else {
        let summary = format!("{nic} is asked to pause, {rate:.0} times a second");
        (
            summary,
            "The switch or host at the other end has no room for what this host sends, and this \
             card waits: its throughput is that of the slowest receiver behind the link.",
            "On the switch, find the port that is full and the host behind it. ethtool -a shows \
             under RX whether the card reacts to pause frames.",
        )
    };
    let finding = Finding::new(Severity::Warning, nic, summary)
        .cause(cause)
        .quote([span.text.quote(line)])
        .confidence(Confidence::High)
        .advise(Advice::by_hand(advice, &[]));
    Some(finding)
}
