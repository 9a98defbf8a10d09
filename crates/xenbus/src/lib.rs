//! The xenbus handshake: how the two ends of a vif connect and disconnect.
//!
//! Both ends are state machines without I/O or clock: [`backend::Handshake`] and
//! [`frontend::Handshake`] take inputs and return actions, which a shell carries out on a real or
//! an emulated XenStore. This crate is also the only one that names XenStore keys and parses their
//! values; start with [`keys`].
//!
//! # The shell's part
//!
//! * Watch the other end's `state` node, and feed its *current* value at every event. Events may
//!   be merged or repeated. If the node is missing, feed [`XenbusState::Unknown`].
//! * As a backend, also watch the nodes that the toolstack writes in the backend's own directory:
//!   `online`, `hotplug-status`, and the backend's own `state`.
//! * Carry out the actions of one input in order. Actions with a result (`Read…`, `Attach`,
//!   `Allocate`) come last, and the result is the next input. The result of
//!   [`backend::Action::ReadFrontend`] may come later, after other inputs.
//!
//! The crate `vif-shell` is such a shell.
//!
//! The crate needs a heap, but no standard library.
//!
//! # Example
//!
//! A frontend's first steps, with a shell that has every result available:
//!
//! ```
//! use ringway_datapath::OffloadCaps;
//! use ringway_wire::{EvtchnPort, GrantRef};
//! use ringway_xenbus::frontend::{Action, Handshake, Input, Preferences, QueueCount};
//! use ringway_xenbus::{EventPorts, Keys, QueueConfig, XenbusState};
//!
//! let features = OffloadCaps::NONE.into();
//! let preferences = Preferences { queues: QueueCount::AtMost(4), features };
//! let mut handshake = Handshake::new(preferences);
//! let (own, peer) = (XenbusState::Unknown, XenbusState::InitWait);
//! let mut actions = handshake.handle(Input::Start { own, peer });
//! assert_eq!(actions.pop(), Some(Action::ReadBackend), "what it waits for comes last");
//!
//! let offer = [("state", "2"), ("feature-rx-copy", "1"), ("multi-queue-max-queues", "1")];
//! let offer = offer.map(|(key, value)| (key.to_owned(), value.to_owned()));
//! let keys = Keys::new("backend/vif/7/0", offer);
//! let mut actions = handshake.handle(Input::BackendKeys(keys));
//! let Some(Action::Allocate(wanted)) = actions.pop() else { panic!("{actions:?}") };
//! assert_eq!(wanted.queues, 1, "more are not offered");
//!
//! let queue = QueueConfig {
//!     tx_ring_ref: GrantRef(8),
//!     rx_ring_ref: GrantRef(9),
//!     events: EventPorts::Single(EvtchnPort(5)),
//! };
//! let actions = handshake.handle(Input::Allocated(Ok(vec![queue].into())));
//! let [Action::Write(_, Some(XenbusState::Connected))] = &actions[..] else {
//!     panic!("rings, events and the state, in one transaction")
//! };
//! ```

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod backend;
mod config;
mod features;
pub mod frontend;
mod hotplug;
mod key_set;
pub mod keys;
pub mod limits;
mod line_vlans;
mod offload_wish;
mod place;
mod rate;
pub mod rules;
mod state;
mod stopped;
mod vif;

pub use config::{
    ControlConfig, EventPorts, FrontendConfig, Offer, Offered, QueueConfig, Reconnects,
};
pub use features::Features;
pub use hotplug::Hotplug;
pub use key_set::KeySet;
pub use keys::{
    BadKeys, KeyChange, Keys, MAX_QUEUES_WANTED as MAX_QUEUES_KEY, MIRROR as MIRROR_KEY,
};
pub use limits::{FloodWish, LIMITS, Limit, VifLimits};
pub use offload_wish::OffloadWish;
pub use rate::{NotARate, Rate, bits_per_second};
pub use rules::{RULES, Rule};
pub use state::XenbusState;
pub use vif::{Device, Vif};
