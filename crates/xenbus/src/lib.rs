//! How the two ends of a vif find and leave each other: the xenbus handshake.
//!
//! Both ends are state machines without I/O or clock: [`backend::Handshake`] and
//! [`frontend::Handshake`] take inputs and return actions, which a shell carries out on a real or
//! an emulated XenStore. This crate is also the only place that spells XenStore keys and parses
//! their values; start with [`keys`].
//!
//! # The shell's part
//!
//! * Watch the other end's `state` node, and feed its *current* value at every event. Events may
//!   be merged or repeated. Where a state node is missing, feed [`XenbusState::Unknown`].
//! * As a backend, also watch what the toolstack writes into the backend's own directory: `online`,
//!   `hotplug-status`, and the backend's own `state`.
//! * Carry out the actions of one input in order. Actions that ask for a response (`Read…`,
//!   `Attach`, `Allocate`) come last, and the response is the next input. That to
//!   [`backend::Action::ReadFrontend`] may come later, after other inputs.
//!
//! The crate `vif-shell` is that shell.

pub mod backend;
mod config;
mod features;
pub mod frontend;
mod hotplug;
mod key_set;
pub mod keys;
mod limits;
mod rate;
mod state;
mod vif;

pub use config::{EventPorts, FrontendConfig, Offer, QueueConfig, Returns};
pub use features::Features;
pub use hotplug::Hotplug;
pub use key_set::KeySet;
pub use keys::{BadKeys, KeyChange, Keys, MIRROR as MIRROR_KEY};
pub use limits::{FloodWish, LimitName, VifLimits};
pub use rate::{NotARate, Rate};
pub use state::XenbusState;
pub use vif::{Device, Vif};
