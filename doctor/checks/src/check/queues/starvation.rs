//! D32: one guest takes all capacity, and the others' frames are dropped.

use std::collections::BTreeMap;

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{Basis, Interfaces, NicRole, Span, float, share};
use ringway_evidence::facts;
use ringway_evidence::parse::nic::{Moved, NicCounters};

pub(crate) const CHECK: Check = Check {
    id: "D32",
    slug: "starvation",
    title: "one guest starves the others",
    group: Group::Queues,
    sources: &["network-node-blog:starving"],
    explanation: include_str!("starvation.txt"),
    absent: "fewer than two guests",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        moved: Span<NicCounters>,
        nics: Interfaces,
    }
}

/// Share of all guests' bytes from which one has them.
const SHARE_MIN: f64 = 0.8;
/// Packets per second from which there is anything to share.
const PACKETS_MIN: f64 = 1000.0;
/// Frames per second that others lose, and their fraction of these guests' frames, from which it is
/// more than a burst.
const DROPS_MIN: f64 = 1.0;
const DROPS_PART: f64 = 0.001;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 3;

/// A guest's interfaces together.
#[derive(Default)]
struct Guest {
    bytes: u64,
    packets: u64,
    dropped: u64,
    nics: Vec<(String, Moved)>,
}

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.moved;
    if span.before.nics.len() != span.after.nics.len() && span.basis == Basis::Samples {
        return Err(span.text.unreadable(None, "other interfaces than in the first sample"));
    }
    let guests = guests(facts, span);
    if guests.len() < 2 {
        return Ok(());
    }
    let total = guests.values().fold(0, |sum: u64, guest| sum.saturating_add(guest.bytes));
    let Some((name, most)) = guests.iter().max_by_key(|(_, guest)| guest.bytes) else {
        return not_here("no guests");
    };
    let part = share(most.bytes, total);
    let others = || guests.iter().filter(|(other, _)| *other != name).map(|(_, guest)| guest);
    let dropped = others().fold(0, |sum: u64, guest| sum.saturating_add(guest.dropped));
    let drops = float(dropped) / span.seconds;
    let passed = others().fold(dropped, |sum: u64, guest| sum.saturating_add(guest.packets));
    let is_loss = drops >= DROPS_MIN && share(dropped, passed) >= DROPS_PART;
    let is_load = float(most.packets) / span.seconds >= PACKETS_MIN;
    // A drop and a busy hour at different times since boot are no evidence.
    let is_now = span.basis == Basis::Samples;
    if part <= SHARE_MIN || !is_loss || !is_load || !is_now {
        let summary = format!(
            "{name} has {:.0} % of the guests' bytes; the others lose {drops:.1} frames/s",
            part * 100.0
        );
        let quote = most.nics.first().map(|(_, moved)| span.text.quote(moved.line));
        out.well(summary, quote);
        return Ok(());
    }
    let losing = others().flat_map(|guest| &guest.nics).filter(|(_, moved)| lost(moved) > 0);
    let losing: Vec<&(String, Moved)> = losing.take(QUOTES_MAX).collect();
    let summary = format!(
        "{name} has {:.0} % of all guests' bytes, and the others lose {drops:.0} frames/s",
        part * 100.0
    );
    let finding = Finding::new(Severity::Warning, name.clone(), summary)
        .cause(
            "One queue, one CPU or one link mostly serves the guest with the most packets; the \
             sum was hardly more than one guest alone reached. A guest that receives no frames \
             loses them as well, so check that the guests that lose frames work.",
        )
        .quote(most.nics.iter().take(1).map(|(_, moved)| span.text.quote(moved.line)))
        .quote(losing.iter().map(|(_, moved)| span.text.quote(moved.line)))
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "Queues first, so that a guest fills one CPU and not the only one (D14).",
            &["ringway doctor explain D14"],
        ));
    out.add([advise(finding, &losing, &most.nics)]);
    Ok(())
}

/// By domain, or by interface where a TAP device does not say whose it is.
fn guests(facts: &Facts, span: &Span<NicCounters>) -> BTreeMap<String, Guest> {
    let mut guests: BTreeMap<String, Guest> = BTreeMap::new();
    for (nic, after) in &span.after.nics {
        let Some(before) = span.past(span.before.nics.get(nic)) else { continue };
        if facts.nics.role(nic) != NicRole::Backend {
            continue;
        }
        let domain = nic.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
        let name = domain.map_or_else(|| nic.clone(), |(domain, _)| format!("domain {domain}"));
        let moved = after.since(&before);
        let guest = guests.entry(name).or_default();
        guest.bytes = guest.bytes.saturating_add(moved.rx_bytes.saturating_add(moved.tx_bytes));
        guest.packets = guest.packets.saturating_add(moved.packets());
        guest.dropped = guest.dropped.saturating_add(lost(&moved));
        guest.nics.push((nic.clone(), moved));
    }
    guests
}

/// Frames that were dropped while others passed: a guest that takes none at all is off, paused or
/// stuck, and not starved.
fn lost(moved: &Moved) -> u64 {
    let lost = |dropped: u64, passed: u64| if passed > 0 { dropped } else { 0 };
    let received = lost(moved.rx_dropped, moved.rx_packets);
    received.saturating_add(lost(moved.tx_dropped, moved.tx_packets))
}

fn advise(finding: Finding, losing: &[&(String, Moved)], most: &[(String, Moved)]) -> Finding {
    let fair: Vec<Change> = losing
        .iter()
        .filter(|(_, moved)| moved.tx_dropped > 0)
        .filter_map(|(nic, _)| Change::replace(Knob::Qdisc { nic: nic.clone() }, None, "fq_codel"))
        .collect();
    let finding = if fair.is_empty() {
        finding
    } else {
        finding.advise(Advice::by_change(
            "Use fair queues on the interfaces that drop frames for guests; this replaces the \
             current queueing discipline of the interface.",
            fair,
        ))
    };
    let Some((nic, _)) = most.first() else { return finding };
    finding.advise(Advice::by_hand(
        format!(
            "Or limit {nic} to a rate of your choice: a tbf at its root; on Xen rate=1Gb/s in the \
             vif's configuration also limits what the guest sends."
        ),
        &[],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{host, net_dev, sampled};

    /// What is found where one guest gets 100,000 frames in a second, and another as many as given
    /// while so many are dropped.
    fn found(passed: u64, dropped: u64) -> Finding {
        let files = sampled(|sample| {
            let row = |nic: &str, packets: u64, dropped: u64| {
                let [packets, dropped] = [packets, dropped].map(|count| count * (sample - 1));
                let bytes = packets * 1000;
                format!("{nic}: 0 0 0 0 0 0 0 0 {bytes} {packets} 0 {dropped} 0 0 0 0\n")
            };
            let rows = row("vif1.0", 100_000, 0) + &row("vif2.0", passed, dropped);
            [("proc/net/dev", net_dev(&rows))]
        });
        CHECK.run(&host(files)).remove(0)
    }

    #[test]
    fn a_guest_that_takes_nothing_is_not_starved() {
        assert_eq!(found(900, 30).severity, Severity::Warning);
        // A machine that is paused, and a few of many.
        assert_eq!(found(0, 30).severity, Severity::Ok);
        assert_eq!(found(9000, 5).severity, Severity::Ok);
    }
}
