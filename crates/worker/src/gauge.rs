//! Back-pressure: what a queue tells those who send to it.
//!
//! A queue whose backlog passes the high mark raises its pressure, and sources that meet it keep
//! the frame and all after it, and take none in until it falls below the low mark. So a fast guest
//! is slowed by its own ring and nothing is lost. The inbox of a worker does the same for those who
//! put frames in. A queue that makes no progress for [`STALL`] lowers its pressure and drops
//! instead, so that a guest that stopped receiving cannot hold up the others (XSA-392).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Backlog at which sources are held back.
pub const HIGH: Backlog = Backlog { frames: 128, bytes: 1 << 20 };
/// Backlog at which they may go on.
pub const LOW: Backlog = Backlog { frames: 32, bytes: 256 << 10 };
/// Backlog at which frames are dropped: above [`HIGH`] by what may have been in the owner's inbox
/// when the mark was reached (256 frames of 64 KiB), and what other workers add before they see it.
pub const LIMIT: Backlog = Backlog { frames: 1024, bytes: 24 << 20 };
/// How long a queue may stand still before it counts as stalled: longer than a busy host keeps a
/// guest from running.
pub const STALL: Duration = Duration::from_millis(50);

/// An amount of waiting frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// How many.
    pub frames: usize,
    /// Bytes of them.
    pub bytes: usize,
}

impl Backlog {
    /// True if either measure reaches the mark's.
    pub fn reaches(self, mark: Backlog) -> bool {
        self.frames >= mark.frames || self.bytes >= mark.bytes
    }
}

/// Shared by the owner of a queue, which writes it, and those who send to the queue.
#[derive(Debug, Default)]
pub struct Gauge {
    pressure: AtomicBool,
    /// The same, raised by the worker that the queue is on its way to.
    pressure_ahead: AtomicBool,
    /// A worker whose sources we hold is asleep, or about to be.
    is_awaited: AtomicBool,
    load: AtomicU64,
}

impl Gauge {
    /// Whether sources should hold back.
    pub fn has_pressure(&self) -> bool {
        // SeqCst: a source that is about to sleep looks here after it has said that it sleeps; see
        // `Inbox::prepare_sleep`.
        self.pressure.load(Ordering::SeqCst) || self.pressure_ahead.load(Ordering::SeqCst)
    }

    /// Whether the owner holds sources back.
    pub(crate) fn is_raised(&self) -> bool {
        self.pressure.load(Ordering::Relaxed)
    }

    /// Holds sources back.
    pub(crate) fn raise(&self) {
        self.pressure.store(true, Ordering::SeqCst);
    }

    /// Lets sources go on. True if some of their workers may sleep, and are to be nudged.
    pub(crate) fn lower(&self) -> bool {
        self.pressure.store(false, Ordering::SeqCst);
        self.look_for_waiting()
    }

    /// [`raise`](Gauge::raise) by the next owner.
    pub(crate) fn raise_ahead(&self) {
        self.pressure_ahead.store(true, Ordering::SeqCst);
    }

    /// [`lower`](Gauge::lower) by who was to be the next owner, and is now or will not be.
    pub(crate) fn lower_ahead(&self) -> bool {
        self.pressure_ahead.store(false, Ordering::SeqCst);
        self.look_for_waiting()
    }

    fn look_for_waiting(&self) -> bool {
        // Orders the store before the look at who waits. The partner is in `prepare_sleep`, between
        // `await_relief` and the last look at the pressure: one side sees the other's store.
        fence(Ordering::SeqCst);
        self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed)
    }

    /// Called before sleeping with a source that is held: whoever lowers the pressure nudges us.
    pub(crate) fn await_relief(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Work done for the queue since it was made, in frames of about 1500 bytes.
    pub fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    /// Only the owning worker calls this.
    pub(crate) fn add_load(&self, work: u64) {
        self.load.store(self.load.load(Ordering::Relaxed) + work, Ordering::Relaxed);
    }
}
