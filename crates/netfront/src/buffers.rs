//! Pages that are granted once and stay granted.

use std::any::Any;
use std::io;
use std::sync::Arc;

use ringway_datapath::{DropReason, Ends, Pages};
use ringway_hypervisor::{Access, GrantTable, GrantedPages, StillInUse};
use ringway_sys::{Intent, SharedPages};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

/// A run of pages, each with its grant.
#[derive(Debug, Clone)]
pub(crate) struct Buffers(GrantedPages);

impl Buffers {
    /// Takes `count` pages and grants each to `peer`.
    pub(crate) fn grant(
        grants: &mut impl GrantTable,
        peer: DomId,
        count: usize,
        access: Access,
    ) -> io::Result<Buffers> {
        grants.share(peer, count, access).map(Buffers)
    }

    /// Takes each of these runs and grants it to `peer`, or none of them.
    pub(crate) fn grant_each<const N: usize>(
        grants: &mut impl GrantTable,
        peer: DomId,
        runs: [(usize, Access); N],
    ) -> io::Result<[Buffers; N]> {
        let mut granted = Vec::new();
        for (count, access) in runs {
            match Buffers::grant(grants, peer, count, access) {
                Ok(buffers) => granted.push(buffers),
                Err(error) => {
                    for buffers in granted {
                        // These grants were never published, so ending them cannot fail.
                        let _ = buffers.end(grants);
                    }
                    return Err(error);
                }
            }
        }
        Ok(granted.try_into().expect("each run was granted"))
    }

    /// One page.
    pub(crate) fn page(&self, number: usize) -> SharedPages {
        self.0.pages.slice(number * PAGE_SIZE..(number + 1) * PAGE_SIZE)
    }

    /// All pages, for ends of frames.
    pub(crate) fn as_pages(&self) -> Arc<dyn Pages> {
        Arc::new(FramePages(self.0.pages.clone()))
    }

    /// Its grant.
    pub(crate) fn gref(&self, number: usize) -> GrantRef {
        self.0.grefs[number]
    }

    /// The grants of all pages.
    pub(crate) fn grefs(&self) -> impl Iterator<Item = GrantRef> + '_ {
        self.0.grefs.iter().copied()
    }

    /// Copies bytes into a page.
    pub(crate) fn fill(&self, number: u16, bytes: &[u8]) {
        self.0.pages.copy_from(usize::from(number) * PAGE_SIZE, bytes);
    }

    /// Prefetches the first `len` bytes of a page, to be written.
    pub(crate) fn prefetch(&self, number: u16, len: usize) {
        self.0.pages.prefetch(usize::from(number) * PAGE_SIZE, len, Intent::Write);
    }

    /// Copies bytes out of a page.
    pub(crate) fn read(&self, number: u16, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= PAGE_SIZE, "a read beyond its page");
        self.0.pages.copy_to(usize::from(number) * PAGE_SIZE + offset, into);
    }

    /// Ends all grants and gives the pages back.
    pub(crate) fn end(self, grants: &mut impl GrantTable) -> Result<(), StillInUse> {
        grants.end(self.0)
    }
}

/// Pages that ends of frames are in.
#[derive(Debug)]
struct FramePages(SharedPages);

impl Pages for FramePages {
    fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), DropReason> {
        self.0.copy_to(at, into);
        Ok(())
    }

    fn kind(&self) -> Ends {
        Ends::OWN
    }

    fn memory(&self) -> &dyn Any {
        &self.0
    }
}
