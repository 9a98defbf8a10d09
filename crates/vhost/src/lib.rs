//! The vhost-user session of both ends: messages in, actions out.
//!
//! A front-end, such as QEMU, has a guest with virtio queues and passes them to a back-end over a
//! Unix socket. Nothing here does I/O, blocks or reads a clock: an [`Inbox`] assembles messages
//! from the bytes of a socket, however they were split, and [`Backend`] and [`Frontend`] turn
//! messages into actions. Only this crate encodes and decodes the protocol's requests. All state
//! that a peer can cause is bounded, and a protocol violation is a [`Fault`], after which the
//! connection must be closed.
//!
//! rust-vmm's `vhost` (0.18.0) was tried behind Debian 12's QEMU 7.2, with `mq=on`:
//! 1. QEMU enables rings before it says which features are used, 18 times while a guest boots and
//!    twice after a reconnection. That crate refuses this, as the protocol's text suggests: after a
//!    reconnection the first pair of queues stayed dead. Here a pair runs while it has everything
//!    that it needs, in whatever order.
//! 2. It reads a message with a call that blocks until the whole message has arrived.
//! 3. It has no `NET_SET_MTU`, `SEND_RARP`, `SET_STATUS` or `GET_STATUS`.
//!
//! Its front-end is a test oracle (`crates/vhost-shell/tests/shell/oracle.rs`): it sends byte for
//! byte the messages of ours, and our back-end serves it. Postcopy is refused: it needs a
//! userfaultfd, and DPDK calls its own implementation experimental.
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
