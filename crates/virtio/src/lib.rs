//! The two halves of a virtqueue, split or packed, without I/O.
//!
//! A *driver* (the guest) makes chains of buffers available; a *device* uses each of them once, in
//! order. [`DeviceHalf`] and [`DriverHalf`] implement the two sides for either layout. Each half
//! keeps its own indices in private memory. From the shared areas it uses only what the peer
//! writes, which it reads once per decision, by value, and checks. A protocol violation ends the
//! queue with a [`QueueFault`] or [`UsedFault`].
//!
//! The rules are those of the Virtual I/O Device specification, version 1.2, sections 2.7 and 2.8.
//! Read `split/device.rs` first; packed queues work the same way with one ring instead of three
//! areas.

mod access;
mod areas;
mod chain;
mod device;
mod driver;
mod fault;
mod inflight;
mod memory;
mod outstanding;
mod packed;
mod split;

pub use access::{Access, READABLE_BYTES_MAX};
pub use areas::{Format, PlaceError, QueueAreas, QueuePlace, area_lens};
pub use chain::{Buffer, Buffers, Chain};
pub use device::{DeviceHalf, DevicePosition};
pub use driver::DriverHalf;
pub use fault::{QueueFault, UsedFault};
pub use inflight::InflightFault;
pub use memory::QueueMemory;
pub use outstanding::Used;
pub use packed::{PackedDevice, PackedDriver, PackedPosition};
pub use split::{Singles, SplitDevice, SplitDriver, SplitPosition};

use ringway_wire::virtio::{
    Features, VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_RING_F_EVENT_IDX,
    VIRTIO_RING_F_INDIRECT_DESC,
};

/// What a device's half gives, or the peer's fault.
pub type Result<T> = std::result::Result<T, QueueFault>;

/// The negotiated options of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// The layout of the queue.
    pub format: Format,
    /// Each side names the entry at which it wants an event.
    pub event_idx: bool,
    /// A descriptor may refer to an indirect table.
    pub indirect: bool,
    /// Chains are used in the order in which they were made available. Our device half always does
    /// so; a driver half with this option accepts one used entry for several chains.
    pub in_order: bool,
}

impl QueueOptions {
    /// The queue options in these features.
    pub fn of(features: Features) -> QueueOptions {
        QueueOptions {
            format: match features.has(VIRTIO_F_RING_PACKED) {
                true => Format::Packed,
                false => Format::Split,
            },
            event_idx: features.has(VIRTIO_RING_F_EVENT_IDX),
            indirect: features.has(VIRTIO_RING_F_INDIRECT_DESC),
            in_order: features.has(VIRTIO_F_IN_ORDER),
        }
    }
}

/// Whether publishing crossed the entry at which the peer wants an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a peer that is not notified sleeps on"]
pub enum Notify {
    /// The peer asked for an event: send one.
    Peer,
    /// The peer is polling, or was notified before.
    None,
}

/// The result of the check after requesting an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a side that sleeps on what has come is not woken for it"]
pub enum Waiting {
    /// Nothing has arrived: an event will come.
    Idle,
    /// Something has arrived, and an event may not come: poll again.
    Ready,
}

/// What a device wants an event for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifyWhen {
    /// Any chain that can be taken.
    Any,
    /// More chains than the last poll found, which were too few.
    More,
}

/// Whether moving from `old` to `new` passes an index at which an event is wanted
/// (`vring_need_event`). Indices run freely.
#[inline]
fn crosses(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
