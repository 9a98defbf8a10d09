//! How other threads reach an engine: they put in frames for its queues and wake its thread.

use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::Frame;

use crate::gauge::{Admission, Gauge};
use crate::slot::SlotId;
use crate::sync::{ArrayQueue, AtomicBool, Ordering, fence};

/// A frame on its way to a queue of another engine.
#[derive(Debug)]
pub struct Parcel {
    /// The queue.
    pub to: SlotId,
    /// The frame.
    pub frame: Frame,
    /// The backlog at which it may be dropped there.
    pub admission: Admission,
}

/// Where an engine receives frames from other engines, and how its thread is woken.
#[derive(Debug)]
pub struct Inbox {
    parcels: ArrayQueue<Parcel>,
    sleeps: AtomicBool,
    has_commands: AtomicBool,
    waker: Waker,
    /// Holds the sources of other engines that send here.
    gauge: Arc<Gauge>,
}

impl Inbox {
    /// Frames that may wait in an inbox.
    pub(crate) const PARCELS: usize = 4096;
    /// Frames at which senders are held back: far below [`Self::PARCELS`], because senders check
    /// only occasionally, and because all frames may be for one queue.
    const HIGH: usize = 256;
    /// Frames at which senders are released.
    const LOW: usize = 64;

    /// An empty inbox. `waker` wakes the thread that runs the engine; it is called at most once for
    /// each sleep.
    pub fn new(waker: Waker) -> Inbox {
        Inbox {
            parcels: ArrayQueue::new(Self::PARCELS),
            sleeps: AtomicBool::new(false),
            has_commands: AtomicBool::new(false),
            waker,
            gauge: Arc::default(),
        }
    }

    /// Puts a frame in. The sender calls [`nudge`](Inbox::nudge) after its last one.
    ///
    /// # Errors
    /// The frame, if the inbox is full.
    pub fn push(&self, parcel: Parcel) -> Result<(), Frame> {
        self.parcels.push(parcel).map_err(|parcel| parcel.frame)
    }

    pub(crate) fn pop(&self) -> Option<Parcel> {
        self.parcels.pop()
    }

    /// The number of frames that wait here.
    pub fn len(&self) -> usize {
        self.parcels.len()
    }

    /// Whether no frame waits here.
    pub fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }

    /// Calls `visit` with every frame that waits here, oldest first: for checks while no other
    /// thread uses the inbox. Each frame is taken out and put back, so frames put in meanwhile
    /// would end up out of order.
    pub fn visit_parcels(&self, visit: &mut dyn FnMut(&Parcel)) {
        for _ in 0..self.parcels.len() {
            let Some(parcel) = self.parcels.pop() else { return };
            visit(&parcel);
            // There is room: an entry has just been taken out.
            let _ = self.parcels.push(parcel);
        }
    }

    /// The gauge that holds senders.
    pub(crate) fn gauge(&self) -> &Arc<Gauge> {
        &self.gauge
    }

    /// Called by senders after some frames: raises the pressure if the inbox has reached the high
    /// mark.
    pub fn measure(&self) {
        if self.parcels.len() >= Self::HIGH && !self.gauge.has_pressure() {
            self.gauge.raise();
        }
    }

    /// Called by the owner after it took out frames of this cost. True if held sources may sleep.
    pub(crate) fn relieve(&self, cost: u64) -> bool {
        self.gauge.add_sent(cost);
        self.gauge.has_pressure() && self.parcels.len() < Self::LOW && self.gauge.lower()
    }

    /// Wakes the thread if it sleeps.
    pub fn nudge(&self) {
        // Orders our push before the check of `sleeps`; the partner is in `prepare_sleep`.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            self.waker.wake_by_ref();
        }
    }

    /// Announces a waiting command, and wakes the thread.
    pub fn announce_command(&self) {
        self.has_commands.store(true, Ordering::Release);
        self.nudge();
    }

    /// True if commands were announced since the last call.
    pub fn take_commands(&self) -> bool {
        self.has_commands.load(Ordering::Relaxed)
            && self.has_commands.swap(false, Ordering::Acquire)
    }

    /// Called before sleeping: from now on senders wake us. True if nothing arrived meanwhile.
    pub fn prepare_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::Relaxed);
        // Orders the store of `sleeps` before the check of the contents; see `nudge`.
        fence(Ordering::SeqCst);
        // Lower the pressure if a sender raised it after we had emptied the inbox.
        let may_sleep = self.parcels.is_empty()
            && !self.has_commands.load(Ordering::Relaxed)
            && !self.gauge.has_pressure();
        if !may_sleep {
            self.awake();
        }
        may_sleep
    }

    /// Called after sleeping.
    pub fn awake(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use ringway_datapath::{FramePool, PoolBudget};

    use super::*;

    #[test]
    fn senders_are_held_from_the_high_mark_until_below_the_low_one() {
        let inbox = Inbox::new(Waker::noop().clone());
        let mut pool = FramePool::new(PoolBudget::new(1 << 20));
        let mut push = || {
            let frame = pool.take(60).expect("there is memory");
            let to = SlotId { index: 0, generation: 1 };
            inbox.push(Parcel { to, frame, admission: Admission::Waits }).expect("there is room");
            inbox.measure();
            inbox.gauge().has_pressure()
        };
        assert!((1..Inbox::HIGH).all(|_| !push()));
        assert!(push());
        assert!(inbox.gauge().wait_for_relief() && !inbox.prepare_sleep());
        while inbox.len() > Inbox::LOW {
            inbox.pop();
            assert!(!inbox.relieve(2));
        }
        inbox.pop();
        assert!(inbox.relieve(2), "a sender sleeps");
        assert!(!inbox.gauge().has_pressure() && !inbox.relieve(2));
    }
}
