//! `/proc/net/dev`: the counters of each interface.

use std::collections::BTreeMap;

use super::{Counters, next_number};
use crate::{Gap, Text};

/// All interfaces of one network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// By name.
    pub nics: BTreeMap<String, Moved>,
}

/// One interface, as its own host sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames received.
    pub rx_packets: u64,
    /// Frames that arrived damaged, or that the card could not accept.
    pub rx_errors: u64,
    /// Received frames that were dropped.
    pub rx_dropped: u64,
    /// Received frames for groups; 0 for devices that do not count them.
    pub rx_multicast: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
    /// Outgoing frames that were dropped.
    pub tx_dropped: u64,
    /// Its line in the file.
    pub line: usize,
}

impl Counters for NicCounters {
    fn parse(text: &Text) -> Result<NicCounters, Gap> {
        let head = text.lines().next().map(|(_, line)| line).unwrap_or_default();
        if !head.starts_with("Inter-|") {
            return Err(text.unreadable(Some(1), "expected the head of /proc/net/dev"));
        }
        let mut nics = BTreeMap::new();
        for (line, row) in text.lines().skip(2) {
            let (name, rest) = row
                .split_once(':')
                .ok_or_else(|| text.unreadable(Some(line), "expected an interface and a colon"))?;
            let mut words = rest.split_whitespace();
            let mut column = [0; 16];
            for value in &mut column {
                *value = next_number(&mut words, text, line)?;
            }
            let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, rx_multicast, ..] = column;
            let [.., tx_bytes, tx_packets, tx_errors, tx_dropped, _, _, _, _] = column;
            let moved = Moved {
                rx_bytes,
                rx_packets,
                rx_errors,
                rx_dropped,
                rx_multicast,
                tx_bytes,
                tx_packets,
                tx_errors,
                tx_dropped,
                line,
            };
            nics.insert(name.trim().to_owned(), moved);
        }
        Ok(NicCounters { nics })
    }
}

impl Moved {
    /// The growth since `before`. An interface that was created again starts at 0.
    pub fn since(&self, before: &Moved) -> Moved {
        Moved {
            rx_bytes: self.rx_bytes.saturating_sub(before.rx_bytes),
            rx_packets: self.rx_packets.saturating_sub(before.rx_packets),
            rx_errors: self.rx_errors.saturating_sub(before.rx_errors),
            rx_dropped: self.rx_dropped.saturating_sub(before.rx_dropped),
            rx_multicast: self.rx_multicast.saturating_sub(before.rx_multicast),
            tx_bytes: self.tx_bytes.saturating_sub(before.tx_bytes),
            tx_packets: self.tx_packets.saturating_sub(before.tx_packets),
            tx_errors: self.tx_errors.saturating_sub(before.tx_errors),
            tx_dropped: self.tx_dropped.saturating_sub(before.tx_dropped),
            line: self.line,
        }
    }

    /// Packets in both directions.
    pub fn packets(&self) -> u64 {
        self.rx_packets.saturating_add(self.tx_packets)
    }
}
