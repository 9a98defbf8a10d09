//! What is known not to hold, and is therefore not checked. Each is a finding of a world.

/// What becomes of a vif's error nodes when the vif goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errors {
    /// They go with it.
    Gone,
    /// They may stay.
    MayStay,
}

/// A backend that starts does not know of vifs that went while none ran, nor of the errors that an
/// earlier one reported of them.
pub(crate) const ERRORS_AFTER_A_KILL: Errors = Errors::MayStay;
