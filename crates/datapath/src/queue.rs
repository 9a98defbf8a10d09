//! [`PortQueue`]: one queue that frames enter and leave by.
//!
//! A *port* of the switch is a set of such queues. The data path is generic over this trait; its
//! implementations are a queue of a vif, seen from either end, and a queue of a TAP device.

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
    fn woken(&mut self) -> Result<(), PortDown>;

    /// What does not change from attach to detach.
    fn describe(&self) -> QueueTraits;
}

/// A queue whose events are descriptors that a thread can wait for.
pub trait Wakers {
    /// Shows each descriptor, and when it calls for [`PortQueue::woken`].
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest));
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
    /// Bytes after which no further frame is taken in.
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
    /// What it costs to look for frames when there are none.
    pub probe: Probe,
}

/// What it costs to ask an idle queue for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// A look into memory: worth polling for a while.
    Memory,
    /// A system call: better wait for its descriptor.
    SystemCall,
}

/// Why a queue can no longer be used.
#[derive(Debug, thiserror::Error)]
pub enum PortDown {
    /// The peer broke the protocol.
    #[error(transparent)]
    Peer(#[from] PeerFault),
    /// The host refused us something.
    #[error(transparent)]
    Host(#[from] io::Error),
}

/// What a peer did against the protocol. Closes its vif, is logged once and written to its
/// XenStore `error` node. Each carries the numbers that make it a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// A producer index ran away (netif b2: `req_prod - req_cons > ring size`).
    #[error("{ring} ring: producer {produced} is {ahead} ahead of consumer, the ring has {slots}")]
    ProducerOverrun {
        /// "tx" or "rx".
        ring: &'static str,
        /// The index as read.
        produced: u32,
        /// How far it is ahead.
        ahead: u32,
        /// Slots of the ring.
        slots: u32,
    },
    /// `more_data` or `extra_info` announces a slot that is not there.
    #[error("tx ring: a packet is cut off: slot {slot} announces another one, none was produced")]
    PacketCutOff {
        /// Free-running index of the last slot that is there.
        slot: u32,
    },
    /// More slots than any packet may have.
    #[error("tx ring: a packet of more than {limit} slots")]
    TooManySlots {
        /// The limit.
        limit: usize,
    },
    /// A slot reaches over the end of its page.
    #[error("tx ring: slot at offset {offset} with {size} bytes crosses its page")]
    CrossesPage {
        /// The slot's offset.
        offset: u16,
        /// Bytes in the slot.
        size: u16,
    },
    /// An extra that is not defined.
    #[error("{ring} ring: extra of type {kind}")]
    BadExtra {
        /// "tx" or "rx".
        ring: &'static str,
        /// The type as read.
        kind: u8,
    },
    /// A GSO extra that cannot be meant.
    #[error("{ring} ring: GSO of type {kind} with segments of {size} bytes")]
    BadGso {
        /// "tx" or "rx".
        ring: &'static str,
        /// The type as read.
        kind: u8,
        /// The size as read.
        size: u16,
    },
    /// A response to a request that is not outstanding.
    #[error("{ring} ring: response with id {id}, which is not outstanding")]
    UnknownResponse {
        /// "tx" or "rx".
        ring: &'static str,
        /// The id as read.
        id: u16,
    },
    /// A response that describes bytes outside its page.
    #[error("rx ring: response at offset {offset} with {status} bytes leaves its page")]
    BadRxRange {
        /// The offset as read.
        offset: u16,
        /// The status as read.
        status: i16,
    },
}
