//! What is known not to hold, and is therefore not checked. Each is a finding of a world.

/// What becomes of a vif's error nodes when the vif goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errors {
    /// They go with it.
    Gone,
    /// They may stay.
    MayStay,
}

/// A backend that starts does not know of the errors that an earlier one reported.
pub(crate) const ERRORS_AFTER_A_KILL: Errors = Errors::MayStay;

/// Whether queues may move to an engine that gets no processor. More than 1024 frames that gather
/// for a queue on its way are dropped and not counted.
pub(crate) const MAY_MOVE_TO_PAUSED_ENGINES: bool = false;

/// The least frame memory beside hostile guests. A queue that stands still keeps up to 1 MiB for as
/// long as its guest likes, so a few of them could hold all of a smaller one.
pub(crate) const BUDGET_WITH_HOSTILES: usize = 4 << 20;
