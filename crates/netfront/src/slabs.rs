//! Pages that the backend may read, for frames to be put into where they come in.
//!
//! A device reads the end of a long frame straight into a slab, and a queue of the vif pushes
//! requests for its pages: the guest does not copy those bytes. Only the guest can write there. A
//! slab is free again when the backend has completed the requests for all its pages, so it is held
//! by the frame, and then by the queue. Slabs are the vif's: any queue of it sends any of them.

use std::io;
use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{Body, Pages, Receipts, STOCK_LEN, Stock};
use ringway_hypervisor::{Access, GrantTable, StillInUse};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::buffers::Buffers;

/// Pages of a slab.
pub(crate) const SLAB_PAGES: usize = STOCK_LEN / PAGE_SIZE;
const _: () = assert!(SLAB_PAGES * PAGE_SIZE == STOCK_LEN);
/// Slabs of a vif: a ring has room for the pages of 14 such frames.
pub(crate) const SLABS: usize = 16;

/// The slabs of a vif.
#[derive(Debug)]
pub struct Slabs {
    shared: Arc<Shared>,
}

/// What its queues know of them.
#[derive(Debug)]
pub(crate) struct Shared {
    buffers: Buffers,
    pages: Arc<dyn Pages>,
    receipts: Receipts,
}

impl Slabs {
    /// Takes the pages and grants them to `backend`, for reading.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when pages or grants run out.
    pub fn new(grants: &mut impl GrantTable, backend: DomId) -> io::Result<Slabs> {
        let buffers = Buffers::grant(grants, backend, SLABS * SLAB_PAGES, Access::ReadOnly)?;
        let pages = buffers.as_pages();
        let receipts = Receipts::new(SLABS, Waker::noop());
        Ok(Slabs { shared: Arc::new(Shared { buffers, pages, receipts }) })
    }

    /// Those that are free, for the one device whose frames the vif sends.
    pub fn stock(&self) -> Box<dyn Stock> {
        Box::new(FreeSlabs(Arc::clone(&self.shared)))
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Ends every grant and frees the pages; after the queues are closed.
    ///
    /// # Errors
    /// [`StillInUse`] if the backend has not let go of a page, or a frame refers to one: such pages
    /// are never used again.
    pub fn close(self, grants: &mut impl GrantTable) -> Result<(), StillInUse> {
        let held = |slab: &usize| self.shared.receipts.is_held(*slab);
        if let Some(slab) = (0..SLABS).find(held) {
            return Err(StillInUse { gref: self.shared.buffers.gref(slab * SLAB_PAGES) });
        }
        self.shared.buffers.clone().end(grants)
    }
}

impl Shared {
    /// The slab that a body is of, if it is of one of these from its beginning.
    pub(crate) fn slab_of(&self, body: &Body) -> Option<usize> {
        let [piece] = body.pieces() else { return None };
        let is_ours = Arc::ptr_eq(body.pages(), &self.pages) && piece.at % STOCK_LEN == 0;
        is_ours.then_some(piece.at / STOCK_LEN)
    }

    /// The grant of a page, counted over all slabs.
    pub(crate) fn gref(&self, page: usize) -> GrantRef {
        self.buffers.gref(page)
    }
}

/// The one who takes slabs: so that none is taken twice.
#[derive(Debug)]
struct FreeSlabs(Arc<Shared>);

impl Stock for FreeSlabs {
    fn take(&mut self) -> Option<Body> {
        let Shared { pages, receipts, .. } = &*self.0;
        // The lowest that is free: the same few are used again while they are in the cache.
        let slab = (0..SLABS).find(|slab| !receipts.is_held(*slab))?;
        let mut body = Body::new(Arc::clone(pages), receipts.issue(slab));
        body.push(slab * STOCK_LEN, STOCK_LEN).then_some(body)
    }
}
