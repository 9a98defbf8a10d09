//! How other threads reach an engine: frames for its queues, and a way to wake its thread.

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
    /// When it may be dropped there.
    pub admission: Admission,
}

/// Where an engine receives frames from other engines, and where its thread is woken.
#[derive(Debug)]
pub struct Inbox {
    parcels: ArrayQueue<Parcel>,
    sleeps: AtomicBool,
    has_commands: AtomicBool,
    waker: Waker,
    /// Holds back the sources of other engines that send here.
    gauge: Arc<Gauge>,
}

impl Inbox {
    /// Frames that may wait in an inbox.
    pub(crate) const PARCELS: usize = 4096;
    /// Frames at which senders are held back: far below [`Self::PARCELS`], because senders check
    /// only now and then, and because all of it may be for one queue.
    const HIGH: usize = 256;
    /// Frames at which they may go on.
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

    /// Frames that wait here.
    pub fn len(&self) -> usize {
        self.parcels.len()
    }

    /// Whether no frame waits here.
    pub fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }

    /// Shows every frame that waits here, the oldest first: for checks while no other thread uses
    /// it. Each is taken out and put in again, so a frame that came meanwhile would change its
    /// place.
    pub fn visit_parcels(&self, visit: &mut dyn FnMut(&Parcel)) {
        for _ in 0..self.parcels.len() {
            let Some(parcel) = self.parcels.pop() else { return };
            visit(&parcel);
            // There is room: an entry has just been taken out.
            let _ = self.parcels.push(parcel);
        }
    }

    /// What holds senders back.
    pub(crate) fn gauge(&self) -> &Arc<Gauge> {
        &self.gauge
    }

    /// Called by senders after some frames: raises the pressure if it is time.
    pub fn measure(&self) {
        if self.parcels.len() >= Self::HIGH && !self.gauge.has_pressure() {
            self.gauge.raise();
        }
    }

    /// Called by the owner after it took frames out that cost so much. True if held sources may
    /// sleep.
    pub(crate) fn relieve(&self, cost: u64) -> bool {
        self.gauge.add_sent(cost);
        self.gauge.has_pressure() && self.parcels.len() < Self::LOW && self.gauge.lower()
    }

    /// Wakes the thread if it sleeps.
    pub fn nudge(&self) {
        // Orders what we put in before the check of `sleeps`; the partner is in `prepare_sleep`.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            self.waker.wake_by_ref();
        }
    }

    /// Says that a command waits, and wakes the thread.
    pub fn announce_command(&self) {
        self.has_commands.store(true, Ordering::Release);
        self.nudge();
    }

    /// True once for each time that commands were announced.
    pub fn take_commands(&self) -> bool {
        self.has_commands.load(Ordering::Relaxed)
            && self.has_commands.swap(false, Ordering::Acquire)
    }

    /// Called before sleeping: from now on senders wake us. True if nothing came meanwhile.
    pub fn prepare_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::Relaxed);
        // Orders the store that we sleep before the check of the contents; see `nudge`.
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
