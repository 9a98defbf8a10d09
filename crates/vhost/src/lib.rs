//! The vhost-user session of both ends: messages in, actions out.
//!
//! A front-end, such as QEMU, has a guest with virtio queues and passes them to a back-end over a
//! Unix socket. Nothing here does I/O, blocks or reads a clock: an [`Inbox`] assembles messages
//! from the bytes of a socket, however they were split, and [`Backend`] and [`Frontend`] turn
//! messages into actions. Only this crate encodes and decodes the protocol's requests. All state
//! that a peer can cause is bounded, and a protocol violation is a [`Fault`], after which the
//! connection must be closed.
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
pub use fault::{Fault, Name, Space};
pub use frontend::Frontend;
pub use inbox::{Inbox, Message};
pub use memory::{Region, RegionKey, RemovedMemory};
pub use request::{Area, Request};
pub use ring::{Addresses, Base, PairPlan, RingPlan, UnsetRing};

/// Entries of the longest ring.
pub const RING_SIZE_MAX: u32 = 32768;
