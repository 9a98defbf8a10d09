//! Slabs whose pages a queue has pushed requests for, until those are completed.

use std::sync::Arc;

use ringway_datapath::End;
use ringway_wire::GrantRef;
use ringway_wire::netif::TX_RING_SLOTS;

use crate::slabs::{SLAB_PAGES, SLABS, Shared};

/// A queue's use of the vif's slabs.
pub(crate) struct Sending {
    slabs: Arc<Shared>,
    /// Whether a request for a page of a slab is outstanding.
    outstanding: Box<[bool; SLABS * SLAB_PAGES]>,
    /// By slab: the number of outstanding pages, and the end of the frame, which keeps the slab
    /// from being reused.
    ends: [(usize, Option<End>); SLABS],
    /// Outstanding pages of all slabs.
    pages: usize,
}

impl Sending {
    pub(crate) fn new(slabs: Arc<Shared>) -> Sending {
        Sending {
            slabs,
            outstanding: Box::new([false; SLABS * SLAB_PAGES]),
            ends: [const { (0, None) }; SLABS],
            pages: 0,
        }
    }

    /// Whether pages of this end can be pushed.
    pub(crate) fn has(&self, end: &End) -> bool {
        self.slabs.slab_of(end).is_some()
    }

    /// The grants of all pages of the slabs.
    pub(crate) fn grefs(&self) -> impl Iterator<Item = GrantRef> + '_ {
        (0..SLABS * SLAB_PAGES).map(|page| self.slabs.gref(page))
    }

    /// Pages that the backend may still read.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Keeps an end while its pages are outstanding, and returns the id and the grant of each page.
    pub(crate) fn begin(
        &mut self,
        end: End,
        pages: usize,
    ) -> impl ExactSizeIterator<Item = (u16, GrantRef)> {
        let slab = self.slabs.slab_of(&end).expect("the caller asked whose it is");
        let first = slab * SLAB_PAGES;
        self.outstanding[first..first + pages].fill(true);
        self.ends[slab] = (pages, Some(end));
        self.pages += pages;
        (first..first + pages).map(|page| (id_of(page), self.slabs.gref(page)))
    }

    /// Completes the request with this id; false if it is not outstanding.
    pub(crate) fn complete(&mut self, id: u16) -> bool {
        let page = usize::from(id).checked_sub(TX_RING_SLOTS);
        let Some(page) = page.filter(|page| self.outstanding.get(*page) == Some(&true)) else {
            return false;
        };
        self.outstanding[page] = false;
        self.pages -= 1;
        let (left, end) = &mut self.ends[page / SLAB_PAGES];
        *left -= 1;
        if *left == 0 {
            *end = None;
        }
        true
    }
}

/// The ids of slab pages follow those of the queue's own buffers.
fn id_of(page: usize) -> u16 {
    u16::try_from(TX_RING_SLOTS + page).expect("slabs are few")
}
