//! How much a port may flood.

use crate::Ticks;

/// What one port may send to all others: broadcast, multicast and unknown destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloodLimit {
    /// Frames that each tick adds.
    pub frames_per_tick: u32,
    /// Frames that can be saved up.
    pub burst_frames: u32,
}

impl FloodLimit {
    /// No limit.
    pub const NONE: FloodLimit = FloodLimit { frames_per_tick: u32::MAX, burst_frames: u32::MAX };
}

/// A token bucket. Each worker owns one for each port whose queues it serves, so it is a plain
/// number; the limit of a port with queues on `n` workers is in effect up to `n` times as high.
#[derive(Debug, Clone)]
pub struct FloodBudget {
    limit: FloodLimit,
    frames_left: u32,
    refilled_at: Ticks,
}

impl FloodBudget {
    /// A full bucket.
    pub fn new(limit: FloodLimit, now: Ticks) -> FloodBudget {
        FloodBudget { limit, frames_left: limit.burst_frames, refilled_at: now }
    }

    /// Adds what the time since the last call is worth: once per batch.
    #[inline]
    pub(crate) fn refill(&mut self, now: Ticks) {
        let ticks = now.since(self.refilled_at);
        if ticks > 0 {
            let frames = ticks.saturating_mul(self.limit.frames_per_tick);
            self.frames_left = self.frames_left.saturating_add(frames).min(self.limit.burst_frames);
            self.refilled_at = now;
        }
    }

    /// Takes one frame's worth; false if there is none.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        if self.limit.burst_frames == u32::MAX {
            return true;
        }
        let left = self.frames_left.checked_sub(1);
        self.frames_left = left.unwrap_or(0);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let limit = FloodLimit { frames_per_tick: 3, burst_frames: 5 };
        let mut budget = FloodBudget::new(limit, Ticks(u32::MAX));
        let mut drain = |now| {
            budget.refill(now);
            (0..100).filter(|_| budget.take()).count()
        };
        assert_eq!(drain(Ticks(u32::MAX)), 5);
        assert_eq!(drain(Ticks(u32::MAX)), 0);
        // The clock wraps around here, and then goes back once.
        assert_eq!(drain(Ticks(0)), 3);
        assert_eq!(drain(Ticks(u32::MAX)), 0);
        assert_eq!(drain(Ticks(1)), 3);
        assert_eq!(drain(Ticks(2_000_000_000)), 5);
    }

    #[test]
    fn no_limit_is_no_limit() {
        let mut budget = FloodBudget::new(FloodLimit::NONE, Ticks(0));
        assert!((0..1000).all(|_| budget.take()));
        budget.refill(Ticks(5));
        assert!(budget.take());
    }
}
