//! The driver's half of a split queue.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_wire::virtio::{
    Desc, UsedElem, VRING_AVAIL_F_NO_INTERRUPT, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT,
    VRING_USED_F_NO_NOTIFY, avail, used,
};

use super::{avail_at, desc_at, used_at};
use crate::outstanding::Outstanding;
use crate::{
    Access, Buffer, Notify, QueueAreas, QueueMemory, QueueOptions, Used, UsedFault, Waiting,
    crosses,
};

/// Makes chains available and takes them back once they are used.
#[derive(Debug)]
pub struct SplitDriver<M = SharedPages> {
    areas: QueueAreas<M>,
    options: QueueOptions,
    access: Access,
    /// Descriptors that no chain uses, in the order in which they were freed.
    free: VecDeque<u16>,
    outstanding: Outstanding,
    avail_pvt: u16,
    avail_published: u16,
    used_seen: u16,
    next_used: u16,
    is_polling: bool,
}

impl<M: QueueMemory> SplitDriver<M> {
    /// Creates a queue whose indices begin at `start`, which must also be the device's base.
    pub fn new(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        start: u16,
    ) -> SplitDriver<M> {
        let size = areas.size;
        areas.driver.store(avail::FLAGS, 0, Ordering::Relaxed);
        areas.driver.store(avail::used_event(usize::from(size)), start, Ordering::Relaxed);
        areas.device.store(used::FLAGS, 0, Ordering::Relaxed);
        areas.device.store(used::avail_event(usize::from(size)), start, Ordering::Relaxed);
        areas.device.store(used::IDX, start, Ordering::Relaxed);
        areas.driver.store(avail::IDX, start, Ordering::Release);
        SplitDriver {
            areas,
            options,
            access,
            free: (0..size).collect(),
            outstanding: Outstanding::new(size, options.in_order),
            avail_pvt: start,
            avail_published: start,
            used_seen: start,
            next_used: start,
            is_polling: false,
        }
    }

    /// Free descriptors.
    #[inline]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Makes a chain of buffers, and returns the number by which the device returns it.
    ///
    /// # Panics
    /// If there are no buffers, or more than there are free descriptors.
    #[inline]
    pub fn push(&mut self, buffers: &[Buffer]) -> u16 {
        let count = buffers.len();
        assert!((1..=self.free.len()).contains(&count), "a chain for a queue that is full");
        let head = self.free[0];
        let mut room = 0;
        for (number, buffer) in buffers.iter().enumerate() {
            let index = self.free.pop_front().expect("the line above counted");
            let (next, more) = match number + 1 < count {
                true => (self.free[0], VRING_DESC_F_NEXT),
                false => (0, 0),
            };
            let flags = self.access.flag() | more;
            let desc = Desc { addr: buffer.address, len: buffer.len, flags, next };
            self.areas.descriptors.write(desc_at(index), desc);
            room += u64::from(buffer.len);
            self.outstanding.add_slot(head, index);
        }
        self.make_available(head, room);
        head
    }

    /// Makes a chain of an indirect table that the caller has written, whose buffers have `room`
    /// bytes.
    ///
    /// # Panics
    /// If no descriptor is free.
    pub fn push_table(&mut self, table: Buffer, room: u64) -> u16 {
        let head = self.free.pop_front().expect("a chain for a queue that is full");
        let flags = VRING_DESC_F_INDIRECT;
        let desc = Desc { addr: table.address, len: table.len, flags, next: 0 };
        self.areas.descriptors.write(desc_at(head), desc);
        self.outstanding.add_slot(head, head);
        self.make_available(head, room);
        head
    }

    #[inline]
    fn make_available(&mut self, head: u16, room: u64) {
        let room = if self.access == Access::Writable { room } else { 0 };
        self.outstanding.begin(head, room);
        let entry = avail_at(self.avail_pvt, self.areas.size);
        self.areas.driver.store(entry, head, Ordering::Relaxed);
        self.avail_pvt = self.avail_pvt.wrapping_add(1);
    }

    /// Makes the chains visible to the device.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        let (old, new) = (self.avail_published, self.avail_pvt);
        if old == new {
            return Notify::None;
        }
        self.avail_published = new;
        // Release: orders our writes of entries and descriptors before the index.
        self.areas.driver.store(avail::IDX, new, Ordering::Release);
        // As in the device's `publish`.
        self.areas.driver.fence();
        let is_wanted = if self.options.event_idx {
            let event = used::avail_event(usize::from(self.areas.size));
            crosses(self.areas.device.load(event, Ordering::Relaxed), old, new)
        } else {
            let flags = self.areas.device.load(used::FLAGS, Ordering::Relaxed);
            flags & VRING_USED_F_NO_NOTIFY == 0
        };
        if is_wanted { Notify::Peer } else { Notify::None }
    }

    /// Reads the device's progress: once per batch.
    ///
    /// # Errors
    /// [`UsedFault::RanAhead`].
    #[inline]
    pub fn poll(&mut self) -> Result<(), UsedFault> {
        // Acquire: orders this load before our reads of the entries and buffers it covers.
        let produced = self.areas.device.load(used::IDX, Ordering::Acquire);
        let ahead = produced.wrapping_sub(self.next_used);
        let outstanding = self.avail_published.wrapping_sub(self.next_used);
        if ahead > outstanding {
            return Err(UsedFault::RanAhead { produced, ahead, outstanding });
        }
        self.used_seen = produced;
        if !self.options.event_idx && !self.is_polling && ahead > 0 {
            self.areas.driver.store(avail::FLAGS, VRING_AVAIL_F_NO_INTERRUPT, Ordering::Relaxed);
            self.is_polling = true;
        }
        Ok(())
    }

    /// Takes back the next of the chains that the last poll found.
    ///
    /// # Errors
    /// [`UsedFault`].
    #[inline]
    pub fn take(&mut self) -> Result<Option<Used>, UsedFault> {
        if !self.outstanding.has_more_completed() {
            if self.next_used == self.used_seen {
                return Ok(None);
            }
            let elem = used_at(self.next_used, self.areas.size);
            let UsedElem { id, len } = self.areas.device.read(elem);
            self.outstanding.record_used(id, len, self.used_seen.wrapping_sub(self.next_used))?;
        }
        let Some((used, slots)) = self.outstanding.next_completed() else { return Ok(None) };
        self.outstanding.give_back(used.id, slots, &mut self.free);
        self.next_used = self.next_used.wrapping_add(1);
        Ok(Some(used))
    }

    /// Requests a call when a chain is used, and polls once more.
    pub fn arm(&mut self) -> Waiting {
        if self.options.event_idx {
            let event = avail::used_event(usize::from(self.areas.size));
            self.areas.driver.store(event, self.next_used, Ordering::Relaxed);
        } else if self.is_polling {
            self.areas.driver.store(avail::FLAGS, 0, Ordering::Relaxed);
            self.is_polling = false;
        }
        // Orders the request before the load of the index; see the device's `publish`.
        self.areas.driver.fence();
        let produced = self.areas.device.load(used::IDX, Ordering::Relaxed);
        if produced == self.next_used { Waiting::Idle } else { Waiting::Ready }
    }
}
