//! A card that interrupts for each packet, or that delays packets for long.

use super::Facts;
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use ringway_evidence::fact::{Basis, NetIrq, float};
use ringway_evidence::parse::coalesce::Coalescing;
use ringway_evidence::{Gap, Quote};

/// Interrupts per second of one card from which they cost a good part of a CPU.
const IRQS_MIN: f64 = 20_000.0;
/// Received packets per interrupt below which a card does not coalesce.
const PACKETS_PER_IRQ: f64 = 2.0;
/// Microseconds up to which a card effectively does not wait.
const USECS_NONE: u64 = 1;
/// Drivers without an adaptive flag, for which 1 means a wait that adapts to the load: their
/// `InterruptThrottleRate`, in the kernel's documentation of each.
const BY_LOAD: [&str; 6] = ["e1000", "e1000e", "igb", "igbvf", "ixgbe", "ixgbevf"];
/// Microseconds from which a wait is longer than drivers' defaults, which are 3 to 100.
const USECS_LONG: u64 = 200;
/// Fraction of a round trip from which a wait matters.
const OF_ROUND_TRIP: f64 = 0.25;

pub(super) fn judge(facts: &Facts, nic: &str) -> Result<Option<Finding>, Gap> {
    let text = facts.coalescence.of(nic)?;
    let coalescing = Coalescing::parse(&text)?;
    if coalescing.is_adaptive {
        return Ok(None);
    }
    let Some((usecs, line)) = coalescing.usecs else { return Ok(None) };
    if usecs == 1 && is_by_load(facts, nic) {
        return Ok(None);
    }
    let quote = text.quote(line);
    let is_counting = coalescing.frames.is_some_and(|(frames, _)| frames > 1);
    if usecs <= USECS_NONE && !is_counting {
        return eager(facts, nic, usecs, quote);
    }
    if usecs >= USECS_LONG { Ok(patient(facts, nic, usecs, quote)) } else { Ok(None) }
}

/// A truncated name may be any that begins with it.
fn is_by_load(facts: &Facts, nic: &str) -> bool {
    facts
        .nics
        .driver(nic)
        .is_some_and(|driver| BY_LOAD.iter().any(|known| known.starts_with(&driver)))
}

/// The card does not wait at all, although there are many packets to coalesce.
fn eager(facts: &Facts, nic: &str, usecs: u64, quote: Quote) -> Result<Option<Finding>, Gap> {
    let known = facts.irqs.get()?;
    let (interrupts, counters) = (&known.span, facts.moved.get()?);
    let irqs = known.all();
    let own: Vec<&NetIrq<'_>> = irqs.iter().filter(|irq| irq.of.device == nic).collect();
    let count =
        own.iter().flat_map(|irq| &irq.counts).fold(0, |sum: u64, one| sum.saturating_add(*one));
    let before = counters.past(counters.before.nics.get(nic));
    let (Some(after), Some(before)) = (counters.after.nics.get(nic), before) else {
        return Ok(None);
    };
    let moved = after.since(&before);
    let rate = float(count) / interrupts.seconds;
    let packets = float(moved.rx_packets);
    if interrupts.basis == Basis::SinceBoot
        || rate < IRQS_MIN
        || packets > float(count) * PACKETS_PER_IRQ
    {
        return Ok(None);
    }
    let most = own.iter().max_by_key(|irq| irq.counts.iter().max());
    let summary = format!("{nic} interrupts {rate:.0} times a second, almost for each packet");
    let finding = Finding::new(Severity::Warning, nic, summary)
        .cause(format!(
            "It waits {usecs} us before it interrupts, so each packet costs an interrupt. A few \
             microseconds more combine several packets."
        ))
        .quote([quote, counters.text.quote(moved.line)])
        .quote(most.map(|irq| interrupts.text.quote(irq.row.line)))
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "Let the driver adapt to the load; if it cannot, set a fixed time: ethtool -C NIC \
             rx-usecs 20. The setting is lost at a restart.",
            &adapt(nic).iter().map(String::as_str).collect::<Vec<_>>(),
        ));
    Ok(Some(finding))
}

/// The command that lets the driver choose; `None` for a name that would be parsed as an option.
fn adapt(nic: &str) -> Option<String> {
    (!nic.starts_with('-')).then(|| format!("ethtool -C {} adaptive-rx on", shell_word(nic)))
}

/// The card waits long; round trips show whether that matters.
fn patient(facts: &Facts, nic: &str, usecs: u64, quote: Quote) -> Option<Finding> {
    let span = facts.sockets.ok()?;
    let remote = span.after.all.iter().filter(|socket| !socket.is_local());
    let trips =
        remote.filter_map(|socket| Some((socket.min_rtt_ms.or(socket.rtt_ms)?, socket.line)));
    let (trip, line) = trips.min_by(|a, b| a.0.total_cmp(&b.0))?;
    if float(usecs) / 1e3 < trip * OF_ROUND_TRIP {
        return None;
    }
    let summary = format!("{nic} delays packets by up to {usecs} us; a round trip takes {trip} ms");
    let finding = Finding::new(Severity::Warning, nic, summary)
        .cause(
            "The card waits long before it interrupts, so each packet is delayed. If round trips \
             are short, this delay is most of the round trip.",
        )
        .quote([quote, span.text.quote(line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "Let the driver adapt to the load; if it cannot, set a shorter time: ethtool -C NIC \
             rx-usecs 20. Interrupts then use more CPU time.",
            &adapt(nic).iter().map(String::as_str).collect::<Vec<_>>(),
        ));
    Some(finding)
}
