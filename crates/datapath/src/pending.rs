//! Whether work arrived before its event was requested.

/// The result of arming: whether it is safe to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pending {
    /// Nothing to do; an event will come.
    Nothing,
    /// Work arrived meanwhile: poll again.
    Work,
}
