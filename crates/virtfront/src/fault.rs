//! What a device can do wrong.

use ringway_virtio::UsedFault;

/// What no honest device does. Each carries the numbers that make it a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrontFault {
    /// It used what it does not have.
    #[error("{queue} queue: {fault}")]
    Queue {
        /// "tx" or "rx".
        queue: &'static str,
        /// What it did.
        fault: UsedFault,
    },
    /// A received frame announces chains that were not used.
    #[error("rx queue: a frame of {num_buffers} chains, {used} were used")]
    FrameCutOff {
        /// Chains that the header announces.
        num_buffers: u16,
        /// Chains that are there.
        used: usize,
    },
    /// A chain that was used without room for a header.
    #[error("rx queue: a frame of {bytes} bytes has no header")]
    NoHeader {
        /// Bytes of its first chain.
        bytes: u32,
    },
}
