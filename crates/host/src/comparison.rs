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
