//! The device's half of a packed queue.

use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::GuestView;
use ringway_wire::virtio::{PackedDesc, VRING_DESC_F_WRITE};

use super::inflight::PackedInflight;
use super::{
    Position, Unpublished, desc_at, entry_of, flags_at, notify, request_event, suppress_events,
};
use crate::chain::Entry;
use crate::{
    Access, Buffers, Chain, Notify, NotifyWhen, QueueAreas, QueueFault, QueueMemory, QueueOptions,
    Result, Waiting,
};

/// Takes chains and uses each one once, in order.
#[derive(Debug)]
pub struct PackedDevice<M = SharedPages> {
    areas: QueueAreas<M>,
    options: QueueOptions,
    access: Access,
    /// The next descriptor to take.
    next: Position,
    /// Slots from the oldest chain that is not used up to `next`.
    taken: u16,
    /// Where the last poll found no available descriptor.
    end_seen: Position,
    /// The position of the next used descriptor.
    used: Position,
    unpublished: Unpublished,
    is_polling: bool,
    /// The record of chains in flight, if the front-end wants one.
    inflight: Option<Box<PackedInflight<M>>>,
}

/// A position of the device to return to.
#[derive(Debug, Clone, Copy)]
pub struct PackedPosition(Position, u16);

impl<M: QueueMemory> PackedDevice<M> {
    /// Attaches to a queue at a position whose top bit is the wrap counter.
    ///
    /// # Errors
    /// [`QueueFault::RanAhead`] if the queue has no such position.
    pub fn attach(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        base: u16,
    ) -> Result<PackedDevice<M>> {
        let (at, size) = (Position::from_bits(base), areas.size);
        if at.index >= size {
            return Err(QueueFault::RanAhead { produced: base, ahead: at.index, size });
        }
        Ok(PackedDevice {
            areas,
            options,
            access,
            next: at,
            taken: 0,
            end_seen: at,
            used: at,
            unpublished: Unpublished::default(),
            is_polling: false,
            inflight: None,
        })
    }

    /// Continues where an earlier device recorded its position. Chains that it took and did not use
    /// are written back to the ring and come first.
    ///
    /// # Errors
    /// [`QueueFault::Inflight`].
    pub(crate) fn attach_with_inflight(&mut self, noted: M, descriptors: u16) -> Result<()> {
        let ring = (&self.areas.descriptors, self.areas.size);
        let (inflight, at) = PackedInflight::open(noted, descriptors, ring, self.used)?;
        (self.next, self.end_seen, self.used) = (at, at, at);
        self.inflight = Some(Box::new(inflight));
        Ok(())
    }

    /// The position for a successor, once everything is published.
    pub fn base(&self) -> u16 {
        self.used.bits()
    }

    /// Does nothing: each descriptor says whether it is available.
    ///
    /// # Errors
    /// Never.
    #[inline]
    pub fn poll(&mut self) -> Result<()> {
        if !self.is_polling {
            suppress_events(&self.areas.device);
            self.is_polling = true;
        }
        Ok(())
    }

    /// Takes the next chain, if one is available.
    ///
    /// # Errors
    /// [`QueueFault`].
    #[inline]
    pub fn take(&mut self, guest: &GuestView, buffers: &mut Buffers) -> Result<Option<Chain>> {
        let head = self.next.index;
        // Acquire: orders this load before our reads of the chain that it makes available.
        let flags = self.areas.descriptors.load(flags_at(head), Ordering::Acquire);
        if !self.next.is_available(flags) {
            self.end_seen = self.next;
            return Ok(None);
        }
        buffers.clear();
        let desc: PackedDesc = self.areas.descriptors.read(desc_at(head));
        let entry = Entry { flags, ..entry_of(desc) };
        let chain = if entry.has_next() || entry.is_indirect() {
            self.walk(guest, PackedDesc { flags, ..desc }, buffers)?
        } else {
            buffers.push(head, entry, self.access)?;
            Chain { id: desc.id, slots: 1 }
        };
        let size = self.areas.size;
        if chain.id >= size {
            return Err(QueueFault::IdOutOfRange { id: chain.id, size });
        }
        // A driver that makes a chain available before it got that chain back would let `next`
        // overtake `used`.
        let ahead = self.taken + chain.slots;
        if ahead > size {
            return Err(QueueFault::RanAhead { produced: self.next.bits(), ahead, size });
        }
        self.taken = ahead;
        self.next.advance(chain.slots, size);
        Ok(Some(chain))
    }

    /// Reads a chain of several descriptors, or one in an indirect table. Each iteration adds a
    /// buffer; the number of buffers is limited to the entries of the queue.
    #[inline(never)]
    fn walk(&self, guest: &GuestView, first: PackedDesc, buffers: &mut Buffers) -> Result<Chain> {
        let (mut at, mut desc, mut slots) = (self.next, first, 1);
        loop {
            let entry = entry_of(desc);
            if entry.is_indirect() {
                if !self.options.indirect || entry.has_next() || slots > 1 {
                    return Err(QueueFault::BadIndirect { index: at.index, flags: entry.flags });
                }
                self.walk_table(guest, entry, buffers)?;
                return Ok(Chain { id: desc.id, slots });
            }
            buffers.push(at.index, entry, self.access)?;
            if !entry.has_next() {
                return Ok(Chain { id: desc.id, slots });
            }
            at.advance(1, self.areas.size);
            slots += 1;
            desc = self.areas.descriptors.read(desc_at(at.index));
        }
    }

    /// Descriptors of an indirect table follow each other, and only the direction flag counts; for
    /// readable chains not even that. DPDK's driver sets it in descriptors for the device to read
    /// (22.11, `vring_desc_init_indirect_packed`), and DPDK's device does not read it.
    fn walk_table(&self, guest: &GuestView, table: Entry, buffers: &mut Buffers) -> Result<()> {
        for index in 0..buffers.table_len(table)? {
            let entry = entry_of(table.of_table::<PackedDesc>(guest, index)?);
            if entry.is_indirect() {
                return Err(QueueFault::BadIndirect { index, flags: entry.flags });
            }
            let flags = match self.access {
                Access::Readable => entry.flags & !VRING_DESC_F_WRITE,
                Access::Writable => entry.flags,
            };
            buffers.push(index, Entry { flags, ..entry }, self.access)?;
        }
        Ok(())
    }

    /// The position of the next chain to take.
    #[inline]
    pub fn position(&self) -> PackedPosition {
        PackedPosition(self.next, self.taken)
    }

    /// Returns the chains taken since that position; none of them may have been used.
    #[inline]
    pub fn rewind(&mut self, position: PackedPosition) {
        (self.next, self.taken) = (position.0, position.1);
    }

    /// Uses the oldest chain that was taken and not used, with `written` bytes written.
    ///
    /// # Panics
    /// If there is no such chain, which is an error of the caller.
    #[inline]
    pub fn push_used(&mut self, chain: Chain, written: u32) {
        self.taken = self.taken.checked_sub(chain.slots).expect("a chain is used that was taken");
        let at = self.used;
        let size = self.areas.size;
        if let Some(inflight) = &mut self.inflight {
            inflight.take((&self.areas.descriptors, size), at, chain.slots);
        }
        let flags = at.used() | if written > 0 { VRING_DESC_F_WRITE } else { 0 };
        // The address has no meaning in a used descriptor, and the flags are written last.
        let place = desc_at(at.index) + std::mem::offset_of!(PackedDesc, len);
        self.areas.descriptors.write(place, written);
        self.areas.descriptors.store(place + size_of::<u32>(), chain.id, Ordering::Relaxed);
        self.unpublished.add(&self.areas.descriptors, at.index, flags, chain.slots);
        self.used.advance(chain.slots, size);
    }

    /// Makes the used chains visible to the driver.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        if let Some(inflight) = &mut self.inflight {
            inflight.begin_publish(self.used);
        }
        let published = self.unpublished.publish(&self.areas.descriptors);
        if let Some(inflight) = &mut self.inflight {
            inflight.end_publish(self.used);
        }
        match published {
            None => Notify::None,
            Some(slots) => notify(&self.areas.driver, self.areas.size, self.used, slots),
        }
    }

    /// Whether the driver has never made a chain available.
    pub fn is_blank(&self) -> bool {
        let first: PackedDesc = self.areas.descriptors.read(0);
        self.used == Position::START && first == PackedDesc::default()
    }

    /// Requests a kick, and polls once more.
    pub fn arm(&mut self, when: NotifyWhen) -> Waiting {
        let at = match when {
            NotifyWhen::Any => self.next,
            NotifyWhen::More => self.end_seen,
        };
        request_event(&self.areas.device, at, self.options.event_idx);
        self.is_polling = false;
        let flags = self.areas.descriptors.load(flags_at(at.index), Ordering::Relaxed);
        if at.is_available(flags) { Waiting::Ready } else { Waiting::Idle }
    }
}
