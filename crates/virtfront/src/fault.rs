//! Protocol violations by a device.

use ringway_virtio::UsedFault;

/// A violation by the device, with the numbers that prove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrontFault {
    /// The device used a chain that it does not have.
    #[error("{queue} queue: {fault}")]
    Queue {
        /// "tx" or "rx".
        queue: &'static str,
        /// The violation.
        fault: UsedFault,
    },
    /// The header of a received frame announces more chains than were used.
    #[error("rx queue: a frame of {num_buffers} chains, {used} were used")]
    FrameCutOff {
        /// Chains that the header announces.
        num_buffers: u16,
        /// Chains that are there.
        used: usize,
    },
    /// A used chain has no room for a header.
    #[error("rx queue: a frame of {bytes} bytes has no header")]
    NoHeader {
        /// Bytes of its first chain.
        bytes: u32,
    },
}
