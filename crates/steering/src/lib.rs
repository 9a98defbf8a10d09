//! Which queue a frame belongs to.
//!
//! All frames of a flow go to one queue, in both directions, so that TCP sees no reordering and one
//! core serves a connection. Two algorithms are known: the default, [`flow_hash`] with
//! [`queue_of`], and [`toeplitz`], which a frontend can select over its control ring ([`control`]).
//! [`placement`] works backwards: it finds streams for given queues. [`balance`] says which flows
//! should leave a queue that has too many.
//!
//! Nothing here keeps state per flow, reads a clock or allocates while frames pass.
//!
//! It needs no standard library, only a heap.
//!
//! # Example
//!
//! ```
//! use ringway_datapath::headers::Transport;
//! use ringway_steering::{FlowKey, FlowTuple, QueueIndex, queue_of};
//!
//! let request = FlowTuple {
//!     src: "192.0.2.1:40000".parse()?,
//!     dst: "192.0.2.2:80".parse()?,
//!     transport: Transport::Tcp,
//! };
//! // A random one, in earnest.
//! let key = FlowKey::new([0x6d5a_56da_255b_0ec2, 0x4167_253d_43a3_8fb0]);
//! let queue = queue_of(Some(request.hash(key)), 4);
//! assert!(queue < QueueIndex(4));
//! let reply = request.reversed();
//! assert_eq!(queue, queue_of(Some(reply.hash(key)), 4), "its replies go there as well");
//! assert_eq!(queue_of(None, 4), QueueIndex::FIRST, "as does what is of no flow: ARP");
//! # Ok::<(), std::net::AddrParseError>(())
//! ```

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod balance;
pub mod control;
mod flow;
pub mod placement;
pub mod toeplitz;

pub use flow::{BadFlowKey, FlowKey, FlowTuple, flow_hash, flow_hash_parsed};

use core::fmt;

/// A queue of a port, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QueueIndex(pub u16);

impl QueueIndex {
    /// The queue of everything that has no flow.
    pub const FIRST: QueueIndex = QueueIndex(0);
}

impl fmt::Display for QueueIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The queue of a frame with this [`flow_hash`], of a port with `queues` queues. The result is
/// less than `queues`, or 0 if that is 0.
///
/// The hash is taken as a fraction of its range, so the cost is one multiplication and each queue
/// gets the same share of all hashes, to 1 in 2^16.
#[inline]
pub fn queue_of(flow: Option<u32>, queues: u16) -> QueueIndex {
    let Some(hash) = flow else { return QueueIndex::FIRST };
    let scaled = (u64::from(hash) * u64::from(queues)) >> 32;
    QueueIndex(u16::try_from(scaled).unwrap_or_default())
}
