//! The switch process's end: access to the pages of a trunk.

use std::io;
use std::ops::Range;

use ringway_hypervisor::{Access, ForeignMemory, ForeignPage, GrantCopy, GrantStatus, PageCopy};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

/// The memory of one trunk. A grant is the number of a page in it; all pages may be read and
/// written, because none belongs to another tenant.
#[derive(Debug)]
pub struct TrunkMemory {
    pages: SharedPages,
}

impl TrunkMemory {
    pub(crate) fn new(pages: SharedPages) -> TrunkMemory {
        TrunkMemory { pages }
    }

    /// Where a page begins, if there is such a page.
    #[inline]
    fn start_of(&self, gref: GrantRef) -> Option<usize> {
        let start = usize::try_from(gref.0).ok()?.checked_mul(PAGE_SIZE)?;
        (start < self.pages.len()).then_some(start)
    }

    /// `copy_one` gets the offset in the trunk's memory; it returns `None` if the operation names
    /// no local bytes.
    #[inline]
    fn copy_each(
        &self,
        ops: &mut [GrantCopy],
        mut copy_one: impl FnMut(&GrantCopy, &SharedPages, usize) -> Option<()>,
    ) {
        for op in ops {
            op.status = match self.start_of(op.gref) {
                None => GrantStatus::BadGrantRef,
                Some(_) if usize::from(op.offset) + usize::from(op.len) > PAGE_SIZE => {
                    GrantStatus::BadCopyArg
                }
                Some(start) => match copy_one(op, &self.pages, start + usize::from(op.offset)) {
                    Some(()) => GrantStatus::Okay,
                    None => GrantStatus::BadCopyArg,
                },
            };
        }
    }
}

impl ForeignMemory for TrunkMemory {
    fn map(&mut self, _peer: DomId, gref: GrantRef, _access: Access) -> io::Result<ForeignPage> {
        let start = self.start_of(gref).ok_or(io::ErrorKind::NotFound)?;
        Ok(ForeignPage::new(self.pages.slice(start..start + PAGE_SIZE), ()))
    }

    #[inline]
    fn copy_from_peer<L: AsMut<[u8]>>(
        &mut self,
        _peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()> {
        self.copy_each(ops, |op, memory, start| {
            let local = locals.get_mut(usize::from(op.local))?;
            memory.copy_to(start, local.as_mut().get_mut(local_range(op)?)?);
            Some(())
        });
        Ok(())
    }

    #[inline]
    fn copy_to_peer<L: AsRef<[u8]>>(
        &mut self,
        _peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()> {
        self.copy_each(ops, |op, memory, start| {
            let local = locals.get(usize::from(op.local))?;
            memory.copy_from(start, local.as_ref().get(local_range(op)?)?);
            Some(())
        });
        Ok(())
    }

    /// Refuses every operation: a trunk reaches no memory except its own.
    fn copy_between_peers(&mut self, _to: DomId, ops: &mut [PageCopy]) -> io::Result<()> {
        ops.iter_mut().for_each(|op| op.status = GrantStatus::BadDomain);
        Ok(())
    }
}

#[inline]
fn local_range(op: &GrantCopy) -> Option<Range<usize>> {
    let start = usize::try_from(op.local_offset).ok()?;
    Some(start..start.checked_add(usize::from(op.len))?)
}
