//! The vhost-user session, of both ends: messages in, actions out.
//!
//! A front-end, such as QEMU, has a guest with virtio queues and hands them to a back-end over a
//! Unix socket. Nothing here does I/O, blocks or reads a clock: an [`Inbox`] makes messages of what
//! was read from the socket, however it was cut, and [`Backend`] and [`Frontend`] make actions of
//! messages. This crate is the only place that spells the protocol's requests. What a peer can
//! make it keep has a bound, and what a peer does against the protocol is a [`Fault`], after which
//! its connection is to be closed.
//!
//! Read [`backend`] first.

pub mod backend;
mod fault;
pub mod frontend;
mod inbox;
mod memory;
mod offered;
pub mod request;
mod ring;

pub use backend::Backend;
pub use fault::{Fault, Name};
pub use frontend::Frontend;
pub use inbox::{Inbox, Message};
pub use memory::{Region, RegionKey, TakenBack};
pub use request::{Area, Request};
pub use ring::{Addresses, Base, PairPlan, RingPlan};

/// Entries of the longest ring.
pub const RING_SIZE_MAX: u32 = 32768;
