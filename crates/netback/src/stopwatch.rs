//! How long a guest waits for its responses, measured at some of its slots: one at a time, so that
//! the clock is read twice for a batch at most, and not for every packet.

use std::num::Wrapping;
use std::time::{Duration, Instant};

use ringway_wire::netif::TX_RING_SLOTS;

/// Slots that are seen and not watched between two that are, where batches are small.
const STEP: u32 = 64;

/// Watches one slot of a tx ring from the first time it is seen to its response.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// The slot that is watched, by its free-running index.
    slot: Wrapping<u32>,
    /// When it was first seen, once it was.
    seen: Option<Instant>,
    /// The first slot that has not been seen.
    unseen: Wrapping<u32>,
}

impl Stopwatch {
    /// For a ring whose slot with this index has not been seen.
    pub(crate) fn of(slot: u32) -> Stopwatch {
        Stopwatch { slot: Wrapping(slot), seen: None, unseen: Wrapping(slot) }
    }

    /// Slots from the one with the index `first` on are seen; all before it were seen earlier.
    #[inline]
    pub(crate) fn see(&mut self, first: u32, count: usize) {
        let count = u32::try_from(count).expect("a ring is small");
        if self.seen.is_none() && (self.slot - Wrapping(first)).0 < count {
            self.seen = Some(Instant::now());
        }
        self.unseen = Wrapping(first) + Wrapping(count);
    }

    /// Slots before the one with this index have their responses. How long the watched one took, if
    /// it is among them; then another one is watched.
    #[inline]
    pub(crate) fn completed(&mut self, end: u32) -> Option<Duration> {
        let seen = self.seen?;
        // A slot that is still ahead makes a distance of nearly 2^32.
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
    fn the_watched_slot_has_a_time_once_it_is_seen_and_completed() {
        for start in [0, u32::MAX, u32::MAX - 60] {
            let at = |index: u32| start.wrapping_add(index);
            let mut watch = Stopwatch::of(at(0));
            assert_eq!(watch.completed(at(0)), None, "it was not seen");
            watch.see(at(0), 3);
            assert_eq!(watch.completed(at(0)), None, "it is the next to be completed");
            assert!(watch.completed(at(1)).is_some());
            watch.see(at(1), 66);
            assert_eq!(watch.completed(at(67)), None, "the next one has never been seen");
            watch.see(at(67), 64);
            assert_eq!(watch.completed(at(67)), None, "it is the next to be completed");
            assert!(watch.completed(at(68)).is_some());
        }
    }
}
