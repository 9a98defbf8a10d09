//! Whether a worker that is woken waits for the thread that runs on its CPU.
//!
//! What sends in bulk to a worker, such as a switch in another process, is often on the CPU of that
//! worker. If the worker took its place with each frame that it sends, each frame would cost both a
//! change of threads. If it waits, the frames of a batch are there when it begins. Where one reply
//! is awaited, waiting has nothing to gain, and behind a thread that computes it is long. So the
//! worker waits only while it finds work often.

use std::time::{Duration, Instant};

/// Rounds are counted for so long.
const WINDOW: Duration = Duration::from_millis(10);
/// With so many rounds of work in a window the worker begins to wait: 4,000 a second. A round trip
/// behind a thread that computes takes milliseconds, two rounds each.
const BEGINS: u32 = 40;
/// With fewer it no longer waits. Who waits finds more in a round, so there are fewer rounds.
const ENDS: u32 = 10;

/// How often a worker has found work.
#[derive(Debug)]
pub(crate) struct Bulk {
    since: Instant,
    rounds: u32,
    waits: bool,
}

impl Bulk {
    pub(crate) fn new(now: Instant) -> Bulk {
        Bulk { since: now, rounds: 0, waits: false }
    }

    /// A round that ended at `now` has found work. Returns whether the worker is to wait from now
    /// on, if that has changed.
    pub(crate) fn worked(&mut self, now: Instant) -> Option<bool> {
        self.rounds += 1;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < WINDOW {
            return None;
        }
        // Of a longer time, silence among it, the part that a window has.
        let windows = u32::try_from(elapsed.as_nanos() / WINDOW.as_nanos()).unwrap_or(u32::MAX);
        let rounds = self.rounds / windows;
        (self.since, self.rounds) = (now, 0);
        let waits = rounds >= if self.waits { ENDS } else { BEGINS };
        (waits != std::mem::replace(&mut self.waits, waits)).then_some(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of work with a given gap, for a time: what has changed, in its order.
    fn changes(bulk: &mut Bulk, now: &mut Instant, gap: Duration, time: Duration) -> Vec<bool> {
        let mut changes = Vec::new();
        let end = *now + time;
        while *now < end {
            *now += gap;
            changes.extend(bulk.worked(*now));
        }
        changes
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_finds_work_often_waits_until_it_is_rare() {
        let mut now = Instant::now();
        let mut bulk = Bulk::new(now);
        let us = Duration::from_micros;
        assert_eq!(changes(&mut bulk, &mut now, us(30), SECOND), [true]);
        // Batches are longer, as it waits.
        assert_eq!(changes(&mut bulk, &mut now, us(800), SECOND), [false; 0]);
        assert_eq!(changes(&mut bulk, &mut now, us(1500), SECOND), [false]);
        assert_eq!(changes(&mut bulk, &mut now, us(800), SECOND), [false; 0]);
    }

    #[test]
    fn round_trips_behind_a_thread_that_computes_do_not_wait() {
        let mut now = Instant::now();
        let mut bulk = Bulk::new(now);
        assert_eq!(changes(&mut bulk, &mut now, Duration::from_millis(1), 10 * SECOND), [false; 0]);
    }

    #[test]
    fn the_first_round_after_silence_ends_waiting() {
        let mut now = Instant::now();
        let mut bulk = Bulk::new(now);
        assert_eq!(changes(&mut bulk, &mut now, Duration::from_micros(30), SECOND), [true]);
        now += 3600 * SECOND;
        assert_eq!(bulk.worked(now), Some(false));
        now += Duration::from_micros(30);
        assert_eq!(bulk.worked(now), None);
    }
}
