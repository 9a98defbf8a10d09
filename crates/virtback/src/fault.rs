//! What a guest or its front-end can do wrong with a pair of queues.

use ringway_virtio::{PlaceError, QueueFault};

/// What ends a pair. It costs the guest this interface, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PairFault {
    /// A queue cannot be where the front-end says.
    #[error("{queue} queue: {error}")]
    Place {
        /// "tx" or "rx".
        queue: &'static str,
        /// Why not.
        error: PlaceError,
    },
    /// The guest did what no honest driver does.
    #[error("{queue} queue: {fault}")]
    Queue {
        /// "tx" or "rx".
        queue: &'static str,
        /// What it did.
        fault: QueueFault,
    },
    /// A chain to receive into has no room for the header of a frame.
    #[error("rx queue: a chain of {bytes} bytes, fewer than the {header_len} of a header")]
    NoRoomForHeader {
        /// Bytes of the chain.
        bytes: u64,
        /// Bytes of a header.
        header_len: usize,
    },
    /// The chains to receive into have so many descriptors that one frame takes too long.
    #[error("rx queue: a frame takes more than {limit} descriptors: most have no room")]
    TooManyDescriptors {
        /// How many a frame may take.
        limit: usize,
    },
    /// The counter of a call was filled, to hold up who calls.
    #[error("the front-end has filled the counter of a call (eventfd), so that calls wait for it")]
    CallBlocks,
    /// A file that the guest's memory is in ended before the memory did.
    #[error("the file of the guest's memory was cut while it was in use")]
    MemoryLost,
}
