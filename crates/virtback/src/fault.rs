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
    /// Zeros replaced a region of the guest's memory.
    #[error(
        "the file of the guest's memory {CAUSES}: the region of {len:#x} bytes at guest address \
         {guest_address:#x}; {REMEDIES}"
    )]
    MemoryLost {
        /// The guest's address of the region.
        guest_address: u64,
        /// Bytes of the region.
        len: u64,
    },
    /// Zeros replaced the inflight area.
    #[error("the file of the inflight area (SET_INFLIGHT_FD) {CAUSES}: {len:#x} bytes; {REMEDIES}")]
    AreaLost {
        /// Bytes of the area.
        len: usize,
    },
    /// Zeros replaced the dirty log.
    #[error("the file of the dirty log (SET_LOG_BASE) {CAUSES}: {len:#x} bytes; {REMEDIES}")]
    LogLost {
        /// Bytes of the log.
        len: u64,
    },
    /// A page was written for which the dirty log has no bit.
    #[error(
        "page {page:#x} was written, but the dirty log (SET_LOG_BASE) has {len:#x} bytes, with a \
         bit for each of the first {pages:#x} pages: it must cover all of the guest's memory, and \
         the log addresses of its rings (SET_VRING_ADDR)"
    )]
    OutsideLog {
        /// The number of the page, from guest address 0 on.
        page: u64,
        /// Bytes of the log.
        len: u64,
        /// Pages that it has bits for.
        pages: u64,
    },
}

/// Why zeros replaced memory, and what to do. The system does not show which of the two it was.
const CAUSES: &str = "was truncated while it was in use, or its file system, such as /dev/shm or \
                      huge pages, has no room left";
const REMEDIES: &str = "use a file that is sealed against shrinking, such as a memfd, or enlarge \
                        the file system";
