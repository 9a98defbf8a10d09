//! Defects on purpose, to know that the checkers find them.
//!
//! Each stands in the simulator's own wrappers around the real parts, so nothing outside has a
//! switch for it. The one that does not is `canary.rs` of `ringway-ring`.

/// A defect on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    /// Now and then the bell of an engine does not ring.
    LostRing,
    /// An engine overlooks the event of a queue now and then.
    LostEvent,
    /// Now and then two frames of a batch are swapped.
    SwappedFrames,
    /// Now and then a frame is dropped and not counted.
    UncountedDrop,
    /// Now and then a frame comes twice.
    DoubledFrame,
    /// Now and then a buffer is taken and never given back.
    LeakedBuffer,
    /// The last byte of a frame is changed.
    ChangedByte,
    /// A queue moves before every engine has seen where it will be.
    HastyMove,
    /// A vif that is let go stays mapped.
    KeptMapping,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 9] = [
        Canary::LostRing,
        Canary::LostEvent,
        Canary::SwappedFrames,
        Canary::UncountedDrop,
        Canary::DoubledFrame,
        Canary::LeakedBuffer,
        Canary::ChangedByte,
        Canary::HastyMove,
        Canary::KeptMapping,
    ];
}
