//! Makes the changes that findings propose, and reverts them.
//!
//! [`plan`] chooses changes and refuses unsafe ones; [`apply`](Apply) makes them one step after
//! another, each recorded in a [`journal`] before it is made; [`undo()`] reverts those that are
//! still ours. [`settings`] reads and sets a knob, independently of the rest. [`emit`] writes the
//! same changes for other tools. [`persist`] keeps them across restarts, after [`home`] has checked
//! that the machine's files apply to what was changed, and [`sysctl_d`] that no later file
//! overrides them. Waiting and reverting on a timeout are up to the caller: nothing here starts a
//! lasting process or a thread.
//!
//! Read first: `journal.rs`.

mod apply;
pub mod emit;
pub mod guard;
pub mod home;
pub mod journal;
pub mod persist;
pub mod plan;
pub mod settings;
pub mod sysctl_d;
mod undo;

pub use apply::{Apply, ApplyError, Progress};
pub use undo::{Outcome, Undone, undo};

#[cfg(test)]
mod tests;
