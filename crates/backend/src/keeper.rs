//! Keeps the network devices of this process: says when they have to be looked at.

use std::time::{Duration, Instant};

use ringway_net::LinkWatch;

/// Says when the devices of this process have to be compared with what the kernel has.
#[derive(Debug)]
pub(crate) struct Links {
    watch: LinkWatch,
    /// When to compare them.
    pub(crate) due: Option<Instant>,
}

/// The pause before links are read after a change: changes come in bursts, and reading all links
/// takes longer the more there are.
const LINKS_SETTLE: Duration = Duration::from_millis(250);
/// The pause before what could not be done for a device is tried again.
pub(crate) const LINKS_RETRY: Duration = Duration::from_secs(2);

impl Links {
    pub(crate) fn new(watch: LinkWatch) -> Links {
        Links { watch, due: Some(Instant::now()) }
    }

    pub(crate) fn waker(&self) -> &LinkWatch {
        &self.watch
    }

    /// Notes what the kernel has announced.
    pub(crate) fn take_changes(&mut self) {
        if self.watch.has_changed() {
            self.note_change();
        }
    }

    /// Notes that something has changed.
    pub(crate) fn note_change(&mut self) {
        self.note_due(LINKS_SETTLE);
    }

    /// When to compare, if there is a reason.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether to compare them now.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    pub(crate) fn note_due(&mut self, pause: Duration) {
        let due = Instant::now() + pause;
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }
}
