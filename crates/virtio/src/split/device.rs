//! The device's half of a split queue.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use ringway_sys::SharedPages;
use ringway_sys::guest_memory::GuestView;
use ringway_wire::virtio::{
    Desc, UsedElem, VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY, avail, used,
};

use super::{avail_at, desc_at, entry_of, used_at};
use crate::chain::Entry;
use crate::inflight::Inflight;
use crate::{
    Access, Buffer, Buffers, Chain, Notify, QueueAreas, QueueFault, QueueMemory, QueueOptions,
    Waiting, Want, crosses,
};

/// Takes chains and uses each once, in order.
#[derive(Debug)]
pub struct SplitDevice<M = SharedPages> {
    areas: QueueAreas<M>,
    options: QueueOptions,
    access: Access,
    /// Where the driver was at the last look.
    avail_seen: u16,
    /// The next entry to take.
    next: u16,
    /// What was read ahead, once: the entries from `ahead_from` on.
    ahead: Box<ArrayVec<Ahead, AHEAD_MAX>>,
    ahead_from: u16,
    used_pvt: u16,
    used_published: u16,
    /// Whether the driver is asked not to kick; without indices of events only.
    is_polling: bool,
    /// Where it is noted what is under way, if it is.
    inflight: Option<Box<Inflight<M>>>,
    /// Chains from `again_from` on that an earlier device had taken, and used others before them.
    again: Box<[u16]>,
    again_from: u16,
}

/// Entries that are read ahead at most: what a batch of frames takes.
const AHEAD_MAX: usize = 64;

/// An entry of the available ring, and the descriptor that it names.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    head: u16,
    desc: Desc,
}

/// Where a device stands, to go back to.
#[derive(Debug, Clone, Copy)]
pub struct SplitMark(u16);

impl<M: QueueMemory> SplitDevice<M> {
    /// Takes over a queue whose chains before `base` were used.
    ///
    /// After a crash a front-end gives the used index of the queue: chains that were taken and not
    /// used are then taken again.
    pub fn attach(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        base: u16,
    ) -> SplitDevice<M> {
        // A predecessor may have left its wish not to be kicked.
        areas.device.store(used::FLAGS, 0, Ordering::Relaxed);
        SplitDevice {
            areas,
            options,
            access,
            avail_seen: base,
            next: base,
            ahead: Box::default(),
            ahead_from: base,
            used_pvt: base,
            used_published: base,
            is_polling: false,
            inflight: None,
            again: Box::default(),
            again_from: base,
        }
    }

    /// Takes what an earlier device noted: what it had taken and not used comes first, in its
    /// order.
    ///
    /// # Errors
    /// [`QueueFault::Inflight`].
    pub(crate) fn resume(&mut self, noted: M, descriptors: u16) -> Result<(), QueueFault> {
        let available = self.areas.driver.load(avail::IDX, Ordering::Acquire);
        let indices = [self.used_published, available];
        let (inflight, again) = Inflight::open(noted, descriptors, self.areas.size, indices)?;
        (self.inflight, self.again) = (Some(Box::new(inflight)), again.into());
        Ok(())
    }

    /// The head of a chain. What was taken before stands for as many of the entries behind
    /// the used index: as many were used before their turn.
    #[inline]
    fn head_at(&self, index: u16) -> u16 {
        let again = self.again.get(usize::from(index.wrapping_sub(self.again_from)));
        match again {
            Some(head) => *head,
            None => {
                let at = avail_at(index, self.areas.size);
                self.areas.driver.load(at, Ordering::Relaxed)
            }
        }
    }

    /// Where a successor would go on.
    pub fn base(&self) -> u16 {
        self.used_published
    }

    /// Reads how far the driver is: once for a batch.
    ///
    /// # Errors
    /// [`QueueFault::RanAhead`].
    #[inline]
    pub fn look(&mut self) -> Result<(), QueueFault> {
        // Acquire: orders this load before our reads of the entries it covers.
        let produced = self.areas.driver.load(avail::IDX, Ordering::Acquire);
        let size = self.areas.size;
        // What is taken and not used still has its descriptors, so it counts.
        let ahead = produced.wrapping_sub(self.used_pvt);
        if ahead > size || ahead < self.next.wrapping_sub(self.used_pvt) {
            return Err(QueueFault::RanAhead { produced, ahead, size });
        }
        if ahead < self.ahead_end().wrapping_sub(self.used_pvt) {
            // It went back: what was read ahead is not available any more.
            self.ahead.clear();
        }
        self.avail_seen = produced;
        if !self.options.event_idx && !self.is_polling && ahead > 0 {
            self.areas.device.store(used::FLAGS, VRING_USED_F_NO_NOTIFY, Ordering::Relaxed);
            self.is_polling = true;
        }
        Ok(())
    }

    /// Takes the next chain of those that the last look found.
    ///
    /// # Errors
    /// [`QueueFault`].
    #[inline]
    pub fn take(
        &mut self,
        guest: &GuestView,
        buffers: &mut Buffers,
    ) -> Result<Option<Chain>, QueueFault> {
        if self.next == self.avail_seen {
            return Ok(None);
        }
        self.read_ahead(guest)?;
        let Ahead { head, desc: first } = self.next_ahead().expect("one was read at least");
        buffers.clear();
        let entry = entry_of(first);
        if entry.has_next() || entry.is_indirect() {
            self.walk(guest, head, first, buffers)?;
        } else {
            buffers.push(head, entry, self.access)?;
        }
        self.next = self.next.wrapping_add(1);
        Ok(Some(Chain { id: head, slots: 1 }))
    }

    /// The next chain, if it was read ahead, is one buffer, and is the next to be used as well.
    /// Nearly all are, and that is why there is this way beside [`take`](SplitDevice::take).
    #[inline]
    pub fn peek_single(&self) -> Option<(Chain, Buffer)> {
        let Ahead { head, desc } = self.next_ahead()?;
        let is_plain = desc.flags == self.access.flag()
            && u64::from(desc.len) <= self.access.bytes_max()
            && desc.addr.checked_add(u64::from(desc.len)).is_some();
        let is_next = self.used_pvt == self.next && self.inflight.is_none();
        let chain = Chain { id: head, slots: 1 };
        (is_plain && is_next).then_some((chain, Buffer { address: desc.addr, len: desc.len }))
    }

    /// Takes and uses the chain that [`peek_single`](SplitDevice::peek_single) has shown.
    #[inline]
    pub fn use_single(&mut self, chain: Chain, written: u32) {
        let elem = UsedElem { id: u32::from(chain.id), len: written };
        self.areas.device.write(used_at(self.used_pvt, self.areas.size), elem);
        self.next = self.next.wrapping_add(1);
        self.used_pvt = self.next;
    }

    /// The next chain, if it was read ahead.
    #[inline]
    fn next_ahead(&self) -> Option<Ahead> {
        let index = self.next.wrapping_sub(self.ahead_from);
        self.ahead.get(usize::from(index)).copied()
    }

    /// Where what was read ahead ends, or the next chain if that is behind it.
    #[inline]
    fn ahead_end(&self) -> u16 {
        let count = u16::try_from(self.ahead.len()).expect("a batch is small");
        match self.next_ahead() {
            Some(_) => self.ahead_from.wrapping_add(count),
            None => self.next,
        }
    }

    /// Reads the entries that the last look found, unless the next one is known.
    ///
    /// # Errors
    /// [`QueueFault::HeadOutOfRange`] if the next one is no good.
    #[inline]
    pub fn read_ahead(&mut self, guest: &GuestView) -> Result<(), QueueFault> {
        match self.next == self.avail_seen || self.next_ahead().is_some() {
            true => Ok(()),
            false => self.read_entries(guest),
        }
    }

    /// The guest's processor has written entries, descriptors and buffers, so each first access
    /// waits for it. Here these accesses do not wait for each other.
    #[inline(never)]
    fn read_entries(&mut self, guest: &GuestView) -> Result<(), QueueFault> {
        let size = self.areas.size;
        self.ahead.clear();
        self.ahead_from = self.next;
        let found = usize::from(self.avail_seen.wrapping_sub(self.next)).min(AHEAD_MAX);
        let mut index = self.next;
        while self.ahead.len() < found {
            let head = self.head_at(index);
            if head >= size {
                match self.ahead.is_empty() {
                    true => return Err(QueueFault::HeadOutOfRange { head, size }),
                    // Those before it come first.
                    false => return Ok(()),
                }
            }
            let desc: Desc = self.areas.descriptors.read(desc_at(head));
            guest.prefetch(desc.addr, desc.len, self.access.intent());
            self.ahead.push(Ahead { head, desc });
            index = index.wrapping_add(1);
        }
        Ok(())
    }

    /// Reads a chain of several descriptors, or one in a table. Each turn adds a buffer, of which
    /// there may be as many as the queue has entries: a loop ends there.
    #[inline(never)]
    fn walk(
        &self,
        guest: &GuestView,
        head: u16,
        first: Desc,
        buffers: &mut Buffers,
    ) -> Result<(), QueueFault> {
        let size = self.areas.size;
        let (mut index, mut desc) = (head, first);
        loop {
            let entry = entry_of(desc);
            if entry.is_indirect() {
                if !self.options.indirect || entry.has_next() {
                    return Err(QueueFault::BadIndirect { index, flags: entry.flags });
                }
                return self.walk_table(guest, entry, buffers);
            }
            buffers.push(index, entry, self.access)?;
            if !entry.has_next() {
                return Ok(());
            }
            index = desc.next;
            if index >= size {
                return Err(QueueFault::NextOutOfRange { next: index, size });
            }
            desc = self.areas.descriptors.read(desc_at(index));
        }
    }

    fn walk_table(
        &self,
        guest: &GuestView,
        table: Entry,
        buffers: &mut Buffers,
    ) -> Result<(), QueueFault> {
        let size = buffers.table_len(table)?;
        let mut index = 0;
        loop {
            let desc: Desc = table.of_table(guest, index)?;
            let entry = entry_of(desc);
            if entry.is_indirect() {
                return Err(QueueFault::BadIndirect { index, flags: entry.flags });
            }
            buffers.push(index, entry, self.access)?;
            if !entry.has_next() {
                return Ok(());
            }
            index = desc.next;
            if index >= size {
                return Err(QueueFault::NextOutOfRange { next: index, size });
            }
        }
    }

    /// Where the next chain is taken.
    #[inline]
    pub fn mark(&self) -> SplitMark {
        SplitMark(self.next)
    }

    /// Gives back the chains that were taken since, none of which was used.
    #[inline]
    pub fn go_back(&mut self, mark: SplitMark) {
        self.next = mark.0;
    }

    /// Uses the oldest chain that was taken and not used, with so many bytes written.
    ///
    /// # Panics
    /// If there is no such chain: a mistake of ours.
    #[inline]
    pub fn push_used(&mut self, chain: Chain, written: u32) {
        assert!(self.used_pvt != self.next, "a chain is used that was not taken");
        let elem = UsedElem { id: u32::from(chain.id), len: written };
        self.areas.device.write(used_at(self.used_pvt, self.areas.size), elem);
        self.used_pvt = self.used_pvt.wrapping_add(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.used(chain.id);
        }
    }

    /// Makes the used chains visible.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        let (old, new) = (self.used_published, self.used_pvt);
        if old == new {
            return Notify::No;
        }
        self.used_published = new;
        // Release: orders our writes of entries and buffers before the index that covers them.
        self.areas.device.store(used::IDX, new, Ordering::Release);
        // Orders that store before the load of the driver's wish. The partner is the fence by which
        // the driver orders its wish before its last look: one side sees the other's store.
        self.areas.driver.fence();
        if let Some(inflight) = &mut self.inflight {
            inflight.published(new);
            if usize::from(new.wrapping_sub(self.again_from)) >= self.again.len() {
                self.again = Box::default();
            }
        }
        let is_wanted = if self.options.event_idx {
            let event = avail::used_event(usize::from(self.areas.size));
            crosses(self.areas.driver.load(event, Ordering::Relaxed), old, new)
        } else {
            let flags = self.areas.driver.load(avail::FLAGS, Ordering::Relaxed);
            flags & VRING_AVAIL_F_NO_INTERRUPT == 0
        };
        if is_wanted { Notify::Peer } else { Notify::No }
    }

    /// Asks for a kick, and looks once more.
    pub fn arm(&mut self, want: Want) -> Waiting {
        let from = match want {
            Want::Any => self.next,
            Want::More => self.avail_seen,
        };
        if self.options.event_idx {
            let event = used::avail_event(usize::from(self.areas.size));
            self.areas.device.store(event, from, Ordering::Relaxed);
        } else if self.is_polling {
            self.areas.device.store(used::FLAGS, 0, Ordering::Relaxed);
            self.is_polling = false;
        }
        // Orders the wish before the load of the index; see `publish`.
        self.areas.driver.fence();
        let produced = self.areas.driver.load(avail::IDX, Ordering::Relaxed);
        if produced == from { Waiting::Nothing } else { Waiting::Something }
    }
}
