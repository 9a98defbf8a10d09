//! The device's half of a packed queue.

use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::GuestView;
use ringway_wire::virtio::{PackedDesc, VRING_DESC_F_WRITE};

use super::inflight::PackedInflight;
use super::{Position, Unpublished, desc_at, entry_of, flags_at, notify, wish, wish_none};
use crate::chain::Entry;
use crate::{
    Access, Buffers, Chain, Notify, QueueAreas, QueueFault, QueueMemory, QueueOptions, Waiting,
    Want,
};

/// Takes chains and uses each once, in order.
#[derive(Debug)]
pub struct PackedDevice<M = SharedPages> {
    areas: QueueAreas<M>,
    options: QueueOptions,
    access: Access,
    /// The next descriptor to take.
    next: Position,
    /// Slots from the oldest chain that is not used to there.
    taken: u16,
    /// Where no descriptor was available at the last look.
    end_seen: Position,
    /// Where the next used descriptor goes.
    used: Position,
    unpublished: Unpublished,
    is_polling: bool,
    /// Where it is noted what is under way, if it is.
    inflight: Option<Box<PackedInflight<M>>>,
}

/// Where a device stands, to go back to.
#[derive(Debug, Clone, Copy)]
pub struct PackedMark(Position, u16);

impl<M: QueueMemory> PackedDevice<M> {
    /// Takes over a queue at a place, with the wrap counter in the top bit.
    ///
    /// # Errors
    /// [`QueueFault::RanAhead`] if the queue has no such place.
    pub fn attach(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        base: u16,
    ) -> Result<PackedDevice<M>, QueueFault> {
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

    /// Goes on where an earlier device noted that it was: what it had taken and not used is in the
    /// ring again, and comes first.
    ///
    /// # Errors
    /// [`QueueFault::Inflight`].
    pub(crate) fn resume(&mut self, noted: M, descriptors: u16) -> Result<(), QueueFault> {
        let ring = (&self.areas.descriptors, self.areas.size);
        let (inflight, at) = PackedInflight::open(noted, descriptors, ring, self.used)?;
        (self.next, self.end_seen, self.used) = (at, at, at);
        self.inflight = Some(Box::new(inflight));
        Ok(())
    }

    /// Where a successor would go on, once everything is published.
    pub fn base(&self) -> u16 {
        self.used.bits()
    }

    /// Nothing: each descriptor says itself whether it is available.
    ///
    /// # Errors
    /// None.
    #[inline]
    pub fn look(&mut self) -> Result<(), QueueFault> {
        if !self.is_polling {
            wish_none(&self.areas.device);
            self.is_polling = true;
        }
        Ok(())
    }

    /// Takes the next chain, if one is available.
    ///
    /// # Errors
    /// [`QueueFault`].
    #[inline]
    pub fn take(
        &mut self,
        guest: &GuestView,
        buffers: &mut Buffers,
    ) -> Result<Option<Chain>, QueueFault> {
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
        // A driver that makes available what it has not got back would let us overtake ourselves.
        let ahead = self.taken + chain.slots;
        if ahead > size {
            return Err(QueueFault::RanAhead { produced: self.next.bits(), ahead, size });
        }
        self.taken = ahead;
        self.next.advance(chain.slots, size);
        Ok(Some(chain))
    }

    /// Reads a chain of several descriptors, or one in a table. Each turn adds a buffer, of which
    /// there may be as many as the queue has entries.
    #[inline(never)]
    fn walk(
        &self,
        guest: &GuestView,
        first: PackedDesc,
        buffers: &mut Buffers,
    ) -> Result<Chain, QueueFault> {
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

    /// Descriptors of a table follow each other, and only the flag of the direction counts; where
    /// the device reads, not even that one. DPDK's driver has it set in descriptors that are for
    /// the device to read (22.11, `vring_desc_init_indirect_packed`), and DPDK's device does not
    /// read it.
    fn walk_table(
        &self,
        guest: &GuestView,
        table: Entry,
        buffers: &mut Buffers,
    ) -> Result<(), QueueFault> {
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

    /// Where the next chain is taken.
    #[inline]
    pub fn mark(&self) -> PackedMark {
        PackedMark(self.next, self.taken)
    }

    /// Gives back the chains that were taken since, none of which was used.
    #[inline]
    pub fn go_back(&mut self, mark: PackedMark) {
        (self.next, self.taken) = (mark.0, mark.1);
    }

    /// Uses the oldest chain that was taken and not used, with so many bytes written.
    ///
    /// # Panics
    /// If there is no such chain: a mistake of ours.
    #[inline]
    pub fn push_used(&mut self, chain: Chain, written: u32) {
        self.taken = self.taken.checked_sub(chain.slots).expect("a chain is used that was taken");
        let at = self.used;
        let size = self.areas.size;
        if let Some(inflight) = &mut self.inflight {
            inflight.take((&self.areas.descriptors, size), at, chain.slots);
        }
        let flags = at.used() | if written > 0 { VRING_DESC_F_WRITE } else { 0 };
        // The address is of no meaning in a used descriptor, and the flags come last.
        let place = desc_at(at.index) + std::mem::offset_of!(PackedDesc, len);
        self.areas.descriptors.write(place, written);
        self.areas.descriptors.store(place + size_of::<u32>(), chain.id, Ordering::Relaxed);
        self.unpublished.add(&self.areas.descriptors, at.index, flags, chain.slots);
        self.used.advance(chain.slots, size);
    }

    /// Makes the used chains visible.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        if let Some(inflight) = &mut self.inflight {
            inflight.publishes(self.used);
        }
        let published = self.unpublished.publish(&self.areas.descriptors);
        if let Some(inflight) = &mut self.inflight {
            inflight.published(self.used);
        }
        match published {
            None => Notify::No,
            Some(slots) => notify(&self.areas.driver, self.areas.size, self.used, slots),
        }
    }

    /// Asks for a kick, and looks once more.
    pub fn arm(&mut self, want: Want) -> Waiting {
        let at = match want {
            Want::Any => self.next,
            Want::More => self.end_seen,
        };
        wish(&self.areas.device, at, self.options.event_idx);
        self.is_polling = false;
        let flags = self.areas.descriptors.load(flags_at(at.index), Ordering::Relaxed);
        if at.is_available(flags) { Waiting::Something } else { Waiting::Nothing }
    }
}
