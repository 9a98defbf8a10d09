//! Frames of flows that are leaving a queue: they are steered when their flows have moved or stay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{Frame, QueueCounters};
use ringway_steering::balance::{BUCKETS, bucket_of};
use ringway_switch::PortId;

use crate::gauge::Backlog;

/// A frame that waits for its flow. It is complete, and tagged as its port requires.
pub(crate) struct ParkedFrame {
    /// That of its flow.
    pub(crate) hash: u32,
    pub(crate) frame: Frame,
    /// Those of the queue that it came from.
    pub(crate) counters: Arc<QueueCounters>,
}

/// The parked frames of an engine, by port.
#[derive(Default)]
pub(crate) struct Parked {
    ports: BTreeMap<PortId, OfPort>,
    /// Memory that all of them take.
    pub(crate) memory: usize,
}

/// Those of a port, in the order in which they came. None leaves before others of the same bucket
/// that came before it.
struct OfPort {
    frames: Vec<ParkedFrame>,
    bytes: usize,
    /// Whether some are of this bucket.
    has: [bool; BUCKETS],
    /// When their flows stay.
    until: Instant,
}

impl Parked {
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = (PortId, &Frame)> {
        let ports = self.ports.iter();
        ports.flat_map(|(port, of)| of.frames.iter().map(move |parked| (*port, &parked.frame)))
    }

    /// The ports that have any.
    pub(crate) fn ports(&self) -> Vec<PortId> {
        self.ports.keys().copied().collect()
    }

    /// The hash of the oldest frame for a port, and when flows to that stay.
    pub(crate) fn oldest(&self, port: PortId) -> Option<(u32, Instant)> {
        let of = self.ports.get(&port)?;
        Some((of.frames.first()?.hash, of.until))
    }

    /// Whether frames to a port of the bucket of this hash are here.
    pub(crate) fn has(&self, port: PortId, hash: u32) -> bool {
        self.ports.get(&port).is_some_and(|of| of.has[bucket_of(hash)])
    }

    /// Takes out those for a port.
    pub(crate) fn take(&mut self, port: PortId) -> Vec<ParkedFrame> {
        let frames = self.ports.remove(&port).map_or_else(Vec::new, |of| of.frames);
        self.memory -= frames.iter().map(|parked| parked.frame.memory()).sum::<usize>();
        frames
    }

    /// Adds a frame; flows stay from `until` on, if it is the first. Returns how much there is for
    /// the port.
    pub(crate) fn push(&mut self, port: PortId, parked: ParkedFrame, until: Instant) -> Backlog {
        let empty = || OfPort { frames: Vec::new(), bytes: 0, has: [false; BUCKETS], until };
        let of = self.ports.entry(port).or_insert_with(empty);
        of.has[bucket_of(parked.hash)] = true;
        of.bytes += parked.frame.len();
        self.memory += parked.frame.memory();
        of.frames.push(parked);
        Backlog { frames: of.frames.len(), bytes: of.bytes }
    }
}
