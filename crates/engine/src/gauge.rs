//! Back-pressure: how a queue stops the sources that send to it.
//!
//! A queue whose backlog passes the high mark raises its pressure. A source that meets pressure
//! keeps the frame and all frames after it, and takes no more in until the backlog falls below the
//! low mark. So a fast guest is slowed by its own ring and nothing is lost. The inbox of an engine
//! does the same to engines that put frames into it. A queue that makes no progress for [`STALL`]
//! lowers its pressure and drops frames instead, so that a guest that stopped receiving cannot
//! block the others (XSA-392).
//!
//! A source between several guests waits for a slow queue only as long as its allowance lasts
//! (`allowance.rs`), a port with many stations behind it never waits, and copies of a flood are
//! dropped at the mark: each of these cases is an [`Admission`].

use std::time::Duration;

use ringway_datapath::WaitReason;
use ringway_switch::PortId;

use crate::hops::{Hopped, Hops};
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Backlog at which sources are held back.
pub const HIGH: Backlog = Backlog { frames: 128, bytes: 1 << 20 };
/// Backlog at which sources are released.
pub const LOW: Backlog = Backlog { frames: 32, bytes: 256 << 10 };
/// Backlog at which frames are dropped: above [`HIGH`] by the possible content of the owner's inbox
/// when the mark was reached (256 frames of 64 KiB) and what other workers add before they see the
/// pressure.
pub const LIMIT: Backlog = Backlog { frames: 1024, bytes: 24 << 20 };
/// Backlog at which frames from a port with many stations behind it are dropped: such a port does
/// not wait, so a burst for one guest needs some room.
pub const SHARED: Backlog = Backlog { frames: 512, bytes: 4 << 20 };
/// How long a queue may make no progress before it counts as stalled: longer than a busy host keeps
/// a guest from running.
pub const STALL: Duration = Duration::from_millis(50);

/// An amount of waiting frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// How many.
    pub frames: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Backlog {
    /// True if either measure reaches the mark's.
    pub fn reaches(self, mark: Backlog) -> bool {
        self.frames >= mark.frames || self.bytes >= mark.bytes
    }
}

/// Why a frame is sent to a queue that may be full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Its source waits when the queue has pressure: the frame was sent before the pressure was
    /// raised.
    Waits,
    /// It comes from a port with many stations behind it, which never waits.
    Shared,
    /// It is a copy of a flood, or its source has waited as long as it may.
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

/// Shared by the owner of a queue, which writes it, and the senders to the queue.
#[derive(Debug, Default)]
pub struct Gauge {
    pressure: AtomicBool,
    /// Pressure that the worker has raised to which the queue is moving.
    pressure_at_destination: AtomicBool,
    /// A worker whose sources we hold is asleep, or about to be.
    has_waiter: AtomicBool,
    /// Frames taken in from the queue's peer.
    taken: AtomicU64,
    /// Frames delivered to the queue's peer.
    delivered: AtomicU64,
    /// What the queue has sent, in units of [`cost`](crate::share::cost).
    sent: AtomicU64,
    /// Memory that its waiting frames take.
    memory: AtomicU64,
    /// Of the frames taken in, those for a port's only queue in another engine.
    hops: Hops,
    /// The port of the queue; `None` for an inbox, or a device on a bridge of the host.
    port: Option<PortId>,
}

impl Gauge {
    /// That of a queue of this port.
    pub fn of(port: PortId) -> Gauge {
        Gauge { port: Some(port), ..Gauge::default() }
    }

    /// What a source that it holds waits for.
    pub(crate) fn wait_reason(&self) -> WaitReason {
        self.port.map_or(WaitReason::Another, WaitReason::Port)
    }

    /// Whether sources should wait.
    pub fn has_pressure(&self) -> bool {
        self.pressure.load(Ordering::Relaxed)
            || self.pressure_at_destination.load(Ordering::Relaxed)
    }

    /// Whether the owner holds sources.
    pub fn is_raised(&self) -> bool {
        self.pressure.load(Ordering::Relaxed)
    }

    /// Holds sources.
    pub fn raise(&self) {
        self.pressure.store(true, Ordering::Relaxed);
    }

    /// Releases sources. True if some of their workers may sleep and must be nudged.
    pub fn lower(&self) -> bool {
        self.pressure.store(false, Ordering::Relaxed);
        self.has_waiter()
    }

    /// [`raise`](Gauge::raise) by the next owner.
    pub fn raise_at_destination(&self) {
        self.pressure_at_destination.store(true, Ordering::Relaxed);
    }

    /// [`lower`](Gauge::lower) by the destination worker, when a move completes or is abandoned.
    pub fn lower_at_destination(&self) -> bool {
        self.pressure_at_destination.store(false, Ordering::Relaxed);
        self.has_waiter()
    }

    fn has_waiter(&self) -> bool {
        // Orders the store before the check for waiters. The partner is `wait_for_relief`, which
        // stores that it waits before it checks the pressure: one side sees the other's store.
        fence(Ordering::SeqCst);
        self.has_waiter.load(Ordering::Relaxed) && self.has_waiter.swap(false, Ordering::Relaxed)
    }

    /// Called with a source that is held, after [`Inbox::prepare_sleep`](crate::Inbox): the owner
    /// nudges us when it lowers the pressure. False if it has fallen already.
    ///
    /// If it were called earlier, a nudge would find no thread asleep and clear the flag: pressure
    /// that is raised again would then be lowered without a nudge.
    pub fn wait_for_relief(&self) -> bool {
        self.has_waiter.store(true, Ordering::Relaxed);
        // The partner is in `has_waiter`.
        fence(Ordering::SeqCst);
        self.has_pressure()
    }

    /// What the queue has sent since it was created, in bytes plus a fixed cost per frame: the
    /// progress that its sources wait for while it holds them.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Only the owning engine calls this.
    pub(crate) fn add_sent(&self, cost: u64) {
        self.sent.store(self.sent.load(Ordering::Relaxed).wrapping_add(cost), Ordering::Relaxed);
    }

    /// Adds to what the queue has sent. Several engines may call this at once.
    pub(crate) fn add_sent_shared(&self, cost: u64) {
        self.sent.fetch_add(cost, Ordering::Relaxed);
    }

    /// Sets what the queue has sent, if that is more than before. Only the owning engine calls
    /// this.
    pub(crate) fn raise_sent(&self, cost: u64) {
        self.sent.store(self.sent().max(cost), Ordering::Relaxed);
    }

    /// Bytes of memory taken by the frames that waited to leave by the queue when it last sent.
    pub(crate) fn memory(&self) -> usize {
        usize::try_from(self.memory.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Only the owning engine calls this.
    pub(crate) fn set_memory(&self, bytes: usize) {
        self.memory.store(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Frames taken in from the queue's peer since the queue was created.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Work done for the queue since it was created: frames, in both directions.
    pub fn load(&self) -> u64 {
        self.taken() + self.delivered.load(Ordering::Relaxed)
    }

    /// Only the owning engine calls this.
    pub(crate) fn add_taken(&self, frames: u64) {
        self.taken.store(self.taken() + frames, Ordering::Relaxed);
    }

    /// Only the owning engine calls this.
    pub(crate) fn add_delivered(&self, frames: u64) {
        let delivered = self.delivered.load(Ordering::Relaxed);
        self.delivered.store(delivered + frames, Ordering::Relaxed);
    }

    /// The engine that got most of the recent frames for a port's only queue in another engine.
    pub fn hopped(&self) -> Option<Hopped> {
        self.hops.leader()
    }

    /// Counts a frame for the only queue of a port in `engine`. Only the owning engine calls this.
    pub(crate) fn count_hop(&self, engine: usize) {
        self.hops.count(engine);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_reached_by_frames_or_by_bytes() {
        let Backlog { frames, bytes } = HIGH;
        let reaches = |frames, bytes| Backlog { frames, bytes }.reaches(HIGH);
        assert!(reaches(frames, 0) && reaches(0, bytes));
        assert!(!reaches(frames - 1, bytes - 1));
        let marks = [Admission::Waits, Admission::Shared, Admission::Late].map(Admission::mark);
        assert_eq!(marks, [LIMIT, SHARED, HIGH]);
    }

    #[test]
    fn who_waits_is_woken_once_by_whichever_pressure_ends_last() {
        let gauge = Gauge::default();
        assert!(!gauge.wait_for_relief(), "there is no pressure");
        gauge.raise();
        gauge.raise_at_destination();
        assert!(gauge.wait_for_relief());
        assert!(gauge.lower() && gauge.has_pressure() && !gauge.is_raised());
        assert!(gauge.wait_for_relief(), "it is held again");
        assert!(gauge.lower_at_destination() && !gauge.has_pressure());
        assert!(!gauge.lower_at_destination(), "no one waits");
    }

    #[test]
    fn what_was_sent_is_never_less_than_before() {
        let gauge = Gauge::default();
        gauge.add_sent(7);
        gauge.add_sent_shared(5);
        gauge.raise_sent(3);
        assert_eq!(gauge.sent(), 12);
        gauge.raise_sent(20);
        gauge.set_memory(99);
        assert_eq!((gauge.sent(), gauge.memory()), (20, 99));
    }
}
