//! Whether to poll before sleeping: only if the next frame is expected soon.
//!
//! Waking a thread costs more than the gap between two frames of a busy flow, so a worker that
//! finds nothing keeps polling while the gap between arrivals is expected to be short. It measures
//! that gap, and not the length of sleeps: a sleep includes the cost of the wake-ups that polling
//! would have saved, so a rule based on sleeps would never begin to poll where wake-ups are
//! expensive.

use std::time::{Duration, Instant};

use ringway_engine::IfIdle;

/// Limits of adaptive polling.
#[derive(Debug, Clone, Copy)]
pub struct Polling {
    /// The longest time to poll without finding work; zero to sleep at once. If the gap between
    /// arrivals is longer, a worker does not poll.
    pub max: Duration,
}

impl Default for Polling {
    fn default() -> Polling {
        Polling { max: Duration::from_micros(200) }
    }
}

/// A new gap has a weight of 1 in this in the estimate.
const WEIGHT: u32 = 4;

/// The estimated gap between arrivals, and the time since which nothing has arrived.
#[derive(Debug)]
pub(crate) struct Idle {
    polling: Polling,
    /// A moving average of gaps, each capped at `WEIGHT` times the ceiling: so one long gap ends
    /// polling, and a few short ones start it.
    gap: Duration,
    /// The time since which rounds have found nothing.
    since: Option<Instant>,
}

impl Idle {
    pub(crate) fn new(polling: Polling) -> Idle {
        Idle { polling, gap: polling.max * WEIGHT, since: None }
    }

    /// The round that began at `began` found work.
    pub(crate) fn worked(&mut self, began: Instant) {
        let Some(since) = self.since.take() else { return };
        // Rounds of one burst have no gap between them.
        if began > since {
            let gap = (began - since).min(self.polling.max * WEIGHT);
            self.gap = self.gap - self.gap / WEIGHT + gap / WEIGHT;
        }
    }

    /// What the round that begins now should do if it finds no work.
    pub(crate) fn at(&mut self, now: Instant) -> IfIdle {
        let since = *self.since.get_or_insert(now);
        let is_near = self.gap < self.polling.max;
        match is_near && now.saturating_duration_since(since) < self.polling.max {
            true => IfIdle::Poll,
            false => IfIdle::Sleep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(200);

    /// A worker in which frames arrive with given gaps.
    struct Arrivals {
        idle: Idle,
        now: Instant,
    }

    impl Arrivals {
        fn new(max: Duration) -> Arrivals {
            Arrivals { idle: Idle::new(Polling { max }), now: Instant::now() }
        }

        /// How many of `times` such gaps begin with polling.
        fn polled(&mut self, gap: Duration, times: usize) -> usize {
            let mut polled = 0;
            for _ in 0..times {
                polled += usize::from(self.idle.at(self.now) == IfIdle::Poll);
                self.now += gap;
                let _ = self.idle.at(self.now);
                self.idle.worked(self.now);
                self.now += Duration::from_micros(1);
            }
            polled
        }
    }

    #[test]
    fn gaps_below_the_ceiling_are_polled_through_even_with_a_wake_up_in_each() {
        let mut arrivals = Arrivals::new(MAX);
        arrivals.polled(Duration::from_micros(150), 20);
        assert_eq!(arrivals.polled(Duration::from_micros(150), 100), 100);
    }

    #[test]
    fn a_gap_above_the_ceiling_ends_polling_and_a_short_one_resumes_it() {
        let mut arrivals = Arrivals::new(MAX);
        arrivals.polled(Duration::from_micros(10), 50);
        assert_eq!(arrivals.polled(Duration::from_millis(5), 1), 1, "no one can know");
        assert_eq!(arrivals.polled(Duration::from_millis(5), 50), 0);
        arrivals.polled(Duration::from_micros(10), 10);
        assert_eq!(arrivals.polled(Duration::from_micros(10), 1), 1);
    }

    #[test]
    fn polling_ends_at_the_ceiling() {
        let mut arrivals = Arrivals::new(MAX);
        arrivals.polled(Duration::from_micros(10), 50);
        let start = arrivals.now;
        assert_eq!(arrivals.idle.at(start), IfIdle::Poll);
        assert_eq!(arrivals.idle.at(start + MAX / 2), IfIdle::Poll);
        assert_eq!(arrivals.idle.at(start + MAX), IfIdle::Sleep);
    }

    #[test]
    fn an_idle_worker_does_not_poll_whatever_wakes_it() {
        let mut arrivals = Arrivals::new(MAX);
        assert_eq!(arrivals.polled(Duration::from_secs(1), 10), 0);
        // A timer that finds no work is not an arrival.
        for _ in 0..10 {
            arrivals.now += Duration::from_micros(50);
            assert_eq!(arrivals.idle.at(arrivals.now), IfIdle::Sleep);
        }
    }

    #[test]
    fn bursts_far_apart_cause_no_polling() {
        let mut arrivals = Arrivals::new(MAX);
        let mut polled = 0;
        for _ in 0..100 {
            for _ in 0..20 {
                let _ = arrivals.idle.at(arrivals.now);
                arrivals.idle.worked(arrivals.now);
                arrivals.now += Duration::from_micros(2);
            }
            polled += arrivals.polled(Duration::from_millis(1), 1);
        }
        assert_eq!(polled, 0);
    }

    #[test]
    fn a_ceiling_of_zero_never_polls() {
        let mut arrivals = Arrivals::new(Duration::ZERO);
        assert_eq!(arrivals.polled(Duration::ZERO, 10), 0);
    }
}
