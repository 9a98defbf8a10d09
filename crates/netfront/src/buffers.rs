//! Pages that are granted once and stay granted.

use std::io;

use ringway_hypervisor::{Access, GrantTable, OwnPages, StillInUse};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

/// A run of pages, each with its grant.
#[derive(Debug, Clone)]
pub(crate) struct Buffers {
    own: OwnPages,
    grefs: Vec<GrantRef>,
}

impl Buffers {
    /// Takes `count` pages and grants each to `peer`.
    pub(crate) fn grant(
        grants: &mut impl GrantTable,
        peer: DomId,
        count: usize,
        access: Access,
    ) -> io::Result<Buffers> {
        let mut buffers = Buffers { own: grants.alloc_pages(count)?, grefs: Vec::new() };
        for frame in (buffers.own.first_frame..).take(count) {
            match grants.grant(peer, frame, access) {
                Ok(gref) => buffers.grefs.push(gref),
                Err(error) => {
                    // Nobody has been told of these grants, so none can be in use.
                    let _ = buffers.end(grants);
                    return Err(error);
                }
            }
        }
        Ok(buffers)
    }

    /// One page.
    pub(crate) fn page(&self, number: usize) -> SharedPages {
        self.own.pages.slice(number * PAGE_SIZE..(number + 1) * PAGE_SIZE)
    }

    /// Its grant.
    pub(crate) fn gref(&self, number: usize) -> GrantRef {
        self.grefs[number]
    }

    /// Copies bytes into a page.
    pub(crate) fn fill(&self, number: u16, bytes: &[u8]) {
        self.own.pages.copy_from(usize::from(number) * PAGE_SIZE, bytes);
    }

    /// Copies bytes out of a page.
    pub(crate) fn read(&self, number: u16, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= PAGE_SIZE, "a read beyond its page");
        self.own.pages.copy_to(usize::from(number) * PAGE_SIZE + offset, into);
    }

    /// Ends all grants and gives the pages back, unless one is still in use: then all of them are
    /// kept out of use for good.
    pub(crate) fn end(self, grants: &mut impl GrantTable) -> Result<(), StillInUse> {
        let mut ended = Ok(());
        for &gref in &self.grefs {
            ended = ended.and(grants.end_access(gref));
        }
        if ended.is_ok() {
            grants.free_pages(self.own);
        }
        ended
    }
}
