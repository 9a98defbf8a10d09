//! The shell around the vif handshake: everything that both ends do with XenStore.
//!
//! The state machines of `xenbus` return actions; [`drive()`] carries them out. [`BackendEnd`] and
//! [`FrontendEnd`] are the two ends: each owns its machine, carries out the actions on XenStore,
//! and leaves the rest (rings, event channels, devices, the log) to its process, which is a
//! [`BackendProcess`] or a [`FrontendProcess`].
//!
//! Nothing here does its own I/O or reads a clock: the store is a [`Client`] over any
//! [`Transport`], and the time is an argument. So the processes and an in-memory simulation run the
//! same code. Only the loss of XenStore is an error; the affected end handles a refusal.
//!
//! Read [`drive()`] first, then [`BackendEnd`].
//!
//! [`Client`]: ringway_xenstore::Client
//! [`Transport`]: ringway_xenstore::Transport

mod backend;
pub mod device;
mod drive;
mod frontend;
mod log;
mod waits;

pub use backend::{BackendEnd, BackendProcess};
pub use drive::{Machine, OnRefusal, Shell, drive};
pub use frontend::{FrontendEnd, FrontendProcess, Released, set_error};
pub use log::{LeftOut, LogAllowance};
pub use waits::{EndWait, Refusals};

use ringway_xenbus::XenbusState;
use ringway_xenstore::Refusal;

/// What an end reports while it works, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note<'a> {
    /// It has written its state.
    State(XenbusState),
    /// It serves its peer, and will report that when the toolstack's hotplug script is done.
    AwaitsHotplug,
    /// XenStore refused something that the end can do without.
    Refused(&'a Refusal),
    /// The vif cannot be used at the moment, for this reason, and will be retried.
    Waits(&'a str),
    /// The vif cannot be used, for this reason.
    Closed(&'a str),
}
