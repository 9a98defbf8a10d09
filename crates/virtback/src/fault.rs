//! Protocol violations by a guest or its front-end on a pair of queues.

use ringway_virtio::{PlaceError, QueueFault};

/// Why a pair is closed. Only this interface of the guest is affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PairFault {
    /// A queue cannot be at the addresses of the front-end.
    #[error("{queue} queue: {error}")]
    Place {
        /// "tx" or "rx".
        queue: &'static str,
        /// Why not.
        error: PlaceError,
    },
    /// The guest broke the queue protocol.
    #[error("{queue} queue: {fault}")]
    Queue {
        /// "tx" or "rx".
        queue: &'static str,
        /// The violation.
        fault: QueueFault,
    },
    /// An rx chain has no room for a frame's header.
    #[error("rx queue: a chain of {bytes} bytes, fewer than the {header_len} of a header")]
    NoRoomForHeader {
        /// Bytes of the chain.
        bytes: u64,
        /// Bytes of a header.
        header_len: usize,
    },
    /// The rx chains have so many descriptors that one frame would take too long.
    #[error("rx queue: a frame needs more than {limit} descriptors: most have no room")]
    TooManyDescriptors {
        /// The most descriptors of a frame.
        limit: usize,
    },
    /// The peer filled the counter of the call eventfd, so that signalling it would block.
    #[error("the front-end has filled the counter of a call (eventfd), so that calls would block")]
    CallBlocks,
    /// A file of the guest's memory was truncated.
    #[error(
        "the file of the guest's memory was truncated while it was in use: the region of {len:#x} \
         bytes at guest address {guest_address:#x}"
    )]
    MemoryLost {
        /// The guest's address of the region.
        guest_address: u64,
        /// Bytes of the region.
        len: u64,
    },
}
