//! Records which chains of a packed queue are in flight, in memory that outlives the device: one
//! queue's part of the area of `VHOST_USER_SET_INFLIGHT_FD`.
//!
//! A used descriptor overwrites an available one, and our device writes all of a batch except the
//! flags of its first descriptor before it publishes the batch. So the device copies each chain
//! into the area before it uses it. After a device is killed, its successor writes the copies back,
//! and the ring is as if none of those chains had been taken. The driver cannot tell, because it
//! reads only the descriptor that is used next. The position of that descriptor is recorded in the
//! area and nowhere else.
//!
//! The stores follow the specification's order, so that any device can continue. A successor that
//! starts after the process has ended never sees a later store without the earlier ones.
//!
//! The peer can write the area at any moment. It is read once, when a queue is taken over.

use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_wire::vhost_user::inflight_packed as at;
use ringway_wire::virtio::PackedDesc;

use super::{Position, ROUND_FLAGS, desc_at, flags_at};
use crate::{InflightFault, QueueMemory};

/// One queue's part of the area.
#[derive(Debug)]
pub(super) struct PackedInflight<M = SharedPages> {
    area: M,
    /// For each entry of the area, the next one in the free list. This private copy is the only one
    /// trusted.
    next: Box<[u16]>,
    /// The first free entry.
    free: u16,
    /// Chains copied so far, which numbers them in order.
    count: u64,
    /// The first and last entry of each chain that was used and is not published.
    batch: Vec<(u16, u16)>,
}

impl<M: QueueMemory> PackedInflight<M> {
    /// Attaches to the area. Chains in flight are written back to the ring. Returns the position to
    /// continue from, which is `base` if nothing was recorded before. The area has `entries`
    /// entries, and the ring `size`.
    ///
    /// # Errors
    /// [`InflightFault`].
    pub(super) fn open(
        area: M,
        entries: u16,
        (ring, size): (&M, u16),
        base: Position,
    ) -> Result<(PackedInflight<M>, Position), InflightFault> {
        if entries < size {
            return Err(InflightFault::Size { found: entries, expected: size });
        }
        let inflight = PackedInflight {
            area,
            next: (1..=entries).collect(),
            free: 0,
            count: 0,
            batch: Vec::with_capacity(usize::from(size)),
        };
        match inflight.area.load(at::VERSION, Ordering::Relaxed) {
            0 => {
                inflight.area.store(at::DESC_NUM, entries, Ordering::Relaxed);
                inflight.record_used(base);
                inflight.record_old(base);
                inflight.free_all();
                inflight.area.store(at::VERSION, VERSION, Ordering::Release);
                return Ok((inflight, base));
            }
            VERSION => {}
            found => return Err(InflightFault::Version { found }),
        }
        let found = inflight.area.load(at::DESC_NUM, Ordering::Relaxed);
        if found != entries {
            return Err(InflightFault::Size { found, expected: entries });
        }
        let place = inflight.recover_position(ring, size)?;
        let heads = inflight.restore((ring, size), place)?;
        // Clear the marks from the last to the first, so that the remaining ones are always a
        // prefix of what the ring holds from there on.
        for head in heads.into_iter().rev() {
            inflight.area.write(entry_at(head) + at::INFLIGHT, 0_u8);
        }
        inflight.free_all();
        Ok((inflight, place))
    }

    /// The position to continue from. The device may have ended after it published the last batch
    /// and before it cleared the marks, or after it recorded the batch as published and before it
    /// published it. This device may end here, too, and its successor must reach the same result.
    fn recover_position(&self, ring: &M, size: u16) -> Result<Position, InflightFault> {
        let place = |index: usize, wrap: usize| {
            let found = Position {
                index: self.area.load(index, Ordering::Relaxed),
                wrap: self.area.read::<u8>(wrap) != 0,
            };
            match found.index < size {
                true => Ok(found),
                false => Err(InflightFault::Descriptor { index: found.index, size }),
            }
        };
        let used = place(at::USED_IDX, at::USED_WRAP)?;
        let old = place(at::OLD_USED_IDX, at::OLD_USED_WRAP)?;
        let free = self.area.load(at::FREE_HEAD, Ordering::Relaxed);
        let old_free = self.area.load(at::OLD_FREE_HEAD, Ordering::Relaxed);
        let flags = ring.load(flags_at(old.index), Ordering::Relaxed);
        let batch = self.entries_before(free, old_free);
        // If no chain of the batch is marked, only the last records of publishing it are missing.
        let is_published = used != old
            && (!old.is_available(flags) || !batch.iter().any(|it| self.is_marked(*it)));
        if is_published {
            // Complete the record. A position that is only half written is never used.
            self.unmark(&batch);
            self.area.store(at::OLD_FREE_HEAD, free, Ordering::Relaxed);
            self.record_old(used);
            return Ok(used);
        }
        self.record_used(old);
        self.area.store(at::FREE_HEAD, old_free, Ordering::Relaxed);
        // Clears a chain whose record is incomplete.
        self.unmark(&self.entries_before(old_free, u16::MAX));
        Ok(old)
    }

    /// The entries of a list before `end`, as far as they are valid.
    fn entries_before(&self, mut index: u16, end: u16) -> Vec<u16> {
        let mut listed = Vec::new();
        while index != end && usize::from(index) < self.next.len() {
            if listed.len() == self.next.len() {
                break;
            }
            listed.push(index);
            index = self.area.load(entry_at(index) + at::NEXT, Ordering::Relaxed);
        }
        listed
    }

    fn is_marked(&self, index: u16) -> bool {
        self.area.read::<u8>(entry_at(index) + at::INFLIGHT) == 1
    }

    fn unmark(&self, entries: &[u16]) {
        for index in entries {
            self.area.write(entry_at(*index) + at::INFLIGHT, 0_u8);
        }
    }

    /// Writes all chains in flight into the ring, in the order in which they were taken, and
    /// returns their first entries.
    fn restore(
        &self,
        (ring, size): (&M, u16),
        mut place: Position,
    ) -> Result<Vec<u16>, InflightFault> {
        let mut heads = Vec::new();
        for (index, _) in (0..).zip(&self.next) {
            if self.is_marked(index) {
                heads.push((self.area.read::<u64>(entry_at(index) + at::COUNTER), index));
            }
        }
        heads.sort_unstable();
        let slots = heads.iter().map(|(_, head)| {
            usize::from(self.area.load(entry_at(*head) + at::NUM, Ordering::Relaxed))
        });
        let slots: Vec<usize> = slots.collect();
        let found = slots.iter().sum();
        if found > usize::from(size) {
            return Err(InflightFault::TooLong { found, size });
        }
        for ((_, head), slots) in heads.iter().zip(slots) {
            let mut index = *head;
            for _ in 0..slots {
                if usize::from(index) >= self.next.len() {
                    return Err(InflightFault::Descriptor { index, size });
                }
                let desc: PackedDesc = self.read(index);
                let flags = desc.flags & !ROUND_FLAGS | place.available();
                ring.write(desc_at(place.index), PackedDesc { flags, ..desc });
                place.advance(1, size);
                index = self.area.load(entry_at(index) + at::NEXT, Ordering::Relaxed);
            }
        }
        Ok(heads.into_iter().map(|(_, head)| head).collect())
    }

    /// Lists all entries as free: no chain in flight, and no batch.
    fn free_all(&self) {
        self.area.store(at::FREE_HEAD, 0, Ordering::Relaxed);
        self.area.store(at::OLD_FREE_HEAD, 0, Ordering::Relaxed);
        for (index, next) in (0..).zip(&self.next) {
            self.area.store(entry_at(index) + at::NEXT, *next, Ordering::Relaxed);
        }
    }

    /// Copies a chain of `slots` ring slots from `place` on, before it is used. Only a driver that
    /// makes chains available before it got them back exceeds the entries of the area; the record
    /// is then incomplete, which harms only that driver.
    pub(super) fn take(&mut self, (ring, size): (&M, u16), mut place: Position, slots: u16) {
        let head = self.free;
        if self.count_free(slots) < slots {
            return;
        }
        self.area.store(entry_at(head) + at::NUM, slots, Ordering::Relaxed);
        self.area.write(entry_at(head) + at::COUNTER, self.count);
        self.count += 1;
        let mut last = head;
        for _ in 0..slots {
            last = self.free;
            self.write(last, ring.read(desc_at(place.index)));
            place.advance(1, size);
            self.free = self.next[usize::from(last)];
        }
        self.area.store(entry_at(head) + at::LAST, last, Ordering::Relaxed);
        self.area.write(entry_at(head) + at::INFLIGHT, 1_u8);
        self.area.store(at::FREE_HEAD, self.free, Ordering::Relaxed);
        self.area.store(at::OLD_FREE_HEAD, self.free, Ordering::Relaxed);
        self.batch.push((head, last));
    }

    /// Records that the batch is about to be published, and that the queue then continues at
    /// `place`.
    pub(super) fn begin_publish(&mut self, place: Position) {
        for (head, last) in &self.batch {
            self.area.store(entry_at(*last) + at::NEXT, self.free, Ordering::Relaxed);
            self.next[usize::from(*last)] = self.free;
            self.free = *head;
        }
        self.area.store(at::FREE_HEAD, self.free, Ordering::Relaxed);
        self.record_used(place);
    }

    /// Records that the batch is published.
    pub(super) fn end_publish(&mut self, place: Position) {
        for (head, _) in self.batch.drain(..) {
            self.area.write(entry_at(head) + at::INFLIGHT, 0_u8);
        }
        self.area.store(at::OLD_FREE_HEAD, self.free, Ordering::Relaxed);
        self.record_old(place);
    }

    /// The number of free entries, counted up to `wanted`.
    fn count_free(&self, wanted: u16) -> u16 {
        let (mut index, mut count) = (self.free, 0);
        while count < wanted {
            let Some(next) = self.next.get(usize::from(index)) else { break };
            (index, count) = (*next, count + 1);
        }
        count
    }

    fn record_used(&self, place: Position) {
        self.area.store(at::USED_IDX, place.index, Ordering::Relaxed);
        self.area.write(at::USED_WRAP, u8::from(place.wrap));
    }

    fn record_old(&self, place: Position) {
        self.area.store(at::OLD_USED_IDX, place.index, Ordering::Relaxed);
        self.area.write(at::OLD_USED_WRAP, u8::from(place.wrap));
    }

    fn read(&self, index: u16) -> PackedDesc {
        let entry = entry_at(index);
        PackedDesc {
            addr: self.area.read(entry + at::ADDR),
            len: self.area.read(entry + at::LEN),
            id: self.area.load(entry + at::ID, Ordering::Relaxed),
            flags: self.area.load(entry + at::FLAGS, Ordering::Relaxed),
        }
    }

    fn write(&self, index: u16, desc: PackedDesc) {
        let entry = entry_at(index);
        self.area.write(entry + at::ADDR, desc.addr);
        self.area.write(entry + at::LEN, desc.len);
        self.area.store(entry + at::ID, desc.id, Ordering::Relaxed);
        self.area.store(entry + at::FLAGS, desc.flags, Ordering::Relaxed);
    }
}

/// The only version.
const VERSION: u16 = 1;

fn entry_at(index: u16) -> usize {
    at::DESC + usize::from(index) * at::DESC_LEN
}
