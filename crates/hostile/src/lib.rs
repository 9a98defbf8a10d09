//! Hostile guests, and their effect on honest ones.
//!
//! A [`Scenario`] is an attack by a guest with its own rings, grants, events, keys and frames, and
//! with a guest's rights only. `ringway-hostile run` runs it beside honest guests on a host that it
//! creates, measures those, and reports which bounds are broken; `ringway-hostile guest` is only
//! the guest, on the emulated hypervisor or in a Xen domain, against any backend. [`Guest`],
//! [`Queue`] and [`Toolstack`] serve tests that need a guest with full control of its interface.
//!
//! Nothing here validates what it sends. Read first: [`catalogue`], then [`stage`], then a file of
//! `acts`.

mod acts;
pub mod backend;
pub mod catalogue;
mod cli;
pub mod control_ring;
pub mod frame;
pub mod guest;
pub mod machine;
mod measure;
pub mod place;
pub mod queue;
mod record;
mod report;
mod run;
mod scenario;
pub mod stage;
pub mod store_access;
mod test_host;

pub use cli::main;
pub use control_ring::ControlRing;
pub use guest::Guest;
pub use place::Toolstack;
pub use queue::Queue;
pub use scenario::{Beside, Control, Lives, Net, Own, Pace, Place, Scenario};
