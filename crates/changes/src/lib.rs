//! Makes the changes that findings propose, and takes them back.
//!
//! [`plan`] chooses changes and refuses what it must; [`apply`](Apply) makes them one step after
//! another, each announced in a [`journal`] before it is made; [`undo`] takes back what is still
//! ours. [`settings`] reads and sets a knob, and knows nothing of all that. [`emit`] writes the
//! same changes for other tools, [`persist`] makes them outlast a restart, where [`home`] says that
//! the machine's files are for what was changed, and [`sysctl_d`] that no later file wins. Who
//! waits and reverts is the caller's part: nothing here starts a process that stays, or a thread.
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
