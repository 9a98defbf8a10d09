//! Limits of ringway's own vifs, which may have no interface on this host.

use super::{AT_LIMIT, Facts, Limit, Remedy};
use ringway_evidence::Quote;
use ringway_evidence::fact::{Span, float, sum};
use ringway_evidence::parse::ringway::{Queue, Rate, Vif, Vifs};

/// What ringway says of a frame for which there was no room because of a limit.
const LIMITED: &str = "rate_limit";

/// The limits of all vifs, in either direction; none where no ringway runs.
pub(super) fn inspect(facts: &Facts) -> Vec<Limit> {
    let Some(span) = facts.vifs.ok() else { return Vec::new() };
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
    let Rate { bytes, interval_us } = rate;
    if bytes == 0 || interval_us == 0 {
        return None;
    }
    let grown = |of: fn(&Queue) -> u64| {
        let of_queue = |queue: &Queue| {
            Some(of(queue).saturating_sub(of(span.before.queue(&vif.name, queue.index)?)))
        };
        sum(&vif.queues.iter().filter_map(of_queue).collect::<Vec<_>>())
    };
    let limited = |queue: &Queue| queue.dropped.get(LIMITED).copied().unwrap_or(0);
    let dropped = if is_sent { grown(limited) } else { 0 };
    let passed = grown(if is_sent { |one| one.rx_bytes } else { |one| one.tx_bytes });
    let (key, name) = (if is_sent { "rate-rx" } else { "rate" }, &vif.name);
    let said = format!(
        "{name}: {key} {bytes} bytes in {interval_us} us; {dropped} frames dropped: {LIMITED}"
    );
    Some(Limit {
        nic: name.clone(),
        bytes_per_second: float(bytes) * 1e6 / float(interval_us),
        passed: Some(passed),
        is_sent,
        quote: Quote { file: span.text.origin().to_owned(), line: None, text: said },
        held: AT_LIMIT,
        is_pressed: dropped > 0,
        parts: 1,
        remedy: Remedy::Elsewhere,
    })
}
