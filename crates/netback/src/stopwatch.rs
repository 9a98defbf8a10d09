//! How long a guest waits for responses, measured for one slot at a time, so that the clock is read
//! at most twice per batch, not per packet.

use std::num::Wrapping;
use std::time::{Duration, Instant};

use ringway_wire::netif::TX_RING_SLOTS;

/// Slots skipped between two watched slots, if batches are small.
const STEP: u32 = 64;

/// Measures the time of one slot of a tx ring from its first sight to its response.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// The watched slot, by its free-running index.
    slot: Wrapping<u32>,
    /// When it was first seen, if it has been.
    seen: Option<Instant>,
    /// The first slot that has not been seen.
    unseen: Wrapping<u32>,
}

impl Stopwatch {
    /// For a ring whose slots before this index have been seen.
    pub(crate) fn of(slot: u32) -> Stopwatch {
        Stopwatch { slot: Wrapping(slot), seen: None, unseen: Wrapping(slot) }
    }

    /// Notes that `count` slots from index `first` on are seen; all earlier slots have been seen
    /// before.
    #[inline]
    pub(crate) fn on_seen(&mut self, first: u32, count: usize) {
        let count = u32::try_from(count).expect("a ring is small");
        if self.seen.is_none() && (self.slot - Wrapping(first)).0 < count {
            self.seen = Some(Instant::now());
        }
        self.unseen = Wrapping(first) + Wrapping(count);
    }

    /// Notes that slots before index `end` have their responses. Returns the time that the watched
    /// slot took, if it is among them, and chooses the next slot to watch.
    #[inline]
    pub(crate) fn completed(&mut self, end: u32) -> Option<Duration> {
        let seen = self.seen?;
        // For a slot that is still ahead, the distance is nearly 2^32.
        let behind = usize::try_from((Wrapping(end) - self.slot).0).unwrap_or(usize::MAX);
        if !(1..=TX_RING_SLOTS).contains(&behind) {
            return None;
        }
        self.slot = self.unseen + Wrapping(STEP);
        self.seen = None;
        Some(seen.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watched_slot_is_timed_from_its_request_to_its_completion() {
        for start in [0, u32::MAX, u32::MAX - 60] {
            let at = |index: u32| start.wrapping_add(index);
            let mut watch = Stopwatch::of(at(0));
            assert_eq!(watch.completed(at(0)), None, "it was not seen");
            watch.on_seen(at(0), 3);
            assert_eq!(watch.completed(at(0)), None, "it is the next to be completed");
            assert!(watch.completed(at(1)).is_some());
            watch.on_seen(at(1), 66);
            assert_eq!(watch.completed(at(67)), None, "the next one has never been seen");
            watch.on_seen(at(67), 64);
            assert_eq!(watch.completed(at(67)), None, "it is the next to be completed");
            assert!(watch.completed(at(68)).is_some());
        }
    }
}
