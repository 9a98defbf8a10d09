//! The tenant's end: pages that the switch process may use.

use std::io;
use std::ops::Range;

use ringway_hypervisor::{Access, GrantTable, GrantedPages, StillInUse};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

/// The pages of one queue. Each is granted from the start, by its number in the trunk's memory:
/// taking pages means choosing the next ones. They belong to the queue as long as the trunk exists.
#[derive(Debug)]
pub struct TrunkGrants {
    memory: SharedPages,
    left: Range<usize>,
}

impl TrunkGrants {
    pub(crate) fn new(memory: &SharedPages, pages: Range<usize>) -> TrunkGrants {
        TrunkGrants { memory: memory.clone(), left: pages }
    }
}

impl GrantTable for TrunkGrants {
    fn share(&mut self, _peer: DomId, count: usize, _access: Access) -> io::Result<GrantedPages> {
        if count == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if count > self.left.len() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let first = self.left.start;
        self.left.start += count;
        let number = |page| u32::try_from(page).map_err(io::Error::other);
        let grefs = (first..first + count).map(|page| number(page).map(GrantRef));
        let pages = self.memory.slice(first * PAGE_SIZE..(first + count) * PAGE_SIZE);
        let id = number(first)?.into();
        Ok(GrantedPages { pages, grefs: grefs.collect::<Result<_, _>>()?, id })
    }

    /// Does nothing: the pages are freed with the trunk.
    fn end(&mut self, _granted: GrantedPages) -> Result<(), StillInUse> {
        Ok(())
    }
}
