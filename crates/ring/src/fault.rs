//! What a peer can do wrong with the indices of a ring.

/// An invalid producer index: behind its consumer, or further ahead of it than the ring has entries
/// (XSA-39; `netif.h:producer-bound`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{ring} ring: producer {produced} is {ahead} ahead of consumer, the ring has {slots}")]
pub struct RingFault {
    /// The name of the ring's [`Layout`](crate::Layout): "tx", "rx" or "control".
    pub ring: &'static str,
    /// The index as read.
    pub produced: u32,
    /// How far it is ahead.
    pub ahead: u32,
    /// Slots of the ring.
    pub slots: u32,
}
