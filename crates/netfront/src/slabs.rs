//! Pages that the backend may read, into which incoming frames are written.
//!
//! A device reads the end of a long frame directly into a slab, and a queue of the vif pushes
//! requests for its pages: the guest does not copy those bytes. Only the guest can write to a slab.
//! First the frame and then the queue holds it, until the backend has completed the requests for
//! all its pages. Slabs belong to the vif: any of its queues sends any of them.

use std::io;
use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{BODY_LEN_MAX, End, PagePool, Pages, Receipts};
use ringway_hypervisor::{Access, GrantTable, StillInUse};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::buffers::Buffers;

/// Pages of a slab.
pub(crate) const SLAB_PAGES: usize = BODY_LEN_MAX / PAGE_SIZE;
const _: () = assert!(SLAB_PAGES * PAGE_SIZE == BODY_LEN_MAX);
/// Slabs of a vif: a ring has room for the pages of 14 such frames.
pub(crate) const SLABS: usize = 16;

/// The slabs of a vif.
#[derive(Debug)]
pub struct Slabs {
    shared: Arc<Shared>,
}

/// What the queues share.
#[derive(Debug)]
pub(crate) struct Shared {
    buffers: Buffers,
    pages: Arc<dyn Pages>,
    receipts: Receipts,
}

impl Slabs {
    /// Takes the pages and grants `backend` read access to them.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when pages or grants run out.
    pub fn new(grants: &mut impl GrantTable, backend: DomId) -> io::Result<Slabs> {
        let buffers = Buffers::grant(grants, backend, SLABS * SLAB_PAGES, Access::ReadOnly)?;
        let pages = buffers.as_pages();
        let receipts = Receipts::new(SLABS, Waker::noop());
        Ok(Slabs { shared: Arc::new(Shared { buffers, pages, receipts }) })
    }

    /// The free slabs, for the one device whose frames the vif sends.
    pub fn page_pool(&self) -> Box<dyn PagePool> {
        Box::new(FreeSlabs(Arc::clone(&self.shared)))
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Whether frames refer to pages, which [`close`](Slabs::close) then cannot free.
    pub fn has_lent_pages(&self) -> bool {
        self.first_lent().is_some()
    }

    fn first_lent(&self) -> Option<usize> {
        (0..SLABS).find(|slab| self.shared.receipts.is_held(*slab))
    }

    /// Ends every grant and frees the pages; after the queues are closed.
    ///
    /// # Errors
    /// [`StillInUse`] if the backend still uses a page, or a frame refers to one: such pages are
    /// never used again.
    pub fn close(self, grants: &mut impl GrantTable) -> Result<(), StillInUse> {
        if let Some(slab) = self.first_lent() {
            return Err(StillInUse { gref: self.shared.gref(slab * SLAB_PAGES) });
        }
        self.shared.buffers.clone().end(grants)
    }
}

impl Shared {
    /// The slab of a frame's end, if that begins at the start of one of these slabs.
    pub(crate) fn slab_of(&self, end: &End) -> Option<usize> {
        let [piece] = end.pieces() else { return None };
        let is_ours = Arc::ptr_eq(end.kept_pages()?, &self.pages) && piece.at % BODY_LEN_MAX == 0;
        is_ours.then_some(piece.at / BODY_LEN_MAX)
    }

    /// The grant of a page, counted over all slabs.
    pub(crate) fn gref(&self, page: usize) -> GrantRef {
        self.buffers.gref(page)
    }
}

/// The only handle that takes slabs, so that no slab is taken twice.
#[derive(Debug)]
struct FreeSlabs(Arc<Shared>);

impl PagePool for FreeSlabs {
    fn take(&mut self) -> Option<End> {
        let Shared { pages, receipts, .. } = &*self.0;
        // Take the lowest free one: the same few are reused while they are in the cache.
        let slab = (0..SLABS).find(|slab| !receipts.is_held(*slab))?;
        let mut end = End::kept(Arc::clone(pages), receipts.issue(slab));
        end.push(slab * BODY_LEN_MAX, BODY_LEN_MAX).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use ringway_hypervisor::Hypervisor;
    use ringway_loopback::{Limits, Loopback};

    use super::*;

    #[test]
    fn slabs_that_cannot_be_freed_are_reported_with_a_grant_in_use() {
        let machine = Loopback::new();
        let guest = machine.create_domain(DomId(7), Limits::default()).expect("it is the first");
        let mut grants = guest.grants().expect("the guest lives");
        let slabs = Slabs::new(&mut grants, DomId(0)).expect("the guest has memory");
        let mut page_pool = slabs.page_pool();
        let first = page_pool.take().expect("all of them are free");
        let second = page_pool.take().expect("there are more");
        drop(first);
        let in_use = slabs.shared.gref(SLAB_PAGES);
        assert_eq!(slabs.close(&mut grants), Err(StillInUse { gref: in_use }));
        drop(second);
    }
}
