//! How often one peer may have something done.

use std::time::{Duration, Instant};

/// An allowance that is used up by one peer and refilled by time, so that a peer that repeats
/// something as fast as it can costs others little.
#[derive(Debug, Clone)]
pub struct Pace {
    burst: u32,
    interval: Duration,
    left: u32,
    /// When `left` was last right.
    counted: Instant,
}

impl Pace {
    /// `burst` times at once, then once each `interval`.
    pub fn new(burst: u32, interval: Duration, now: Instant) -> Pace {
        Pace { burst, interval, left: burst, counted: now }
    }

    /// Takes one from the allowance, or says when there will be one.
    ///
    /// # Errors
    /// The time to try again at.
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

    /// When there will be something again, if nothing is left.
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
    fn after_a_burst_there_is_one_each_interval() {
        let start = Instant::now();
        let interval = Duration::from_millis(200);
        let mut pace = Pace::new(3, interval, start);
        for _ in 0..3 {
            assert_eq!(pace.take(start), Ok(()));
        }
        let due = pace.take(start).expect_err("the burst is used up");
        assert_eq!(due, start + interval);
        assert_eq!((pace.due(start), pace.due(due)), (Some(due), None));
        assert_eq!(pace.take(due), Ok(()));
        assert_eq!(pace.take(due), Err(due + interval));
        let much_later = due + 1000 * interval;
        assert_eq!((0..10).filter(|_| pace.take(much_later).is_ok()).count(), 3);
    }
}
