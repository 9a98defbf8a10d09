//! Hostile guests, and what honest ones beside them lose.
//!
//! A [`Scenario`] is something that a guest does with its own rings, grants, events, keys and
//! frames: with a guest's rights and no more. `ringway-hostile run` does it beside honest guests on
//! a host that it makes, measures those, and says which bound is broken; `ringway-hostile guest` is
//! only the guest, on the emulated hypervisor or in a domain of Xen, against any backend.
//! [`Guest`], [`Queue`] and [`Toolstack`] are for tests that need a guest which does as they say.
//!
//! Nothing here checks what it sends. Read first: [`catalogue`], then [`stage`], then a file of
//! `acts`.

mod acts;
pub mod catalogue;
mod cli;
pub mod frame;
mod ground;
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
pub mod way;

pub use cli::main;
pub use guest::Guest;
pub use place::Toolstack;
pub use queue::Queue;
pub use scenario::{Beside, Control, Lives, Net, Own, Pace, Place, Scenario};
