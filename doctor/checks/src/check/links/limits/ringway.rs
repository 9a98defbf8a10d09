//! Limits of ringway's own vifs, which may have no interface on this host.

use super::police::Policed;
use super::{AT_LIMIT, Limit, PRESSED_MIN, Remedy};
use crate::finding::{Advice, Finding, Severity, shell_word};
use ringway_evidence::Quote;
use ringway_evidence::fact::{Span, float, share, sum};
use ringway_evidence::parse::ringway::{Queue, Rate, Vif, Vifs};

/// What ringway says of a frame for which there was no room because of a limit.
const LIMITED: &str = "rate_limit";
/// What it says of frames that a guest may not flood, and what may not.
const FLOODED: [&str; 4] = ["broadcast_limit", "flood_limit", "multicast_limit", "unknown_limit"];
/// Names of limits that are for all frames.
const RATES: [&str; 2] = ["rate", "rate-rx"];
/// Part of a guest's frames from which a limit that drops them is more than a passing burst.
const DROPPED_MIN: f64 = 0.01;
const OF_FLOODS: &str = "Frames to all, to groups and to unknown addresses go to every guest, so \
                         ringway limits by default what each may send of them. Above that ARP and \
                         neighbour discovery get lost, too.";
const OF_BURSTS: &str = "Its rate-rx is not reached on average, but more arrives at once than it \
                         allows and than may wait.";

/// The rates of all vifs, in either direction.
pub(super) fn rates(span: &Span<Vifs>) -> Vec<Limit> {
    let of_one = |vif: &Vif| {
        let limits = &vif.limits;
        [(limits.rate, false), (limits.rate_rx, true)]
            .into_iter()
            .filter_map(|(rate, is_sent)| limit(span, vif, rate?, is_sent))
            .collect::<Vec<_>>()
    };
    span.after.all.iter().flat_map(of_one).collect()
}

/// `is_sent` is the host's direction: what the guest receives.
fn limit(span: &Span<Vifs>, vif: &Vif, rate: Rate, is_sent: bool) -> Option<Limit> {
    let bytes_per_second = rate.per_second()?;
    let Rate { bytes, interval_us } = rate;
    let dropped = if is_sent { limited(span, vif) } else { 0 };
    let of: fn(&Queue) -> u64 = if is_sent { |one| one.rx_bytes } else { |one| one.tx_bytes };
    let (key, name) = (if is_sent { "rate-rx" } else { "rate" }, &vif.name);
    let said = format!(
        "{name}: {key} {bytes} bytes in {interval_us} us; {dropped} frames dropped: {LIMITED}"
    );
    Some(Limit {
        nic: name.clone(),
        bytes_per_second,
        passed: Some(vif.grown(&span.before, of)),
        is_sent,
        quote: Quote { file: span.text.origin().to_owned(), line: None, text: said },
        held: AT_LIMIT,
        is_pressed: dropped > 0,
        parts: 1,
        remedy: Remedy::Elsewhere,
    })
}

/// Frames that were more than a guest may receive.
fn limited(span: &Span<Vifs>, vif: &Vif) -> u64 {
    vif.dropped(&span.before).get(LIMITED).copied().unwrap_or(0)
}

/// What limits of floods dropped, and rates that are not reached on average: any frame that
/// ringway drops by a limit was above it.
pub(super) fn drops(span: &Span<Vifs>) -> Policed {
    let mut policed = Policed::default();
    for vif in &span.after.all {
        let named = vif.limits.named();
        let floods: Vec<&(&str, f64)> =
            named.iter().filter(|(name, _)| !RATES.contains(name)).collect();
        policed.count += floods.len();
        if let Some((limit, most)) = floods.first() {
            policed.quote.get_or_insert_with(|| quote(span, vif, &format!("{limit} {most}")));
        }
        let sent = vif.grown(&span.before, |queue| queue.tx_packets);
        policed.findings.extend(dropped(span, vif, &FLOODED, sent, OF_FLOODS));
        if !is_at_rate(span, vif) {
            let received = vif.grown(&span.before, |queue| queue.rx_packets);
            policed.findings.extend(dropped(span, vif, &[LIMITED], received, OF_BURSTS));
        }
    }
    policed
}

/// Whether a guest receives so much of its rate that its drops are found by that.
fn is_at_rate(span: &Span<Vifs>, vif: &Vif) -> bool {
    let rate = float(vif.grown(&span.before, |queue| queue.rx_bytes)) / span.seconds;
    let most = vif.limits.rate_rx.and_then(Rate::per_second);
    most.is_some_and(|most| (PRESSED_MIN..=*AT_LIMIT.end()).contains(&(rate / most)))
}

/// What was dropped for some reasons, beside the frames that passed.
fn dropped(
    span: &Span<Vifs>,
    vif: &Vif,
    reasons: &[&str],
    passed: u64,
    cause: &str,
) -> Option<Finding> {
    let mut counts = vif.dropped(&span.before);
    counts.retain(|reason, _| reasons.contains(reason));
    let frames = sum(counts.values());
    if frames == 0 {
        return None;
    }
    let counts: Vec<String> =
        counts.iter().map(|(reason, frames)| format!("{reason} {frames}")).collect();
    let (name, said) = (&vif.name, counts.join(", "));
    let rate = float(frames) / span.seconds;
    let is_much = share(frames, passed.max(frames)) >= DROPPED_MIN;
    let severity = if is_much { Severity::Warning } else { Severity::Note };
    let summary = format!("a limit of {name} drops {rate:.1} frames a second: {said}");
    let finding = Finding::new(severity, name.clone(), summary)
        .cause(cause)
        .quote([quote(span, vif, &said)])
        .advise(Advice::by_hand(
            "Find out what sends them (tcpdump in the guest). If they are wanted, raise the limit \
             with `ringway vif set`, and where the vif is described.",
            &[&format!("ringway vif show {}", shell_word(name))],
        ));
    let loss = format!("{rate:.1} frames a second of {name} die by its limit: {said}");
    Some(if is_much { finding } else { finding.loses(loss) })
}

fn quote(span: &Span<Vifs>, vif: &Vif, said: &str) -> Quote {
    let text = format!("{}: {said}", vif.name);
    Quote { file: span.text.origin().to_owned(), line: None, text }
}
