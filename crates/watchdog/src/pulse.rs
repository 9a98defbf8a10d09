//! The progress of a thread, as the thread shows it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The progress that a thread shows. Only that thread writes it, with plain stores, so it costs a
/// loop almost nothing.
#[derive(Debug, Default)]
pub struct Pulse {
    beats: AtomicU64,
    waits: AtomicU32,
}

/// While this exists, the thread may sleep.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Pulse);

impl Pulse {
    /// Shows progress: one iteration of the thread's loop is done.
    pub fn beat(&self) {
        self.beats.store(self.beats.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The thread waits for something that other threads or processes do, and may sleep for as long
    /// as that takes. Waiting is not progress: CPU time still counts from the last
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
