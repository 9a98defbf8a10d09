//! Pages of a guest that stay mapped (staging grants), so that its bytes are copied without the
//! hypervisor.
//!
//! The guest names pages of a queue by messages of its control ring (`mapper.rs`). The queue that
//! serves that ring maps them, whichever queue they are for, so [`StagedPages`] are shared by two
//! threads. The queue that copies never waits for the other: while it cannot look up its pages, and
//! for each page that is not mapped, or not for writing, the hypervisor copies as always. A request
//! means the same in both cases, so a backend that knows of no page serves its guest as well, only
//! with more work.
//!
//! No reference points into these pages: a frame is copied once, and only its copy is inspected.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;
use ringway_hypervisor::{Access, ForeignMemory, ForeignPage, GrantCopy, GrantStatus, PageCopy};
use ringway_wire::netif::RX_RING_SLOTS;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

/// The most pages of a queue that stay mapped: those of both rings, and as many beside them.
pub const STAGED_PAGES_MAX: usize = 1024;

/// What a guest may have mapped.
#[derive(Debug, Clone)]
pub struct Staging {
    /// The pages of each of its queues, in order.
    pub queues: Vec<Arc<StagedPages>>,
    /// The room for all of them.
    pub budget: Arc<PageBudget>,
}

/// How many pages may stay mapped at the same time.
#[derive(Debug)]
pub struct PageBudget {
    left: AtomicUsize,
    /// The budget that this is a part of.
    whole: Option<Arc<PageBudget>>,
}

/// The room of one page, until it is dropped.
struct Room(Arc<PageBudget>);

/// The pages of one queue that stay mapped. They are unmapped with the last handle.
#[derive(Default)]
pub struct StagedPages(Mutex<Registry<StagedPage>>);

/// A mapped page. Its room is free when it is unmapped.
pub(crate) struct StagedPage {
    page: ForeignPage,
    _room: Room,
}

/// Pages by their grants, each with what it was mapped for. A page is whatever ends its mapping
/// when it is dropped: nothing here does I/O.
pub(crate) struct Registry<P> {
    /// In ascending order, and apart from the pages, so that a search stays in few cache lines: a
    /// guest chooses these numbers, and no choice makes a search longer than another.
    grefs: Vec<GrantRef>,
    pages: Vec<(Access, P)>,
}

/// Pages of other guests that stay mapped, from which bytes are copied in one call. There is seldom
/// more than one; of those beyond, the hypervisor copies.
pub(crate) type Sources = ArrayVec<(DomId, Arc<StagedPages>), 4>;

/// A backend's access to its guest's pages: to those that stay mapped without the hypervisor.
pub(crate) struct StagedMemory<M> {
    memory: M,
    staged: Option<Arc<StagedPages>>,
    /// The operations of one call that are left to the hypervisor.
    others: Vec<GrantCopy>,
    /// Those from page to page.
    other_pages: Vec<PageCopy>,
}

impl PageBudget {
    /// Room for so many pages.
    pub fn new(pages: usize) -> PageBudget {
        PageBudget { left: AtomicUsize::new(pages), whole: None }
    }

    /// A part of this room, for at most so many pages. Others may take it first.
    pub fn part(self: &Arc<Self>, pages: usize) -> PageBudget {
        PageBudget { whole: Some(Arc::clone(self)), ..PageBudget::new(pages) }
    }

    fn room(self: &Arc<Self>) -> Option<Room> {
        self.take().then(|| Room(Arc::clone(self)))
    }

    /// Takes the room of a page, here and in the budget that this is a part of.
    fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if taken.is_err() {
            return false;
        }
        let is_taken = self.whole.as_ref().is_none_or(|whole| whole.take());
        if !is_taken {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }

    fn put_back(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.put_back());
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.put_back();
    }
}

impl StagedPage {
    /// Maps a page; `None` if there is no room, or the guest does not permit it.
    pub(crate) fn map<M: ForeignMemory>(
        memory: &mut M,
        (peer, gref, access): (DomId, GrantRef, Access),
        budget: &Arc<PageBudget>,
    ) -> Option<StagedPage> {
        let room = budget.room()?;
        let page = memory.map(peer, gref, access).ok()?;
        Some(StagedPage { page, _room: room })
    }
}

impl StagedPages {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.registry().len()
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry<StagedPage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for StagedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagedPages").finish_non_exhaustive()
    }
}

impl<P> Default for Registry<P> {
    fn default() -> Registry<P> {
        Registry { grefs: Vec::new(), pages: Vec::new() }
    }
}

impl<P> Registry<P> {
    pub(crate) fn len(&self) -> usize {
        self.grefs.len()
    }

    pub(crate) fn has(&self, gref: GrantRef) -> bool {
        self.grefs.binary_search(&gref).is_ok()
    }

    /// The page of a grant, if it may be used like this.
    #[inline]
    pub(crate) fn page(&self, gref: GrantRef, access: Access) -> Option<&P> {
        let at = self.grefs.binary_search(&gref).ok()?;
        let (mapped_for, page) = self.pages.get(at)?;
        (*mapped_for == Access::ReadWrite || access == Access::ReadOnly).then_some(page)
    }

    /// Adds pages; none of their grants is here.
    pub(crate) fn add(&mut self, added: Vec<(GrantRef, Access, P)>) {
        let grefs = std::mem::take(&mut self.grefs);
        let mut all: Vec<_> = grefs.into_iter().zip(std::mem::take(&mut self.pages)).collect();
        all.extend(added.into_iter().map(|(gref, access, page)| (gref, (access, page))));
        all.sort_unstable_by_key(|(gref, _)| *gref);
        (self.grefs, self.pages) = all.into_iter().unzip();
    }

    /// Takes out the pages of these grants.
    pub(crate) fn take_out(&mut self, is_leaving: impl Fn(GrantRef) -> bool) -> Vec<P> {
        let grefs = std::mem::take(&mut self.grefs);
        let mut leaving = Vec::new();
        for (gref, (access, page)) in grefs.into_iter().zip(std::mem::take(&mut self.pages)) {
            if is_leaving(gref) {
                leaving.push(page);
            } else {
                self.grefs.push(gref);
                self.pages.push((access, page));
            }
        }
        leaving
    }
}

impl<M> StagedMemory<M> {
    pub(crate) fn new(memory: M) -> StagedMemory<M> {
        StagedMemory { memory, staged: None, others: Vec::new(), other_pages: Vec::new() }
    }

    pub(crate) fn staged(&self) -> Option<&Arc<StagedPages>> {
        self.staged.as_ref()
    }

    /// Uses these pages from now on.
    pub(crate) fn stage(&mut self, pages: &Arc<StagedPages>) {
        self.staged = Some(Arc::clone(pages));
        self.others.reserve(RX_RING_SLOTS);
        self.other_pages.reserve(2 * RX_RING_SLOTS);
    }

    /// Carries out the operations whose pages are mapped. All others have another status than
    /// `Okay` then.
    #[inline(never)]
    fn copy_staged(
        &self,
        access: Access,
        ops: &mut [GrantCopy],
        mut copy: impl FnMut(&GrantCopy, &ForeignPage) -> Option<()>,
    ) {
        let registry = self.staged.as_ref().and_then(|staged| staged.0.try_lock().ok());
        for op in ops {
            op.status = GrantStatus::GeneralError;
            let is_in_page = usize::from(op.offset) + usize::from(op.len) <= PAGE_SIZE;
            let page = registry.as_ref().filter(|_| is_in_page);
            let page = page.and_then(|registry| registry.page(op.gref, access));
            if page.and_then(|staged| copy(op, &staged.page)).is_some() {
                op.status = GrantStatus::Okay;
            }
        }
    }

    /// Leaves to the hypervisor what is not done.
    #[inline(never)]
    fn copy_others(
        &mut self,
        ops: &mut [GrantCopy],
        copy: impl FnOnce(&mut M, &mut [GrantCopy]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.others.clear();
        self.others.extend(ops.iter().filter(|op| op.status != GrantStatus::Okay));
        if self.others.is_empty() {
            return Ok(());
        }
        copy(&mut self.memory, &mut self.others)?;
        let left = ops.iter_mut().filter(|op| op.status != GrantStatus::Okay);
        left.zip(&self.others).for_each(|(op, done)| op.status = done.status);
        Ok(())
    }
}

impl<M: ForeignMemory> StagedMemory<M> {
    /// Copies from pages of other guests into pages of this one, `to`: between pages that stay
    /// mapped without the hypervisor.
    pub(crate) fn copy_pages(
        &mut self,
        to: DomId,
        ops: &mut [PageCopy],
        sources: &Sources,
    ) -> io::Result<()> {
        if self.staged.is_none() || sources.is_empty() {
            return self.memory.copy_between_peers(to, ops);
        }
        self.copy_between_staged(ops, sources);
        self.other_pages.clear();
        self.other_pages.extend(ops.iter().filter(|op| op.status != GrantStatus::Okay));
        if self.other_pages.is_empty() {
            return Ok(());
        }
        self.memory.copy_between_peers(to, &mut self.other_pages)?;
        let left = ops.iter_mut().filter(|op| op.status != GrantStatus::Okay);
        left.zip(&self.other_pages).for_each(|(op, done)| op.status = done.status);
        Ok(())
    }

    fn copy_between_staged(&self, ops: &mut [PageCopy], sources: &Sources) {
        let own = self.staged.as_ref().and_then(|staged| staged.0.try_lock().ok());
        // Our own are locked by now: a guest that sends to itself is left to the hypervisor.
        let locked = sources.iter();
        let locked = locked.filter_map(|(domid, pages)| Some((*domid, pages.0.try_lock().ok()?)));
        let sources: ArrayVec<_, 4> = locked.collect();
        for op in ops {
            op.status = GrantStatus::GeneralError;
            let target = own.as_ref().and_then(|own| own.page(op.to_gref, Access::ReadWrite));
            let target = target.filter(|_| op.is_in_pages());
            let mut of_peer = sources.iter().filter(|(domid, _)| *domid == op.from);
            let source =
                of_peer.find_map(|(_, registry)| registry.page(op.from_gref, Access::ReadOnly));
            let (Some(target), Some(source)) = (target, source) else { continue };
            let (at, to_at) = (op.from_offset.into(), op.to_offset.into());
            let (source, target) = (source.page.pages(), target.page.pages());
            source.copy_across(at, target, to_at, op.len.into());
            op.status = GrantStatus::Okay;
        }
    }
}

impl<M: ForeignMemory> ForeignMemory for StagedMemory<M> {
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage> {
        self.memory.map(peer, gref, access)
    }

    #[inline]
    fn copy_from_peer<L: AsMut<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()> {
        if self.staged.is_none() {
            return self.memory.copy_from_peer(peer, ops, locals);
        }
        self.copy_staged(Access::ReadOnly, ops, |op, page| {
            let local = locals.get_mut(usize::from(op.local))?.as_mut();
            page.pages().copy_to(op.offset.into(), local.get_mut(local_range(op)?)?);
            Some(())
        });
        self.copy_others(ops, |memory, others| memory.copy_from_peer(peer, others, locals))
    }

    #[inline]
    fn copy_to_peer<L: AsRef<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()> {
        if self.staged.is_none() {
            return self.memory.copy_to_peer(peer, ops, locals);
        }
        self.copy_staged(Access::ReadWrite, ops, |op, page| {
            let local = locals.get(usize::from(op.local))?.as_ref();
            page.pages().copy_from(op.offset.into(), local.get(local_range(op)?)?);
            Some(())
        });
        self.copy_others(ops, |memory, others| memory.copy_to_peer(peer, others, locals))
    }

    fn copy_between_peers(&mut self, to: DomId, ops: &mut [PageCopy]) -> io::Result<()> {
        self.memory.copy_between_peers(to, ops)
    }
}

fn local_range(op: &GrantCopy) -> Option<Range<usize>> {
    let start = usize::try_from(op.local_offset).ok()?;
    Some(start..start.checked_add(usize::from(op.len))?)
}

#[cfg(test)]
mod tests;
