//! What changed between two readings of the backend.

use std::collections::BTreeMap;
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
    /// The kind of the vif: `xen`, `virtio` or `namespace`; `-` for other ports.
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
    /// Those by reason; reasons without drops are left out.
    pub(crate) dropped_per_second: BTreeMap<String, f64>,
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
            let of_reason = |(reason, now): (&String, &u64)| {
                let then = then.dropped.get(reason).copied().unwrap_or_default();
                (*now > then).then(|| (reason.clone(), per_second(*now, then)))
            };
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
                dropped_per_second: queue.dropped.iter().filter_map(of_reason).collect(),
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

/// The rates in at most so many columns of a terminal: whole columns of the table are left out, and
/// no number is cut. The last three stay in any case, and names of vifs are cut for them.
pub(crate) fn rate_table_within(rates: &[QueueRate], columns: usize) -> String {
    let mut kept: Vec<usize> = (0..RATE_HEAD.len()).collect();
    let mut left_out = LEFT_OUT.iter();
    let mut name_len = rates.iter().map(|rate| rate.vif.chars().count()).max().unwrap_or_default();
    loop {
        let head: Vec<&str> = kept.iter().map(|at| RATE_HEAD[*at]).collect();
        let row = |rate: &QueueRate| {
            let mut row = rate_row(rate);
            row[0] = shortened(&row[0], name_len);
            kept.iter().map(|at| row[*at].clone()).collect()
        };
        let text = table::render(&head, rates.iter().map(row));
        let width = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        match (width.saturating_sub(columns), left_out.next()) {
            (0, _) => return text,
            (_, Some(next)) => kept.retain(|at| RATE_HEAD[*at] != *next),
            (excess, None) if name_len > excess => name_len -= excess,
            (_, None) => return text,
        }
    }
}

/// A name in at most so many columns.
fn shortened(name: &str, len_max: usize) -> String {
    match name.chars().count() > len_max {
        true => name.chars().take(len_max.saturating_sub(1)).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

/// The columns that a narrow terminal does not get, the first one first.
const LEFT_OUT: [&str; 7] =
    ["KIND", ">WORKER", "GUEST", ">TX PPS", ">RX PPS", ">QUEUE", ">DROPS/S"];

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

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_and_no_part_of_a_number() {
        let rate = QueueRate {
            vif: "vif12.0".to_owned(),
            kind: "virtio".to_owned(),
            guest: "database".to_owned(),
            queue: 3,
            worker: 1,
            tx_packets_per_second: 123_456.0,
            tx_bits_per_second: 1.16e9,
            rx_packets_per_second: 98_765.0,
            rx_bits_per_second: 9.41e9,
            drops_per_second: 7.0,
            dropped_per_second: BTreeMap::new(),
        };
        let wide = rate_table_within(std::slice::from_ref(&rate), 200);
        assert_eq!(wide, rate_table(std::slice::from_ref(&rate)));
        for columns in [30, 40, 60, 80] {
            let text = rate_table_within(std::slice::from_ref(&rate), columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
            assert!(text.contains("1.16 G") && text.contains("9.41 G"), "{columns}:\n{text}");
        }
        let rate = QueueRate { vif: "machine-of-the-database-team-0042".to_owned(), ..rate };
        for columns in [30, 40, 50] {
            let text = rate_table_within(std::slice::from_ref(&rate), columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
            assert!(text.contains("machin") && text.contains("9.41 G"), "{columns}:\n{text}");
        }
    }

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

    #[test]
    fn drops_are_counted_by_reason() {
        let start = Instant::now();
        let reading = |at, dropped: &[(&str, u64)]| {
            let mut reading = reading(at, 0);
            let dropped = dropped.iter().map(|(reason, count)| ((*reason).to_owned(), *count));
            reading.status.vifs[0].queues[0].dropped = dropped.collect();
            reading
        };
        let before = reading(start, &[("queue_full", 10), ("no_buffer", 5)]);
        let after = [("queue_full", 30), ("no_buffer", 5), ("flood_limit", 2)];
        let after = reading(start + Duration::from_secs(2), &after);
        let json = serde_json::to_value(between(&before, &after)).expect("JSON");
        assert_eq!(json[0]["drops_per_second"], 11.0);
        assert_eq!(
            json[0]["dropped_per_second"],
            serde_json::json!({ "flood_limit": 1.0, "queue_full": 10.0 })
        );
    }
}
