//! Back-pressure: how a queue stops the sources that send to it.
//!
//! A queue whose backlog passes the high mark raises its pressure, and sources that meet it keep
//! the frame and all after it, and take none in until it falls below the low mark. So a fast guest
//! is slowed by its own ring and nothing is lost. The inbox of an engine does the same for engines
//! that put frames in. A queue that makes no progress for [`STALL`] lowers its pressure and drops
//! instead, so that a guest that stopped receiving cannot hold up the others (XSA-392).
//!
//! A source between several guests waits for a slow queue only as long as its allowance lasts
//! (`allowance.rs`), a port with many stations behind it never does, and copies of a flood are
//! dropped at the mark: what these send is an [`Admission`] of its own.

use std::time::Duration;

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Backlog at which sources are held back.
pub const HIGH: Backlog = Backlog { frames: 128, bytes: 1 << 20 };
/// Backlog at which they may go on.
pub const LOW: Backlog = Backlog { frames: 32, bytes: 256 << 10 };
/// Backlog at which frames are dropped: above [`HIGH`] by what may have been in the owner's inbox
/// when the mark was reached (256 frames of 64 KiB), and what other workers add before they see it.
pub const LIMIT: Backlog = Backlog { frames: 1024, bytes: 24 << 20 };
/// Backlog at which frames from a port with many stations behind it are dropped: they do not wait,
/// so that a burst for one guest needs some room.
pub const SHARED: Backlog = Backlog { frames: 512, bytes: 4 << 20 };
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

/// How a frame came to be sent to a queue that may be full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Its source waits for the queue when it has pressure: the frame is on its way since before.
    Waits,
    /// It comes from a port with many stations behind it, which waits for none.
    Shared,
    /// It is a copy of a flood, or its source has waited for long enough.
    Late,
}

impl Admission {
    /// Backlog at which the frame is dropped.
    pub(crate) fn mark(self) -> Backlog {
        match self {
            Admission::Waits => LIMIT,
            Admission::Shared => SHARED,
            Admission::Late => HIGH,
        }
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
    /// What the queue has sent, in units of what frames cost.
    sent: AtomicU64,
    /// Memory that its frames take.
    memory: AtomicU64,
}

impl Gauge {
    /// Whether sources should hold back.
    pub fn has_pressure(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) || self.pressure_ahead.load(Ordering::Relaxed)
    }

    /// Whether the owner holds sources back.
    pub fn is_raised(&self) -> bool {
        self.pressure.load(Ordering::Relaxed)
    }

    /// Holds sources back.
    pub fn raise(&self) {
        self.pressure.store(true, Ordering::Relaxed);
    }

    /// Lets sources go on. True if some of their workers may sleep, and are to be nudged.
    pub fn lower(&self) -> bool {
        self.pressure.store(false, Ordering::Relaxed);
        self.is_awaited()
    }

    /// [`raise`](Gauge::raise) by the next owner.
    pub fn raise_ahead(&self) {
        self.pressure_ahead.store(true, Ordering::Relaxed);
    }

    /// [`lower`](Gauge::lower) by the destination worker, when a move completes or is abandoned.
    pub fn lower_ahead(&self) -> bool {
        self.pressure_ahead.store(false, Ordering::Relaxed);
        self.is_awaited()
    }

    fn is_awaited(&self) -> bool {
        // Orders the store before the check of who waits. The partner is `await_relief`, which
        // stores that it waits before it checks the pressure: one side sees the other's store.
        fence(Ordering::SeqCst);
        self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed)
    }

    /// Called with a source that is held, after [`Inbox::prepare_sleep`](crate::Inbox): the owner
    /// nudges us when it lowers the pressure. False if it has fallen already.
    ///
    /// Before it, a nudge would find no thread asleep, and use up the wait: pressure that is raised
    /// again would then be lowered without a nudge.
    pub fn await_relief(&self) -> bool {
        self.is_awaited.store(true, Ordering::Relaxed);
        // The partner is in `is_awaited`.
        fence(Ordering::SeqCst);
        self.has_pressure()
    }

    /// What the queue has sent since it was made, in bytes and a fixed cost for each frame: what
    /// its sources wait for while it holds them.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Only the owning engine calls this.
    pub(crate) fn add_sent(&self, cost: u64) {
        self.sent.store(self.sent.load(Ordering::Relaxed).wrapping_add(cost), Ordering::Relaxed);
    }

    /// The same where several engines report to one gauge.
    pub(crate) fn add_sent_shared(&self, cost: u64) {
        self.sent.fetch_add(cost, Ordering::Relaxed);
    }

    /// Memory that frames take which wait to leave by the queue, in bytes, when it last sent.
    pub(crate) fn memory(&self) -> usize {
        usize::try_from(self.memory.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Only the owning engine calls this.
    pub(crate) fn set_memory(&self, bytes: usize) {
        self.memory.store(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Work done for the queue since it was made, in frames of about 1500 bytes.
    pub fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    /// Only the owning worker calls this.
    pub fn add_load(&self, work: u64) {
        self.load.store(self.load.load(Ordering::Relaxed) + work, Ordering::Relaxed);
    }
}
