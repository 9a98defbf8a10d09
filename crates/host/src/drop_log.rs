//! How often a line is logged about the dropped frames of a vif.

use std::time::{Duration, Instant};

/// How often that is, for each kind of them.
const DROPS_INTERVAL: Duration = Duration::from_secs(60);

/// When dropped frames of a kind were last logged.
#[derive(Debug, Default)]
pub struct DropLog {
    /// The number of this connection's frames that had been dropped by then.
    seen: u64,
    /// When they may be logged again.
    due: Option<Instant>,
}

impl DropLog {
    /// Whether to log that so many frames of this connection have been dropped: there are more
    /// than at the last line, and that was a while ago.
    pub fn is_due(&mut self, frames: u64, now: Instant) -> bool {
        // Counters of a new connection begin at zero.
        if frames < self.seen {
            self.seen = 0;
        }
        if frames == self.seen || self.due.is_some_and(|due| now < due) {
            return false;
        }
        self.seen = frames;
        self.due = Some(now + DROPS_INTERVAL);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_logged_when_there_are_more_and_not_often() {
        let (start, mut log) = (Instant::now(), DropLog::default());
        assert!(!log.is_due(0, start) && log.is_due(5, start));
        let later = start + DROPS_INTERVAL;
        assert!(!log.is_due(9, start + DROPS_INTERVAL / 2) && log.is_due(9, later));
        assert!(!log.is_due(9, later + DROPS_INTERVAL), "there are no more");
        assert!(log.is_due(1, later + DROPS_INTERVAL), "it is another connection");
    }
}
