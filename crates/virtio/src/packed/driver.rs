//! The driver's half of a packed queue.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_wire::virtio::{PackedDesc, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, event};

use super::{Position, Unpublished, desc_at, flags_at, notify, request_event, suppress_events};
use crate::outstanding::Outstanding;
use crate::{
    Access, Buffer, Notify, QueueAreas, QueueMemory, QueueOptions, Used, UsedFault, Waiting,
};

/// Makes chains available and takes them back once they are used.
#[derive(Debug)]
pub struct PackedDriver<M = SharedPages> {
    areas: QueueAreas<M>,
    options: QueueOptions,
    access: Access,
    /// Buffer ids that no chain uses.
    free_ids: VecDeque<u16>,
    free: u16,
    outstanding: Outstanding,
    avail: Position,
    unpublished: Unpublished,
    next_used: Position,
    is_polling: bool,
}

impl<M: QueueMemory> PackedDriver<M> {
    /// Creates a queue in zeroed areas.
    pub fn new(areas: QueueAreas<M>, options: QueueOptions, access: Access) -> PackedDriver<M> {
        let size = areas.size;
        for area in [&areas.driver, &areas.device] {
            area.store(event::OFF_WRAP, Position::START.bits(), Ordering::Relaxed);
            area.store(event::FLAGS, 0, Ordering::Relaxed);
        }
        PackedDriver {
            areas,
            options,
            access,
            free_ids: (0..size).collect(),
            free: size,
            outstanding: Outstanding::new(size, options.in_order),
            avail: Position::START,
            unpublished: Unpublished::default(),
            next_used: Position::START,
            is_polling: false,
        }
    }

    /// Free descriptors.
    #[inline]
    pub fn free(&self) -> usize {
        usize::from(self.free)
    }

    /// Makes a chain of buffers, and returns the number by which the device returns it.
    ///
    /// # Panics
    /// If there are no buffers, or more than there are free descriptors.
    #[inline]
    pub fn push(&mut self, buffers: &[Buffer]) -> u16 {
        assert!((1..=self.free()).contains(&buffers.len()), "a chain for a queue that is full");
        let id = self.free_ids.pop_front().expect("there are as many ids as descriptors");
        let slots = u16::try_from(buffers.len()).expect("a queue is small");
        let (head, mut at, mut room) = (self.avail, self.avail, 0);
        let mut head_flags = 0;
        for (number, buffer) in buffers.iter().enumerate() {
            let more = if number + 1 < buffers.len() { VRING_DESC_F_NEXT } else { 0 };
            let flags = self.access.flag() | more | at.available();
            room += u64::from(buffer.len);
            self.write(at, *buffer, id);
            match number {
                0 => head_flags = flags,
                _ => self.areas.descriptors.store(flags_at(at.index), flags, Ordering::Relaxed),
            }
            at.advance(1, self.areas.size);
        }
        self.make_available(id, head, head_flags, slots, room);
        id
    }

    /// Makes a chain of an indirect table that the caller has written, whose buffers have `room`
    /// bytes.
    ///
    /// # Panics
    /// If no descriptor is free.
    pub fn push_table(&mut self, table: Buffer, room: u64) -> u16 {
        assert!(self.free > 0, "a chain for a queue that is full");
        let id = self.free_ids.pop_front().expect("there are as many ids as descriptors");
        let flags = VRING_DESC_F_INDIRECT | self.avail.available();
        self.write(self.avail, table, id);
        self.make_available(id, self.avail, flags, 1, room);
        id
    }

    /// Writes a descriptor except its flags.
    #[inline]
    fn write(&self, at: Position, buffer: Buffer, id: u16) {
        let place = desc_at(at.index);
        self.areas.descriptors.write(place, buffer.address);
        self.areas.descriptors.write(place + 8, buffer.len);
        self.areas.descriptors.store(place + 12, id, Ordering::Relaxed);
    }

    #[inline]
    fn make_available(&mut self, id: u16, head: Position, flags: u16, slots: u16, room: u64) {
        let room = if self.access == Access::Writable { room } else { 0 };
        self.outstanding.add_slots(id, slots);
        self.outstanding.begin(id, room);
        self.unpublished.add(&self.areas.descriptors, head.index, flags, slots);
        self.avail.advance(slots, self.areas.size);
        self.free -= slots;
    }

    /// Makes the chains visible to the device.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        match self.unpublished.publish(&self.areas.descriptors) {
            None => Notify::None,
            Some(slots) => notify(&self.areas.device, self.areas.size, self.avail, slots),
        }
    }

    /// Does nothing: each descriptor says whether it is used.
    ///
    /// # Errors
    /// Never.
    #[inline]
    pub fn poll(&mut self) -> Result<(), UsedFault> {
        if !self.is_polling {
            suppress_events(&self.areas.driver);
            self.is_polling = true;
        }
        Ok(())
    }

    /// Takes back the next chain, if one is used.
    ///
    /// # Errors
    /// [`UsedFault`].
    #[inline]
    pub fn take(&mut self) -> Result<Option<Used>, UsedFault> {
        let size = self.areas.size;
        if !self.outstanding.has_more_completed() {
            let index = self.next_used.index;
            // Acquire: orders this load before our reads of the descriptor and its buffers.
            let flags = self.areas.descriptors.load(flags_at(index), Ordering::Acquire);
            // With nothing outstanding, a used descriptor is one that was already collected, in
            // this round or the previous one.
            if self.free == size || !self.next_used.is_used(flags) {
                return Ok(None);
            }
            let desc: PackedDesc = self.areas.descriptors.read(desc_at(index));
            self.outstanding.record_used(u32::from(desc.id), desc.len, size)?;
        }
        let Some((used, slots)) = self.outstanding.next_completed() else { return Ok(None) };
        self.free_ids.push_back(used.id);
        self.free += slots;
        self.next_used.advance(slots, size);
        Ok(Some(used))
    }

    /// Requests a call when a chain is used, and polls once more.
    pub fn arm(&mut self) -> Waiting {
        request_event(&self.areas.driver, self.next_used, self.options.event_idx);
        self.is_polling = false;
        let flags = self.areas.descriptors.load(flags_at(self.next_used.index), Ordering::Relaxed);
        let is_used = self.free < self.areas.size && self.next_used.is_used(flags);
        if is_used { Waiting::Ready } else { Waiting::Idle }
    }
}
