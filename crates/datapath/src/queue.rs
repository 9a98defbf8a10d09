//! [`PortQueue`]: one queue that frames enter and leave by.
//!
//! A *port* of the switch is a set of such queues. The data path is generic over this trait; its
//! implementations are a queue of a vif, seen from either end, and a queue of a TAP device.

use core::error::Error;
use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;

use crate::{BATCH, FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending};

/// One queue of a port: of a vif, of a TAP device, of a test.
///
/// `ingress` and `egress` are the switch's directions. Calls move whole batches. A queue is owned
/// by one worker from attach to detach. No method has a default body, so that a type that forwards
/// to others cannot forget one.
pub trait PortQueue {
    /// Takes frames in: at most `budget.frames`, and none after the one that reaches
    /// `budget.bytes`, up to the room in `into`. Responses that the peer waits for are sent even
    /// where the budget is [`Budget::NOTHING`].
    ///
    /// # Errors
    /// [`PortDown`] when the queue can no longer be used. Frames already in `into` are good.
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), PortDown>;

    /// Sends frames from the front of `from`, in order. What does not fit now stays there; frames
    /// that are sent or dropped are recycled, and drops counted by the queue.
    ///
    /// # Errors
    /// [`PortDown`] when the queue can no longer be used.
    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown>;

    /// Asks for an event when the next frame could enter, and when there is room for one to leave
    /// if `egress` left any; then checks once more.
    ///
    /// # Errors
    /// [`PortDown`] when the queue can no longer be used.
    fn arm(&mut self) -> Result<Pending, PortDown>;

    /// Handles an event: the next `ingress` or `egress` may have something to do.
    ///
    /// # Errors
    /// [`PortDown`] when the queue can no longer be used.
    fn woken(&mut self, by: Woken) -> Result<(), PortDown>;

    /// What does not change from attach to detach.
    fn describe(&self) -> QueueTraits;
}

/// A queue whose events are descriptors that a thread can wait for.
pub trait Wakers {
    /// Shows each descriptor, and when it calls for [`PortQueue::woken`].
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest));
}

/// What an event of a queue was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The descriptor that [`Wakers::wakers`] shows as the first, counted from 0, and so on: no
    /// other needs to be read.
    By(usize),
    /// Any of them.
    Unknown,
}

/// When a descriptor of a queue is an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// It became readable.
    Readable,
    /// It became readable or writable.
    ReadableOrWritable,
}

/// How much one call of [`PortQueue::ingress`] may take in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Frames at most.
    pub frames: usize,
    /// Bytes after which no further frame is taken in, as [`Frame::work`](crate::Frame::work)
    /// counts them.
    pub bytes: usize,
}

impl Budget {
    /// As much as a batch has room for.
    pub const BATCH: Budget = Budget { frames: BATCH, bytes: usize::MAX };
    /// No frame: the queue only does what its peer waits for.
    pub const NOTHING: Budget = Budget { frames: 0, bytes: 0 };

    /// A batch of at most so many bytes.
    pub fn of_bytes(bytes: usize) -> Budget {
        Budget { bytes, ..Budget::BATCH }
    }

    /// Whether no frame may be taken in.
    pub fn is_nothing(self) -> bool {
        self.frames == 0 || self.bytes == 0
    }
}

/// What a queue is, from attach to detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueTraits {
    /// Offloads that frames that leave here may still ask for.
    pub caps: OffloadCaps,
    /// What it costs to look for frames in vain.
    pub probe: Probe,
    /// After how long a backlog is sent again, if no event reports that there is room.
    pub retry: Option<Duration>,
    /// Whether frames may leave here whose end is in pages ([`Body`](crate::Body)).
    pub takes_bodies: bool,
}

/// What it costs to ask an idle queue for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// A read of memory: worth polling for a while.
    Memory,
    /// A system call: better wait for its descriptor.
    SystemCall,
}

/// Why a queue can no longer be used.
#[derive(Debug, thiserror::Error)]
pub enum PortDown {
    /// The peer broke the protocol. What it did is the business of the kind of port; the message
    /// carries the numbers that make it a fault. It closes the peer's vif, is logged once and
    /// written to the vif's XenStore `error` node.
    #[error(transparent)]
    Peer(Box<dyn Error + Send + Sync>),
    /// The host refused us something.
    #[error(transparent)]
    Host(#[from] io::Error),
}

impl PortDown {
    /// The end of a queue whose peer did this. Allocates, once in the life of a queue.
    #[cold]
    pub fn peer(fault: impl Error + Send + Sync + 'static) -> PortDown {
        PortDown::Peer(Box::new(fault))
    }
}
