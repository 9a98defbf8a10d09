//! What changed between two readings of the backend.

use std::time::Instant;

use ringway_control::{BackendStatus, QueueStatus};
use ringway_stats::float;
use ringway_terminal::table;
use serde::Serialize;

use crate::cells;

/// The backend at one moment.
pub(crate) struct Reading {
    pub(crate) at: Instant,
    pub(crate) status: BackendStatus,
}

/// The rates of one queue, per second. Directions are the guest's.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct QueueRate {
    /// Its vif.
    pub(crate) vif: String,
    /// The kind of the vif, `xen` or `virtio`; `-` for other ports.
    pub(crate) kind: String,
    /// The vif's guest.
    pub(crate) guest: String,
    /// Its number.
    pub(crate) queue: u16,
    /// The worker that owns it.
    pub(crate) worker: usize,
    /// Frames sent.
    pub(crate) tx_packets_per_second: f64,
    /// Bits of them.
    pub(crate) tx_bits_per_second: f64,
    /// Frames received.
    pub(crate) rx_packets_per_second: f64,
    /// Bits of them.
    pub(crate) rx_bits_per_second: f64,
    /// Frames dropped.
    pub(crate) drops_per_second: f64,
}

/// The rates of all queues that are in both readings.
pub(crate) fn between(before: &Reading, after: &Reading) -> Vec<QueueRate> {
    let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(1e-6);
    let per_second = |now: u64, then: u64| {
        // Counters begin at 0 when a vif reconnects.
        float(now.saturating_sub(then)) / seconds
    };
    let mut rates = Vec::new();
    for vif in after.status.ports() {
        let old = before.status.ports().find(|old| old.name == vif.name);
        let Some(old) = old else { continue };
        for queue in &vif.queues {
            let zero = QueueStatus::default();
            let then = old.queues.iter().find(|then| then.index == queue.index).unwrap_or(&zero);
            let drops = |queue: &QueueStatus| queue.dropped.values().sum::<u64>();
            rates.push(QueueRate {
                vif: vif.name.clone(),
                kind: cells::kind(vif).to_owned(),
                guest: vif.guest.clone().unwrap_or_else(|| "-".to_owned()),
                queue: queue.index,
                worker: queue.worker,
                tx_packets_per_second: per_second(queue.tx_packets, then.tx_packets),
                tx_bits_per_second: 8.0 * per_second(queue.tx_bytes, then.tx_bytes),
                rx_packets_per_second: per_second(queue.rx_packets, then.rx_packets),
                rx_bits_per_second: 8.0 * per_second(queue.rx_bytes, then.rx_bytes),
                drops_per_second: per_second(drops(queue), drops(then)),
            });
        }
    }
    rates
}

/// A table of what each queue does in a second.
pub(crate) fn rate_table(rates: &[QueueRate]) -> String {
    let rows = rates.iter().map(rate_row);
    table::render(&RATE_HEAD, rows)
}

/// The columns of [`rate_row`].
const RATE_HEAD: [&str; 10] = [
    "VIF",
    "KIND",
    "GUEST",
    ">QUEUE",
    ">WORKER",
    ">TX PPS",
    ">TX BIT/S",
    ">RX PPS",
    ">RX BIT/S",
    ">DROPS/S",
];

/// A queue's rates for people.
fn rate_row(rate: &QueueRate) -> Vec<String> {
    vec![
        rate.vif.clone(),
        rate.kind.clone(),
        rate.guest.clone(),
        rate.queue.to_string(),
        rate.worker.to_string(),
        table::scaled(rate.tx_packets_per_second, ""),
        table::scaled(rate.tx_bits_per_second, ""),
        table::scaled(rate.rx_packets_per_second, ""),
        table::scaled(rate.rx_bits_per_second, ""),
        table::scaled(rate.drops_per_second, ""),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringway_control::VifStatus;

    use super::*;

    fn reading(at: Instant, tx_bytes: u64) -> Reading {
        let queue = QueueStatus { tx_bytes, ..QueueStatus::default() };
        let vif = VifStatus { name: "vif1.0".into(), queues: vec![queue], ..VifStatus::default() };
        Reading { at, status: BackendStatus { vifs: vec![vif], ..BackendStatus::default() } }
    }

    #[test]
    fn a_rate_is_the_change_over_time_and_never_negative() {
        let start = Instant::now();
        let end = start + Duration::from_secs(2);
        let rate = |before, after| {
            between(&reading(start, before), &reading(end, after))[0].tx_bits_per_second
        };
        assert!((rate(1000, 3000) - 8000.0).abs() < 1e-6);
        assert!(rate(3000, 1000).abs() < 1e-6);
        assert!((rate(0, 1 << 40) - f64::from(1_u32 << 31) * 2048.0).abs() < 1.0);
    }
}
