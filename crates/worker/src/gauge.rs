//! Back-pressure: what a queue tells those who send to it.
//!
//! A queue whose backlog passes the high mark raises its pressure, and sources that meet it stop
//! taking frames in until it falls below the low mark. So a fast guest is slowed by its own ring
//! and nothing is lost. A queue that makes no progress for [`STALL`] lowers its pressure and drops
//! instead, so that a guest that stopped receiving cannot hold up the others (XSA-392).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Backlog at which sources are held back.
pub const HIGH: Backlog = Backlog { frames: 128, bytes: 1 << 20 };
/// Backlog at which they may go on.
pub const LOW: Backlog = Backlog { frames: 32, bytes: 256 << 10 };
/// Backlog at which frames are dropped: above [`HIGH`] by what sources may have under way.
pub const LIMIT: Backlog = Backlog { frames: 1024, bytes: 8 << 20 };
/// How long a queue may stand still before it counts as stalled.
pub const STALL: Duration = Duration::from_millis(10);

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
    load: AtomicU64,
}

impl Gauge {
    /// Whether sources should hold back.
    pub fn has_pressure(&self) -> bool {
        // SeqCst: a source that is about to sleep looks here after it has said that it sleeps; see
        // `Inbox::prepare_sleep`.
        self.pressure.load(Ordering::SeqCst)
    }

    pub(crate) fn set_pressure(&self, raised: bool) {
        self.pressure.store(raised, Ordering::SeqCst);
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
