//! The shell around the vif handshake: everything that both ends do to XenStore.
//!
//! The state machines of `xenbus` say what is to be done; [`drive`] has it done. [`BackendEnd`] and
//! [`FrontendEnd`] are the two ends: each owns its machine, carries out what concerns XenStore, and
//! leaves the rest (rings, event channels, devices, the log) to the process around it, which is a
//! [`BackendProcess`] or a [`FrontendProcess`].
//!
//! Nothing here does I/O of its own or reads a clock: the store is a [`Client`] over any
//! [`Transport`], and the time is an argument. So the processes and a simulation in memory run the
//! same code. Only the loss of XenStore is an error; a refusal is handled by the end that it
//! concerns.
//!
//! Read [`drive`] first, then [`BackendEnd`].
//!
//! [`Client`]: ringway_xenstore::Client
//! [`Transport`]: ringway_xenstore::Transport

mod backend;
pub mod device;
mod drive;
mod frontend;

pub use backend::{BackendEnd, BackendProcess};
pub use drive::{Machine, OnRefusal, Shell, drive};
pub use frontend::{FrontendEnd, FrontendProcess, set_error};

use ringway_xenbus::XenbusState;
use ringway_xenstore::Refusal;

/// What an end reports while it works, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note<'a> {
    /// It has written its state.
    State(XenbusState),
    /// It serves its peer, and will say so when the toolstack's hotplug script is done.
    AwaitsHotplug,
    /// XenStore refused something that the end can do without.
    Refused(&'a Refusal),
    /// The vif cannot be used at the moment, for this reason, and it is tried again.
    Waits(&'a str),
    /// The vif cannot be used, for this reason.
    Closed(&'a str),
}
