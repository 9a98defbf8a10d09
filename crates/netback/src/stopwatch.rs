//! How long a guest waits for its answers, told by a few of its slots: one at a time, so that the
//! clock is read twice in [`STEP`] slots and not for every packet.

use std::num::Wrapping;
use std::time::{Duration, Instant};

use ringway_wire::netif::TX_RING_SLOTS;

/// From one watched slot to the next: a prime, as batches of 64 are to be met at any place, and more
/// than a call looks at ([`WINDOW`](crate::ingress::WINDOW)), so that the next one is still unseen.
const STEP: u32 = 127;

/// Watches one slot of a tx ring from the first look at it to its answer.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// The slot that is watched, by its free-running index.
    slot: Wrapping<u32>,
    /// When it was seen, once it was.
    seen: Option<Instant>,
}

impl Stopwatch {
    /// Watches the slot with this index first.
    pub(crate) fn of(slot: u32) -> Stopwatch {
        Stopwatch { slot: Wrapping(slot), seen: None }
    }

    /// Slots from the one with the index `first` on are looked at.
    #[inline]
    pub(crate) fn see(&mut self, first: u32, count: usize) {
        let ahead = (self.slot - Wrapping(first)).0;
        if self.seen.is_none() && usize::try_from(ahead).is_ok_and(|ahead| ahead < count) {
            self.seen = Some(Instant::now());
        }
    }

    /// Slots before the one with the index `answered` have their answers, and those before
    /// `consumer` were looked at. How long the watched one took, if it is among the former; then
    /// another one is watched.
    #[inline]
    pub(crate) fn answered(&mut self, answered: u32, consumer: u32) -> Option<Duration> {
        let seen = self.seen?;
        // A slot that is still ahead makes a distance of nearly 2^32.
        let behind = usize::try_from((Wrapping(answered) - self.slot).0).unwrap_or(usize::MAX);
        if !(1..=TX_RING_SLOTS).contains(&behind) {
            return None;
        }
        *self = Stopwatch::of(consumer.wrapping_add(STEP));
        Some(seen.elapsed())
    }
}

const _: () = assert!(crate::ingress::WINDOW < 127, "the next slot must not have been seen");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watched_slot_has_a_time_once_it_is_seen_and_answered() {
        for start in [0, u32::MAX, u32::MAX - 60] {
            let at = |index: u32| start.wrapping_add(index);
            let mut watch = Stopwatch::of(at(5));
            watch.see(at(0), 5);
            assert_eq!(watch.answered(at(5), at(5)), None, "it was not seen");
            watch.see(at(5), 3);
            assert_eq!(watch.answered(at(5), at(8)), None, "it is the next to be answered");
            assert!(watch.answered(at(6), at(8)).is_some());
            watch.see(at(8), 104);
            assert_eq!(watch.answered(at(100), at(112)), None, "another one is watched");
            watch.see(at(112), 104);
            assert!(watch.answered(at(8 + STEP + 1), at(216)).is_some());
        }
    }
}
