//! The two halves of a virtqueue, split or packed, without I/O.
//!
//! A *driver* (the guest) makes chains of buffers available; a *device* uses each of them once, in
//! order. [`DeviceHalf`] and [`DriverHalf`] are the two, over either layout. Each keeps its own
//! indices in private memory and believes of the shared areas only what the peer has to write,
//! which it reads once per decision, by value, and checks. What no honest peer does ends the queue
//! with a [`QueueFault`] or [`UsedFault`].
//!
//! The rules are those of the Virtual I/O Device specification, version 1.2, sections 2.7 and 2.8.
//! Read `split/device.rs` first; a packed queue does the same with one ring instead of three areas.

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
pub use device::{DeviceHalf, DeviceMark};
pub use driver::DriverHalf;
pub use fault::{QueueFault, UsedFault};
pub use inflight::InflightFault;
pub use memory::QueueMemory;
pub use outstanding::Used;
pub use packed::{PackedDevice, PackedDriver, PackedMark};
pub use split::{SplitDevice, SplitDriver, SplitMark};

use ringway_wire::virtio::{
    Features, VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_RING_F_EVENT_IDX,
    VIRTIO_RING_F_INDIRECT_DESC,
};

/// What both ends agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// How the queue is laid out.
    pub format: Format,
    /// Each side says at which entry it wants an event.
    pub event_idx: bool,
    /// A descriptor may stand for a table.
    pub indirect: bool,
    /// Chains are used in the order in which they were made available. Our device half always does;
    /// a driver half then bears one entry for several chains.
    pub in_order: bool,
}

impl QueueOptions {
    /// What these features say of queues.
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
    /// The peer polls, or was notified before.
    No,
}

/// What a side finds when it has asked for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a side that sleeps on what has come is not woken for it"]
pub enum Waiting {
    /// Nothing has come: an event will.
    Nothing,
    /// Something came meanwhile, and no event need come: look again.
    Something,
}

/// What is worth an event for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// A chain that can be taken.
    Any,
    /// One more than were found at the last look: those were too few.
    More,
}

/// Whether going from `old` to `new` passes an index at which an event is wanted
/// (`vring_need_event`). Indices run freely.
#[inline]
fn crosses(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
