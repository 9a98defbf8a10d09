//! Packed queues: one ring of descriptors without indices. Two bits in each descriptor say whether
//! it is available or used; their meaning inverts with every round.

mod device;
mod driver;
mod inflight;

pub use device::{PackedDevice, PackedPosition};
pub use driver::PackedDriver;

use std::sync::atomic::Ordering;

use ringway_wire::virtio::{
    PackedDesc, RING_EVENT_FLAGS_DESC, RING_EVENT_FLAGS_DISABLE, RING_EVENT_FLAGS_ENABLE,
    VRING_PACKED_DESC_F_AVAIL, VRING_PACKED_DESC_F_USED, event,
};

use crate::chain::Entry;
use crate::{Notify, QueueMemory, crosses};

/// A position in the ring, and the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    index: u16,
    /// The wrap counter: true in the first round, false in the second, and so on.
    wrap: bool,
}

impl Position {
    const START: Position = Position { index: 0, wrap: true };

    /// From the 16-bit format of messages and event areas.
    fn from_bits(bits: u16) -> Position {
        Position { index: bits & !WRAP_BIT, wrap: bits & WRAP_BIT != 0 }
    }

    fn bits(self) -> u16 {
        self.index | if self.wrap { WRAP_BIT } else { 0 }
    }

    #[inline]
    fn advance(&mut self, slots: u16, size: u16) {
        // Both are at most 2^15, so the sum fits.
        let next = self.index + slots;
        (self.index, self.wrap) =
            if next >= size { (next - size, !self.wrap) } else { (next, self.wrap) };
    }

    /// The flags of an available descriptor.
    #[inline]
    fn available(self) -> u16 {
        if self.wrap { VRING_PACKED_DESC_F_AVAIL } else { VRING_PACKED_DESC_F_USED }
    }

    /// The flags of a used descriptor.
    #[inline]
    fn used(self) -> u16 {
        if self.wrap { ROUND_FLAGS } else { 0 }
    }

    #[inline]
    fn is_available(self, flags: u16) -> bool {
        flags & ROUND_FLAGS == self.available()
    }

    #[inline]
    fn is_used(self, flags: u16) -> bool {
        flags & ROUND_FLAGS == self.used()
    }
}

const WRAP_BIT: u16 = 1 << 15;
const ROUND_FLAGS: u16 = VRING_PACKED_DESC_F_AVAIL | VRING_PACKED_DESC_F_USED;

/// Byte offset of a descriptor in its ring.
#[inline]
fn desc_at(index: u16) -> usize {
    usize::from(index) * size_of::<PackedDesc>()
}

/// Byte offset of a descriptor's flags.
#[inline]
fn flags_at(index: u16) -> usize {
    desc_at(index) + std::mem::offset_of!(PackedDesc, flags)
}

#[inline]
fn entry_of(desc: PackedDesc) -> Entry {
    Entry { address: desc.addr, len: desc.len, flags: desc.flags }
}

/// Descriptors that were written and not published. The peer reads the ring in order, so it sees
/// none of them until it sees the flags of the first.
#[derive(Debug, Default)]
struct Unpublished {
    first: Option<(u16, u16)>,
    slots: u16,
}

impl Unpublished {
    /// Writes the descriptor's flags, or keeps them back if it is the first of the batch.
    #[inline]
    fn add<M: QueueMemory>(&mut self, ring: &M, index: u16, flags: u16, slots: u16) {
        self.slots += slots;
        match self.first {
            None => self.first = Some((index, flags)),
            // Release: orders our writes of the descriptor, and of the rest of its chain, before
            // its flags.
            Some(_) => ring.store(flags_at(index), flags, Ordering::Release),
        }
    }

    /// Makes the descriptors visible, and returns how many slots they take, if there are any.
    #[inline]
    fn publish<M: QueueMemory>(&mut self, ring: &M) -> Option<u16> {
        let (index, flags) = self.first.take()?;
        // Release: orders all of them, and our writes of buffers, before the flags that the peer
        // reads first.
        ring.store(flags_at(index), flags, Ordering::Release);
        Some(std::mem::take(&mut self.slots))
    }
}

/// Whether the peer's event suppression area asks for an event for one of the `slots` before `end`.
#[inline]
fn notify<M: QueueMemory>(area: &M, size: u16, end: Position, slots: u16) -> Notify {
    // Orders the stores of `publish` before the loads of the event suppression area. The partner is
    // the fence in `request_event`: one side sees the other's store.
    area.fence();
    // Acquire: orders the load of the flags before that of the position they refer to.
    let is_wanted = match area.load(event::FLAGS, Ordering::Acquire) {
        RING_EVENT_FLAGS_ENABLE => true,
        RING_EVENT_FLAGS_DESC => {
            let at = Position::from_bits(area.load(event::OFF_WRAP, Ordering::Relaxed));
            let round = if at.wrap == end.wrap { 0 } else { size };
            crosses(at.index.wrapping_sub(round), end.index.wrapping_sub(slots), end.index)
        }
        _ => false,
    };
    if is_wanted { Notify::Peer } else { Notify::None }
}

/// Requests an event at a position. The caller then polls that position.
fn request_event<M: QueueMemory>(area: &M, at: Position, has_event_idx: bool) {
    let flags = match has_event_idx {
        true => {
            area.store(event::OFF_WRAP, at.bits(), Ordering::Relaxed);
            RING_EVENT_FLAGS_DESC
        }
        false => RING_EVENT_FLAGS_ENABLE,
    };
    // Release: orders the store of the position before the flags.
    area.store(event::FLAGS, flags, Ordering::Release);
    // Orders the request before the read of the ring; see `notify`.
    area.fence();
}

/// Requests no event.
fn suppress_events<M: QueueMemory>(area: &M) {
    area.store(event::FLAGS, RING_EVENT_FLAGS_DISABLE, Ordering::Relaxed);
}
