//! How other threads reach a worker: frames for its queues, and a way to wake it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::ArrayQueue;
use ringway_datapath::Frame;
use rustix::event::{EventfdFlags, eventfd};

use crate::directory::SlotId;
use crate::gauge::Gauge;

/// A frame on its way to a queue of another worker.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) to: SlotId,
    pub(crate) frame: Frame,
}

/// A worker's letterbox.
#[derive(Debug)]
pub struct Inbox {
    parcels: ArrayQueue<Parcel>,
    sleeps: AtomicBool,
    has_commands: AtomicBool,
    wake: OwnedFd,
    /// Holds back those who put frames in.
    gauge: Arc<Gauge>,
}

impl Inbox {
    /// Frames that may wait in an inbox.
    pub(crate) const PARCELS: usize = 4096;
    /// Frames at which senders are held back: far below [`Self::PARCELS`], because senders look
    /// only now and then, and because all of it may be for one queue.
    const HIGH: usize = 256;
    /// Frames at which they may go on.
    const LOW: usize = 64;

    pub(crate) fn new() -> io::Result<Inbox> {
        Ok(Inbox {
            parcels: ArrayQueue::new(Self::PARCELS),
            sleeps: AtomicBool::new(false),
            has_commands: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            gauge: Arc::default(),
        })
    }

    /// Puts a frame in. The sender calls [`nudge`](Inbox::nudge) after its last one.
    pub(crate) fn push(&self, parcel: Parcel) -> Result<(), Frame> {
        self.parcels.push(parcel).map_err(|parcel| parcel.frame)
    }

    pub(crate) fn pop(&self) -> Option<Parcel> {
        self.parcels.pop()
    }

    /// What holds senders back.
    pub(crate) fn gauge(&self) -> &Arc<Gauge> {
        &self.gauge
    }

    /// Called by senders after some frames: raises the pressure if it is time.
    pub(crate) fn measure(&self) {
        if self.parcels.len() >= Self::HIGH && !self.gauge.has_pressure() {
            self.gauge.raise();
        }
    }

    /// Called by the owner after it took frames out. True if workers are to be nudged.
    pub(crate) fn relieve(&self) -> bool {
        self.gauge.has_pressure() && self.parcels.len() < Self::LOW && self.gauge.lower()
    }

    /// Wakes the worker if it sleeps.
    pub(crate) fn nudge(&self) {
        // Orders what we put in before the look at `sleeps`; the partner is in `prepare_sleep`.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            self.ring();
        }
    }

    /// Says that a command waits, and wakes the worker.
    pub(crate) fn announce_command(&self) {
        self.has_commands.store(true, Ordering::Release);
        self.nudge();
    }

    /// True once for each time that commands were announced.
    pub(crate) fn take_commands(&self) -> bool {
        self.has_commands.load(Ordering::Relaxed)
            && self.has_commands.swap(false, Ordering::Acquire)
    }

    /// Called before sleeping: from now on senders wake us. True if nothing came meanwhile.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::Relaxed);
        // Orders our saying that we sleep before the look at what is in; see `nudge`.
        fence(Ordering::SeqCst);
        // Pressure that a sender raised late, when all was taken out, is ours to lower.
        let may_sleep = self.parcels.is_empty()
            && !self.has_commands.load(Ordering::Relaxed)
            && !self.gauge.has_pressure();
        if !may_sleep {
            self.awake();
        }
        may_sleep
    }

    /// Called after sleeping.
    pub(crate) fn awake(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Empties the descriptor that woke us.
    pub(crate) fn clear(&self) {
        // It may be empty already, which is all we want.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn ring(&self) {
        // The counter cannot overflow: the owner empties it each time it wakes.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
