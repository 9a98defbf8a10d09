//! A whole host under one seed: guests, rings, engines and XenStore, in one thread without a clock.
//!
//! The parts are the real ones: netfront and netback, the engines with their directories and
//! inboxes, the handshakes over a XenStore in memory. Only the hypervisor is that of
//! [`ringway_loopback`]. [`Choices`] decide which part acts next, what guests send, and what fails;
//! checkers watch. So every failure can be reproduced from its seed.
//!
//! Read `world.rs` first, then `plane.rs`, then `checkers.rs`.
//!
//! `tests/worlds/replaced.rs` has the tests of the whole program that are gone, each with the rules
//! and marks that show the same in any order.

mod accounts;
mod administrator;
mod batch;
mod calls;
mod canary;
mod census;
mod checkers;
mod choices;
mod control;
mod crowd;
mod delivery;
mod device;
mod driver;
mod flaw;
mod groups;
mod guest;
mod headroom;
mod hostile;
mod intruder;
mod journal;
mod kernel;
mod ledger;
mod links;
mod marks;
mod notes;
mod offloads;
mod orders;
mod ovs;
mod ovs_rules;
mod panics;
mod plane;
mod plugger;
mod port;
mod process;
mod reload;
mod report;
mod scenario;
mod settings;
mod socket;
mod toolstack;
mod traffic;
mod trouble;
mod virtio;
mod virtio_driver;
mod virtio_rules;
mod virtio_vifs;
mod vmm;
mod wishes;
mod witness;
mod worker;
mod workers;
mod world;

pub use batch::{Summary, run_seeds};
pub use canary::Canary;
pub use choices::Choices;
pub use crowd::{Stage, run_crowd};
pub use flaw::{Flaw, Rule};
pub use journal::Detail;
pub use kernel::{PortFlags, SimKernel, SimTap, Wire};
pub use marks::{Mark, Marks};
pub use notes::KeptNotes;
pub use report::{Failure, Outcome, Run, run, run_bytes, run_seed};
