//! A rate limit for one peer.

use std::time::{Duration, Instant};

/// An allowance that a peer uses up and time refills, so that a peer that repeats something as fast
/// as it can costs others little.
#[derive(Debug, Clone)]
pub struct RateLimit {
    burst: u32,
    interval: Duration,
    left: u32,
    /// When `left` was last updated.
    counted: Instant,
}

impl RateLimit {
    /// Allows `burst` times at once, then once per `interval`.
    pub fn new(burst: u32, interval: Duration, now: Instant) -> RateLimit {
        RateLimit { burst, interval, left: burst, counted: now }
    }

    /// Takes one from the allowance, or returns when the next is available.
    ///
    /// # Errors
    /// The time of the next attempt.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        self.refill(now);
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.counted + self.interval),
        }
    }

    /// When the next is available, if nothing is left.
    pub fn due(&mut self, now: Instant) -> Option<Instant> {
        self.refill(now);
        (self.left == 0).then(|| self.counted + self.interval)
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.counted).as_nanos();
        let intervals = passed / self.interval.as_nanos().max(1);
        match u32::try_from(intervals) {
            Ok(more) if more < self.burst - self.left.min(self.burst) => {
                self.left += more;
                self.counted += self.interval * more;
            }
            _ => {
                self.left = self.burst;
                self.counted = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_one_request_is_allowed_per_interval() {
        let start = Instant::now();
        let interval = Duration::from_millis(200);
        let mut rate_limit = RateLimit::new(3, interval, start);
        for _ in 0..3 {
            assert_eq!(rate_limit.take(start), Ok(()));
        }
        let due = rate_limit.take(start).expect_err("the burst is used up");
        assert_eq!(due, start + interval);
        assert_eq!((rate_limit.due(start), rate_limit.due(due)), (Some(due), None));
        assert_eq!(rate_limit.take(due), Ok(()));
        assert_eq!(rate_limit.take(due), Err(due + interval));
        let much_later = due + 1000 * interval;
        assert_eq!((0..10).filter(|_| rate_limit.take(much_later).is_ok()).count(), 3);
    }
}
