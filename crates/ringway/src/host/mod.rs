//! A whole emulated host: its processes and their supervisor.
//!
//! [`supervisor`] starts a broker, a backend and the guests, each a process of its own, and acts
//! as the toolstack. All that it makes belongs to a value that removes it when dropped, so a start
//! that fails half-way leaves nothing behind. If the supervisor itself is killed, its processes die
//! with it, and a state file lists for the next one what else there was.

mod accepted;
mod bridges;
mod claim;
mod devices;
mod isolation;
pub(crate) mod nodes;
mod notices;
mod process;
mod process_end;
mod progress;
mod reload;
mod supervisor;
pub(crate) mod this_domain;
pub(crate) mod xen;

pub(crate) use accepted::{Accepted, Keep, log_kept, log_refusal};
pub(crate) use claim::{check_path, default_dir, read_description, read_state};
pub(crate) use devices::{Ending, owner, remove_all};
pub(crate) use process::{Process, ProcessRecord, as_pid};
pub(crate) use process_end::ProcessEnd;
pub(crate) use progress::Show;
pub(crate) use supervisor::Supervisor;

/// The hypervisor that a verb works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HypervisorKind {
    /// Ringway's own, on any machine.
    Emulated,
    /// Xen.
    Xen,
}

/// What the broker prints on its standard output once it serves.
pub(crate) const BROKER_READY: &str = "ready";
