//! When the network devices of a process have to be compared with what the kernel has.

use std::time::{Duration, Instant};

/// The pause before links are read after a change: changes come in bursts, and reading all links
/// takes longer the more there are.
const SETTLE: Duration = Duration::from_millis(250);
/// The pause before what could not be done for a device is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Whether all was done that a comparison of devices has found to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Followed {
    /// It was.
    Done,
    /// It has to be tried again.
    Again,
}

/// When to compare them.
#[derive(Debug)]
pub struct Comparison {
    due: Option<Instant>,
}

impl Comparison {
    /// The first is due at once.
    pub fn new(now: Instant) -> Comparison {
        Comparison { due: Some(now) }
    }

    /// Notes that something has changed.
    pub fn note_change(&mut self, now: Instant) {
        self.note_due(now + SETTLE);
    }

    /// Notes that a device was made again, which others wait for.
    pub fn note_made(&mut self, now: Instant) {
        self.note_due(now);
    }

    /// When to compare, if there is a reason.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Compares them, if that is due and there is any.
    pub fn take_due(&mut self, has_devices: bool, now: Instant) -> bool {
        let is_due = self.due.take_if(|due| *due <= now).is_some();
        // Links of others come and go all the time on some hosts.
        is_due && has_devices
    }

    /// Notes whether all was done.
    pub fn done(&mut self, followed: Followed, now: Instant) {
        if followed == Followed::Again {
            self.note_due(now + RETRY);
        }
    }

    fn note_due(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_compared_soon_after_a_change_and_again_until_all_is_done() {
        let now = Instant::now();
        let mut comparison = Comparison::new(now);
        assert!(comparison.take_due(true, now), "an earlier process may have missed something");
        assert_eq!(comparison.due(), None);
        assert!(!comparison.take_due(true, now + RETRY));

        comparison.note_change(now);
        comparison.note_change(now + SETTLE / 2);
        assert_eq!(comparison.due(), Some(now + SETTLE), "the first of a burst counts");
        assert!(!comparison.take_due(true, now + SETTLE / 2));
        comparison.note_made(now);
        assert_eq!(comparison.due(), Some(now), "others wait for that");
        assert!(!comparison.take_due(false, now), "there is nothing to compare");
        assert_eq!(comparison.due(), None);

        comparison.done(Followed::Done, now);
        assert_eq!(comparison.due(), None);
        comparison.done(Followed::Again, now);
        assert_eq!(comparison.due(), Some(now + RETRY));
        comparison.note_change(now);
        assert!(comparison.due().is_some_and(|due| due < now + RETRY));
    }
}
