//! The device's half of a split queue.

use std::slice;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use ringway_sys::SharedPages;
use ringway_sys::guest_memory::GuestView;
use ringway_wire::virtio::{
    Desc, UsedElem, VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY, avail, used,
};

use super::{avail_at, desc_at, entry_of, next_of, used_at};
use crate::chain::Entry;
use crate::inflight::Inflight;
use crate::{
    Access, Buffer, Buffers, Chain, Notify, NotifyWhen, QueueAreas, QueueFault, QueueMemory,
    QueueOptions, Result, Waiting, crosses,
};

/// Takes chains and uses each one once, in order.
#[derive(Debug)]
pub struct SplitDevice<M = SharedPages> {
    areas: QueueAreas<M>,
    options: QueueOptions,
    access: Access,
    /// The driver's index at the last poll.
    avail_seen: u16,
    /// The next entry to take.
    next: u16,
    /// Entries that were read ahead once, from index `prefetched_from` on.
    prefetched: Box<ArrayVec<Prefetched, PREFETCHED_MAX>>,
    prefetched_from: u16,
    used_pvt: u16,
    used_published: u16,
    /// Whether the driver is asked not to kick; only without event indices.
    is_polling: bool,
    /// The record of chains in flight, if the front-end wants one.
    inflight: Option<Box<Inflight<M>>>,
    resubmitted: Resubmitted,
}

/// The most entries that are read ahead: a batch of frames.
const PREFETCHED_MAX: usize = 64; // not a limit: a batch, the rest follows

/// An entry of the available ring that was read ahead, and its descriptor.
#[derive(Debug, Clone, Copy)]
struct Prefetched {
    head: u16,
    desc: Desc,
}

impl Prefetched {
    /// Reads the first descriptor of a chain.
    #[inline]
    fn read<M: QueueMemory>(areas: &QueueAreas<M>, head: u16) -> Prefetched {
        Prefetched { head, desc: areas.descriptors.read(desc_at(head)) }
    }

    /// The chain's only buffer, if it has just one, of the right direction and of a possible
    /// length.
    #[inline]
    fn single(&self, access: Access) -> Option<Buffer> {
        let Desc { addr: address, len, flags, .. } = self.desc;
        let is_single = flags == access.flag()
            && u64::from(len) <= access.bytes_max()
            && address.checked_add(u64::from(len)).is_some();
        is_single.then_some(Buffer { address, len })
    }
}

/// Chains that an earlier device took and did not use while it used later ones. From index `from`
/// on they replace as many entries of the available ring.
#[derive(Debug)]
struct Resubmitted {
    heads: Box<[u16]>,
    from: u16,
}

impl Resubmitted {
    /// The head of the chain of an index.
    #[inline]
    fn head_at<M: QueueMemory>(&self, areas: &QueueAreas<M>, index: u16) -> u16 {
        match self.heads.get(usize::from(index.wrapping_sub(self.from))) {
            Some(head) => *head,
            None => areas.driver.load(avail_at(index, areas.size), Ordering::Relaxed),
        }
    }
}

/// The only buffers of the next chains of a queue.
#[derive(Debug, Clone)]
pub struct Singles<'a> {
    entries: slice::Iter<'a, Prefetched>,
    access: Access,
}

impl Singles<'_> {
    /// For a queue that reads nothing ahead.
    pub(crate) fn none() -> Singles<'static> {
        Singles { entries: [].iter(), access: Access::Readable }
    }
}

impl Iterator for Singles<'_> {
    type Item = Buffer;

    #[inline]
    fn next(&mut self) -> Option<Buffer> {
        self.entries.next()?.single(self.access)
    }
}

/// A position of the device to return to.
#[derive(Debug, Clone, Copy)]
pub struct SplitPosition(u16);

impl<M: QueueMemory> SplitDevice<M> {
    /// Attaches to a queue whose chains before `base` were used.
    ///
    /// After a crash a front-end gives the used index of the queue, so chains that were taken and
    /// not used are taken again.
    pub fn attach(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        base: u16,
    ) -> SplitDevice<M> {
        // A predecessor may have left its request not to be kicked.
        areas.device.store(used::FLAGS, 0, Ordering::Relaxed);
        SplitDevice {
            areas,
            options,
            access,
            avail_seen: base,
            next: base,
            prefetched: Box::default(),
            prefetched_from: base,
            used_pvt: base,
            used_published: base,
            is_polling: false,
            inflight: None,
            resubmitted: Resubmitted { heads: Box::default(), from: base },
        }
    }

    /// Continues from the record of an earlier device: the chains that it took and did not use come
    /// first, in their order.
    ///
    /// # Errors
    /// [`QueueFault::Inflight`].
    pub(crate) fn attach_with_inflight(&mut self, noted: M, descriptors: u16) -> Result<()> {
        let available = self.areas.driver.load(avail::IDX, Ordering::Acquire);
        let indices = [self.used_published, available];
        let (inflight, resubmitted) = Inflight::open(noted, descriptors, self.areas.size, indices)?;
        (self.inflight, self.resubmitted.heads) = (Some(Box::new(inflight)), resubmitted.into());
        Ok(())
    }

    /// Whether the driver has never made a chain available.
    pub fn is_blank(&self) -> bool {
        let first: Desc = self.areas.descriptors.read(desc_at(0));
        self.used_pvt == 0 && first == Desc::default() && {
            self.areas.driver.load(avail::IDX, Ordering::Relaxed) == 0
        }
    }

    /// The base for a successor.
    pub fn base(&self) -> u16 {
        self.used_published
    }

    /// How many chains were used, from any number on and wrapping, and how many are available now;
    /// `None` if the driver's index is invalid.
    pub fn progress(&self) -> Option<(u16, u16)> {
        // Relaxed: nothing is read of what the index covers.
        let produced = self.areas.driver.load(avail::IDX, Ordering::Relaxed);
        let available = produced.wrapping_sub(self.used_pvt);
        (available <= self.areas.size).then_some((self.used_pvt, available))
    }

    /// Reads the driver's progress: once per batch.
    ///
    /// # Errors
    /// [`QueueFault::RanAhead`].
    #[inline]
    pub fn poll(&mut self) -> Result<()> {
        // Acquire: orders this load before our reads of the entries it covers.
        let produced = self.areas.driver.load(avail::IDX, Ordering::Acquire);
        let size = self.areas.size;
        // Chains that are taken and not used still occupy their descriptors, so they count.
        let ahead = produced.wrapping_sub(self.used_pvt);
        if ahead > size || ahead < self.next.wrapping_sub(self.used_pvt) {
            return Err(QueueFault::RanAhead { produced, ahead, size });
        }
        if ahead < self.prefetched_end().wrapping_sub(self.used_pvt) {
            // The index moved back: entries read ahead are not available any more.
            self.prefetched.clear();
        }
        self.avail_seen = produced;
        if !self.options.event_idx && !self.is_polling && ahead > 0 {
            self.areas.device.store(used::FLAGS, VRING_USED_F_NO_NOTIFY, Ordering::Relaxed);
            self.is_polling = true;
        }
        Ok(())
    }

    /// Takes the next of the chains that the last poll found.
    ///
    /// # Errors
    /// [`QueueFault`].
    #[inline]
    pub fn take(&mut self, guest: &GuestView, buffers: &mut Buffers) -> Result<Option<Chain>> {
        // Inlined, because each batch ends with it.
        match self.next == self.avail_seen {
            true => Ok(None),
            false => self.take_next(guest, buffers),
        }
    }

    fn take_next(&mut self, guest: &GuestView, buffers: &mut Buffers) -> Result<Option<Chain>> {
        self.read_ahead(guest)?;
        let Prefetched { head, desc: first, .. } =
            self.next_ahead().expect("one was read at least");
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

    /// The buffers of the next chains, as far as they were read ahead, up to the first chain of
    /// several buffers; no buffer if the next chain to take is not the next to be used.
    #[inline]
    pub fn singles(&self) -> Singles<'_> {
        Singles { entries: self.prefetched().iter(), access: self.access }
    }

    #[inline]
    fn prefetched(&self) -> &[Prefetched] {
        if self.used_pvt != self.next || self.inflight.is_some() {
            return &[];
        }
        let index = self.next.wrapping_sub(self.prefetched_from);
        self.prefetched.get(usize::from(index)..).unwrap_or(&[])
    }

    /// Takes and uses the first chains of [`singles`](SplitDevice::singles): one for each item of
    /// `written`, which is how many bytes were written into it.
    ///
    /// # Panics
    /// If there are fewer chains, which is an error of the caller.
    #[inline]
    pub fn use_singles(&mut self, written: impl ExactSizeIterator<Item = u32>) {
        if written.len() == 0 {
            return;
        }
        let mut next = self.next;
        for (Prefetched { head, .. }, len) in self.prefetched()[..written.len()].iter().zip(written)
        {
            let elem = UsedElem { id: u32::from(*head), len };
            self.areas.device.write(used_at(next, self.areas.size), elem);
            next = next.wrapping_add(1);
        }
        (self.next, self.used_pvt) = (next, next);
    }

    /// The next chain, if it was read ahead.
    #[inline]
    fn next_ahead(&self) -> Option<Prefetched> {
        let index = self.next.wrapping_sub(self.prefetched_from);
        self.prefetched.get(usize::from(index)).copied()
    }

    /// The end of the entries read ahead, or the next chain if that is behind it.
    #[inline]
    fn prefetched_end(&self) -> u16 {
        let count = u16::try_from(self.prefetched.len()).expect("a batch is small");
        match self.next_ahead() {
            Some(_) => self.prefetched_from.wrapping_add(count),
            None => self.next,
        }
    }

    /// Reads the entries that the last poll found, unless the next one was already read.
    ///
    /// # Errors
    /// [`QueueFault::HeadOutOfRange`] if the next one is invalid.
    #[inline]
    pub fn read_ahead(&mut self, guest: &GuestView) -> Result<()> {
        match self.avail_seen.wrapping_sub(self.next) {
            0 => Ok(()),
            _ if self.next_ahead().is_some() => Ok(()),
            1 => self.read_only_entry(),
            _ => self.read_entries(guest),
        }
    }

    /// Reads the next entry if there is no other. Its buffer is copied at once, so a hint would
    /// only add work.
    #[inline(never)]
    fn read_only_entry(&mut self) -> Result<()> {
        let size = self.areas.size;
        self.prefetched.clear();
        self.prefetched_from = self.next;
        let head = self.resubmitted.head_at(&self.areas, self.next);
        if head >= size {
            return Err(QueueFault::HeadOutOfRange { head, size });
        }
        self.prefetched.push(Prefetched::read(&self.areas, head));
        Ok(())
    }

    /// The guest's CPU has written entries, descriptors and buffers, so each first access misses
    /// the cache. Here the misses overlap: the loops are short, so that the CPU starts on the next
    /// entries while it waits for one.
    #[inline(never)]
    fn read_entries(&mut self, guest: &GuestView) -> Result<()> {
        let size = self.areas.size;
        let (first, found) = (self.next, self.avail_seen.wrapping_sub(self.next));
        let most = found.min(u16::try_from(PREFETCHED_MAX).expect("a batch is small"));
        self.prefetched_from = first;
        let SplitDevice { areas, resubmitted, prefetched, .. } = self;
        prefetched.clear();
        let mut invalid = None;
        prefetched.extend((0..most).map_while(|index| {
            let head = resubmitted.head_at(areas, first.wrapping_add(index));
            if head >= size {
                invalid = Some(head);
                return None;
            }
            Some(Prefetched::read(areas, head))
        }));
        // The chains before an invalid one come first.
        if let Some(head) = invalid.filter(|_| self.prefetched.is_empty()) {
            return Err(QueueFault::HeadOutOfRange { head, size });
        }
        if let Some(window) = guest.window() {
            let intent = self.access.intent();
            for Prefetched { desc, .. } in &*self.prefetched {
                window.prefetch(desc.addr, desc.len, intent);
            }
        }
        Ok(())
    }

    /// Reads a chain of several descriptors, or one in an indirect table. Each iteration adds a
    /// buffer; the number of buffers is limited to the entries of the queue, which ends a loop of
    /// descriptors.
    #[inline(never)]
    fn walk(&self, guest: &GuestView, head: u16, first: Desc, buffers: &mut Buffers) -> Result<()> {
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
            index = next_of(desc, size)?;
            desc = self.areas.descriptors.read(desc_at(index));
        }
    }

    fn walk_table(&self, guest: &GuestView, table: Entry, buffers: &mut Buffers) -> Result<()> {
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
            index = next_of(desc, size)?;
        }
    }

    /// The position of the next chain to take.
    #[inline]
    pub fn position(&self) -> SplitPosition {
        SplitPosition(self.next)
    }

    /// Returns the chains taken since that position; none of them may have been used.
    #[inline]
    pub fn rewind(&mut self, position: SplitPosition) {
        self.next = position.0;
    }

    /// Uses the oldest chain that was taken and not used, with `written` bytes written.
    ///
    /// # Panics
    /// If there is no such chain, which is an error of the caller.
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

    /// Makes the used chains visible to the driver.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        let (old, new) = (self.used_published, self.used_pvt);
        if old == new {
            return Notify::None;
        }
        self.used_published = new;
        // Release: orders our writes of entries and buffers before the index that covers them.
        self.areas.device.store(used::IDX, new, Ordering::Release);
        // Orders that store before the load of the driver's event request. The partner is the fence
        // between the driver's request and its last poll: one side sees the other's store.
        self.areas.driver.fence();
        if let Some(inflight) = &mut self.inflight {
            inflight.record_published(new);
            let Resubmitted { heads, from } = &mut self.resubmitted;
            if usize::from(new.wrapping_sub(*from)) >= heads.len() {
                *heads = Box::default();
            }
        }
        let is_wanted = if self.options.event_idx {
            let event = avail::used_event(usize::from(self.areas.size));
            crosses(self.areas.driver.load(event, Ordering::Relaxed), old, new)
        } else {
            let flags = self.areas.driver.load(avail::FLAGS, Ordering::Relaxed);
            flags & VRING_AVAIL_F_NO_INTERRUPT == 0
        };
        if is_wanted { Notify::Peer } else { Notify::None }
    }

    /// Requests a kick, and polls once more.
    pub fn arm(&mut self, when: NotifyWhen) -> Waiting {
        let from = match when {
            NotifyWhen::Any => self.next,
            NotifyWhen::More => self.avail_seen,
        };
        if self.options.event_idx {
            let event = used::avail_event(usize::from(self.areas.size));
            self.areas.device.store(event, from, Ordering::Relaxed);
        } else if self.is_polling {
            self.areas.device.store(used::FLAGS, 0, Ordering::Relaxed);
            self.is_polling = false;
        }
        // Orders the request before the load of the index; see `publish`.
        self.areas.driver.fence();
        let produced = self.areas.driver.load(avail::IDX, Ordering::Relaxed);
        if produced == from { Waiting::Idle } else { Waiting::Ready }
    }
}
