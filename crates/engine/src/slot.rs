//! Names of places for queues.

/// Names one attachment of a queue; a number is never used for a second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotId {
    /// Index into the owner's slots.
    pub index: usize,
    /// Distinguishes attachments in the same slot.
    pub generation: u64,
}
