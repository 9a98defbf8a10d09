//! What a thread shows of itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a thread shows of itself. Only that thread writes it, by plain stores, so it costs a thread
/// in a loop next to nothing.
#[derive(Debug, Default)]
pub struct Pulse {
    beats: AtomicU64,
    waits: AtomicU32,
}

/// While it is there, the thread may sleep.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Pulse);

impl Pulse {
    /// The thread gets on: one turn of its loop is done.
    pub fn beat(&self) {
        self.beats.store(self.beats.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The thread waits for something that is not its own to do, and may sleep for as long as that
    /// takes. To wait is not to get on: CPU time still counts from the last
    /// [`beat`](Pulse::beat).
    pub fn wait(&self) -> Waiting<'_> {
        self.waits.store(self.waits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Waiting(self)
    }

    pub(crate) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waits = &self.0.waits;
        waits.store(waits.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }
}
