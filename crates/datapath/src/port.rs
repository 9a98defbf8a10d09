//! The one thing that moves frames.

use std::io;
use std::os::fd::BorrowedFd;

use crate::{FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending};

/// One queue of something that frames enter and leave by: a vif, a TAP device, a test double.
///
/// `ingress` and `egress` are the switch's directions. Calls move whole batches; a port is owned
/// by one worker from attach to detach.
pub trait Port {
    /// Takes frames in, up to the batch's room.
    ///
    /// # Errors
    /// [`PortDown`] when the port can no longer be used. Frames already in `into` are good.
    fn ingress(&mut self, pool: &mut FramePool, into: &mut FrameBatch) -> Result<(), PortDown>;

    /// Bounds each later call of `ingress`: one that has taken in so many bytes takes no further
    /// frame. A kind of port whose rate nobody limits has no use for it.
    fn limit_ingress(&mut self, bytes_max: usize) {
        let _ = bytes_max;
    }

    /// Stands in for `ingress` while the port may take nothing in: what else a port does there, it
    /// does here. Only a port whose peer waits for what it sent has anything to do.
    ///
    /// # Errors
    /// [`PortDown`] when the port can no longer be used.
    fn settle(&mut self) -> Result<(), PortDown> {
        Ok(())
    }

    /// Sends frames from the front of `from`, in order. What does not fit now stays there; frames
    /// that are sent or dropped are recycled, and drops counted by the port.
    ///
    /// # Errors
    /// [`PortDown`] when the port can no longer be used.
    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown>;

    /// Asks to be woken by the next frame that could enter, and by room for one to leave if
    /// `egress` left any; then checks once more.
    ///
    /// # Errors
    /// [`PortDown`] when the port can no longer be used.
    fn arm(&mut self) -> Result<Pending, PortDown>;

    /// What frames that leave here may leave undone.
    fn offload_caps(&self) -> OffloadCaps;

    /// Shows the descriptors that become readable when the port should be polled.
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>));

    /// Whether to be polled also when one of them becomes writable.
    fn awaits_room(&self) -> bool {
        false
    }

    /// What it costs to look for frames when there are none.
    fn probe(&self) -> Probe;

    /// Called when one of the [`wakers`](Port::wakers) became readable or writable.
    ///
    /// # Errors
    /// [`PortDown`] when the port can no longer be used.
    fn woken(&mut self) -> Result<(), PortDown>;
}

/// What it costs to ask an idle port for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// A look into memory: worth polling for a while.
    Memory,
    /// A system call: better wait for its descriptor.
    SystemCall,
}

/// Why a port can no longer be used.
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
