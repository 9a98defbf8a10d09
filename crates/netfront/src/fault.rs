//! Protocol violations by a backend in its responses.

/// A response that no honest backend gives. Each variant contains the numbers that prove the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResponseFault {
    /// A response to a tx request that is not outstanding.
    #[error("tx ring: response with id {id}, which is not outstanding")]
    Unknown {
        /// The id as read.
        id: u16,
    },
    /// A received packet with more slots than allowed.
    #[error("rx ring: a packet of more than {limit} slots")]
    TooManySlots {
        /// The limit.
        limit: usize,
    },
    /// A received slot whose bytes extend beyond its page.
    #[error("rx ring: response at offset {offset} with {status} bytes leaves its page")]
    LeavesPage {
        /// The offset as read.
        offset: u16,
        /// The status as read.
        status: i16,
    },
    /// A response to a control message that is not outstanding.
    #[error("control ring: response with id {id}, which is not outstanding")]
    NoMessage {
        /// The id as read.
        id: u16,
    },
    /// An invalid GSO extra.
    #[error("rx ring: GSO of type {kind} with segments of {size} bytes")]
    BadGso {
        /// The type as read.
        kind: u8,
        /// The size as read.
        size: u16,
    },
}
