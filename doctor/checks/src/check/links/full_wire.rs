//! D09: the link is full, and nothing in software can change that.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{Basis, Interfaces, Mtus, NicRole, Span, Speeds, float};
use ringway_evidence::facts;
use ringway_evidence::parse::nic::{Moved, NicCounters};

pub(crate) const CHECK: Check = Check {
    id: "D09",
    slug: "full-wire",
    title: "the link is full",
    group: Group::Links,
    sources: &[
        "throughput-guide:physical-limit",
        "network-node-blog:card",
        "network-node-blog:ideal",
    ],
    explanation: include_str!("full_wire.txt"),
    absent: "no card that reports its speed",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        moved: Span<NicCounters>,
        nics: Interfaces,
        speeds: Speeds,
        mtus: Mtus,
    }
}

/// Share of its speed from which a link is full.
const FULL: f64 = 0.97;
/// Bytes on the wire for each frame that are not counted: preamble, checksum and gap.
const FRAMING: u64 = 24;
/// Cards that segment large packets may count them unsegmented. A single frame has at most this
/// many bytes.
const FRAME_BYTES: u64 = 1514;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.moved;
    let mut most: Option<(f64, String)> = None;
    for (nic, after) in &span.after.nics {
        let Some((speed, quote)) = speed(facts, nic) else { continue };
        let Some(before) = span.past(span.before.nics.get(nic)) else { continue };
        let moved = after.since(&before);
        let (way, bytes) = busiest(&moved, is_jumbo(facts, nic));
        let full = float(bytes) * 8.0 / span.seconds / (float(speed) * 1e6);
        if most.as_ref().is_none_or(|(most, _)| full > *most) {
            most = Some((full, nic.clone()));
        }
        if full >= FULL && span.basis == Basis::Samples {
            let summary = format!(
                "{nic} {way} {:.0} % of what its {speed} Mbit/s link can carry",
                full * 100.0
            );
            out.add([Finding::new(Severity::Warning, nic.clone(), summary)
                .cause("The link is the limit: no setting of this host gets more through it.")
                .quote([span.text.quote(after.line), quote])
                .confidence(Confidence::Medium)
                .advise(Advice::by_hand(
                    "Add another path: a second card or a bond, with vifs on it. Or reduce the \
                     overhead with longer frames (D08).",
                    &["ringway doctor explain D09"],
                ))]);
        }
    }
    if let Some((full, nic)) = most {
        out.well(format!("{nic} carries {:.0} % of its capacity", full * 100.0), None);
    }
    Ok(())
}

/// A card's speed in Mbit/s; that of virtual ones is meaningless.
fn speed(facts: &Facts, nic: &str) -> Option<(u64, Quote)> {
    if facts.nics.role(nic) != NicRole::Physical {
        return None;
    }
    let text = facts.speeds.of(nic).ok()?;
    let speed = text.number().ok().filter(|speed| *speed > 0)?;
    Some((speed, text.quote(1)))
}

fn is_jumbo(facts: &Facts, nic: &str) -> bool {
    let mtu = facts.mtus.of(nic).and_then(|text| text.number());
    mtu.is_ok_and(|mtu| mtu > 1500)
}

/// The direction with more bytes on the wire.
fn busiest(moved: &Moved, is_jumbo: bool) -> (&'static str, u64) {
    let on_wire = |bytes: u64, packets: u64| {
        let frames = if is_jumbo { packets } else { packets.max(bytes / FRAME_BYTES) };
        bytes.saturating_add(frames.saturating_mul(FRAMING))
    };
    let sent = on_wire(moved.tx_bytes, moved.tx_packets);
    let received = on_wire(moved.rx_bytes, moved.rx_packets);
    if sent >= received { ("sends", sent) } else { ("receives", received) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_frames_fill_the_wire() {
        // 812743 frames of 1514 bytes are a second of 10 Gbit/s.
        let moved = Moved { tx_packets: 812_743, tx_bytes: 812_743 * 1514, ..Moved::default() };
        let (way, bytes) = busiest(&moved, false);
        assert_eq!(way, "sends");
        assert!((float(bytes) * 8.0 / 1e10 - 1.0).abs() < 1e-4);
    }
}
