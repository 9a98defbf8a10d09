//! A whole host under one seed: guests, rings, engines and XenStore, in one thread without a clock.
//!
//! The parts are the real ones: netfront and netback, the engines with their directories and
//! inboxes, the handshakes over a XenStore in memory. Only the hypervisor is that of
//! [`ringway_loopback`]. [`Choices`] decide which part acts next, what guests send, and what fails;
//! checkers watch. So every failure can be reproduced from its seed.
//!
//! Read `world.rs` first, then `plane.rs`, then `checkers.rs`.
//!
//! # Tests of whole programs that worlds replace
//!
//! A test of a whole program runs one order of events, on a real clock. Those of the table were
//! removed: a [rule](Rule) with these [marks](Mark) shows the same in any order.
//!
//! | removed test | rule | marks |
//! |---|---|---|
//! | keys written one by one | `Handshake`, `Calls` | `KeyByKey`, `StateTwice`, `HalfMade` |
//! | queues changed from both ends | `Calls`, `Handshake` | `QueuesOffered`, `Reconnected` |
//! | a backend that is killed repeatedly | `Handshake` | `BackendKilled`, `Reattached` |
//! | two panics, quarantine, release | `Quarantine` | `BackendPanics`, `Quarantined` |
//! | limits set at run time outlive a kill | `Settings`, `Calls` | `RateChanged`, `SettingUnseen` |
//! | rules of both kinds are set, and outlive a kill | `Settings` | `CallDone`, `BackendKilled` |
//! | who reconnects floods no more than others | `Settings` | `BudgetKept` |
//! | a link that is down, also after a kill | `Settings` | `LinkDown`, `BackendKilled` |
//! | a link that is down while a host is stopped | `Settings` | `LinkCut` |
//! | a virtio vif waits for its bridge | `Explanation` | `BridgeLate`, `VirtioUnattached` |
//!
//! Others needed no world: tests of one crate show the same. They are those of frames that are
//! longer than the MTU (`engine`, `rounds limits`), of rings that change endlessly and of an
//! address in use (`host`, `virtio`), of guests that come to share a worker (`worker`, `placing`),
//! of frames for a link (`switch`, `classify`, and `host`, `virtio calls`), of what is refused in a
//! description (`description`), and of XenStore (`xenstore`, `tools`; guests that abuse it are
//! scenarios of `hostile`). The rules of virtio vifs are those of `host`, too (`virtio rules`).

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
