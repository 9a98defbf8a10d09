//! How long to poll before sleeping: long enough to catch the next frame where traffic flows,
//! not at all where it does not.

use std::time::{Duration, Instant};

use ringway_engine::IfIdle;

/// Limits of adaptive polling.
#[derive(Debug, Clone, Copy)]
pub struct Polling {
    /// The longest time to poll without finding anything; zero for sleeping at once.
    pub max: Duration,
}

impl Default for Polling {
    fn default() -> Polling {
        Polling { max: Duration::from_micros(50) }
    }
}

/// The window grows while sleeps turn out short and shrinks when they were long.
#[derive(Debug)]
pub(crate) struct Idle {
    polling: Polling,
    window: Duration,
    since: Option<Instant>,
}

/// A window of use: below it, reading the clock costs more than it saves.
const WINDOW_MIN: Duration = Duration::from_micros(4);

impl Idle {
    pub(crate) fn new(polling: Polling) -> Idle {
        Idle { polling, window: Duration::ZERO, since: None }
    }

    /// A round found work.
    pub(crate) fn worked(&mut self) {
        self.since = None;
    }

    /// What the round that begins now is to do if it finds no work.
    pub(crate) fn at(&mut self, now: Instant) -> IfIdle {
        let since = *self.since.get_or_insert(now);
        match now.duration_since(since) < self.window {
            true => IfIdle::Poll,
            false => IfIdle::Sleep,
        }
    }

    /// Learns from a sleep.
    pub(crate) fn slept(&mut self, duration: Duration) {
        self.since = None;
        self.window = if duration <= self.polling.max {
            (self.window * 2).clamp(WINDOW_MIN, self.polling.max.max(WINDOW_MIN))
        } else {
            self.window / 2
        };
        if self.window < WINDOW_MIN || self.polling.max.is_zero() {
            self.window = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_short_sleeps_and_shrinks_with_long_ones() {
        let mut idle = Idle::new(Polling { max: Duration::from_micros(32) });
        for _ in 0..10 {
            idle.slept(Duration::from_micros(5));
        }
        assert_eq!(idle.window, Duration::from_micros(32));
        for _ in 0..10 {
            idle.slept(Duration::from_millis(5));
        }
        assert_eq!(idle.window, Duration::ZERO);
    }

    #[test]
    fn a_maximum_of_zero_never_polls() {
        let mut idle = Idle::new(Polling { max: Duration::ZERO });
        idle.slept(Duration::ZERO);
        assert_eq!(idle.at(Instant::now()), IfIdle::Sleep);
    }
}
