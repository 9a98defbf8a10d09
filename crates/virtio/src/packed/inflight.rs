//! What of a packed queue is under way, in memory that outlives a device: the part of one queue in
//! the area of `VHOST_USER_SET_INFLIGHT_FD`.
//!
//! A used descriptor takes the place of one that was available, and our device writes all of a
//! batch but the flags of the first before it publishes it. So it copies each chain into the area
//! before it uses it. Where a device was killed, the next one writes the copies back: then the ring
//! is as if no chain of theirs had been taken, which the driver cannot tell, as it reads no
//! descriptor but the one that is used next. Where that is stands in the area, and nowhere else.
//!
//! Order is the specification's, so that any device can go on. Within a process, later stores are
//! never seen without earlier ones by who comes after its end.
//!
//! The peer can write the area at any moment. It is read once, when a queue is taken over.

use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_wire::vhost_user::inflight_packed as at;
use ringway_wire::virtio::PackedDesc;

use super::{Position, ROUND_FLAGS, desc_at, flags_at};
use crate::{InflightFault, QueueMemory};

/// The part of one queue.
#[derive(Debug)]
pub(super) struct PackedInflight<M = SharedPages> {
    area: M,
    /// Of each entry of the area the one behind it in the list of those that are free, which is
    /// believed here only.
    next: Box<[u16]>,
    /// The first that is free.
    free: u16,
    /// Chains that are copied so far: their order.
    count: u64,
    /// The first and last entry of each chain that was used and is not published.
    batch: Vec<(u16, u16)>,
}

impl<M: QueueMemory> PackedInflight<M> {
    /// Takes it over. What was under way is in the ring again, and the queue goes on at the place
    /// that is returned, which is `base` where nothing was noted before. The area has `entries`
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
                inflight.note_used(base);
                inflight.note_old(base);
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
        let place = inflight.settle(ring, size)?;
        let heads = inflight.restore((ring, size), place)?;
        // What is left of the marks is always a beginning of what is in the ring from there on.
        for head in heads.into_iter().rev() {
            inflight.area.write(entry_at(head) + at::INFLIGHT, 0_u8);
        }
        inflight.free_all();
        Ok((inflight, place))
    }

    /// Where the queue goes on. The last batch may have been published and still be marked, or have
    /// been noted as published and not be: the device ended in between. This one may end here, too,
    /// and the next one has to find the same.
    fn settle(&self, ring: &M, size: u16) -> Result<Position, InflightFault> {
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
        let batch = self.listed(free, old_free);
        // Without a mark in the batch, only the last of its notes are missing.
        let is_published = used != old
            && (!old.is_available(flags) || !batch.iter().any(|it| self.is_marked(*it)));
        if is_published {
            // As it would have been noted: the mark of a place that is half written is no mark.
            self.unmark(&batch);
            self.area.store(at::OLD_FREE_HEAD, free, Ordering::Relaxed);
            self.note_old(used);
            return Ok(used);
        }
        self.note_used(old);
        self.area.store(at::FREE_HEAD, old_free, Ordering::Relaxed);
        // A chain of which the note was not complete.
        self.unmark(&self.listed(old_free, u16::MAX));
        Ok(old)
    }

    /// The entries of a list before `end`, as far as there are such.
    fn listed(&self, mut index: u16, end: u16) -> Vec<u16> {
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

    /// Writes all chains that are under way into the ring, in the order in which they were taken;
    /// their first entries.
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

    /// Lists all entries as free. No chain is under way, and no batch.
    fn free_all(&self) {
        self.area.store(at::FREE_HEAD, 0, Ordering::Relaxed);
        self.area.store(at::OLD_FREE_HEAD, 0, Ordering::Relaxed);
        for (index, next) in (0..).zip(&self.next) {
            self.area.store(entry_at(index) + at::NEXT, *next, Ordering::Relaxed);
        }
    }

    /// Copies a chain before it is used: so many slots of the ring, from a place on. Only a driver
    /// that makes available what it has not got back has more than there are entries; then what is
    /// under way is its own loss.
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

    /// The batch is about to be published, and the queue then goes on at a place.
    pub(super) fn publishes(&mut self, place: Position) {
        for (head, last) in &self.batch {
            self.area.store(entry_at(*last) + at::NEXT, self.free, Ordering::Relaxed);
            self.next[usize::from(*last)] = self.free;
            self.free = *head;
        }
        self.area.store(at::FREE_HEAD, self.free, Ordering::Relaxed);
        self.note_used(place);
    }

    /// The batch is published.
    pub(super) fn published(&mut self, place: Position) {
        for (head, _) in self.batch.drain(..) {
            self.area.write(entry_at(head) + at::INFLIGHT, 0_u8);
        }
        self.area.store(at::OLD_FREE_HEAD, self.free, Ordering::Relaxed);
        self.note_old(place);
    }

    /// How many of so many entries are free.
    fn count_free(&self, wanted: u16) -> u16 {
        let (mut index, mut count) = (self.free, 0);
        while count < wanted {
            let Some(next) = self.next.get(usize::from(index)) else { break };
            (index, count) = (*next, count + 1);
        }
        count
    }

    fn note_used(&self, place: Position) {
        self.area.store(at::USED_IDX, place.index, Ordering::Relaxed);
        self.area.write(at::USED_WRAP, u8::from(place.wrap));
    }

    fn note_old(&self, place: Position) {
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

/// The only version that there is.
const VERSION: u16 = 1;

fn entry_at(index: u16) -> usize {
    at::DESC + usize::from(index) * at::DESC_LEN
}
