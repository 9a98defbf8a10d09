//! A backend's access to the pages of other domains.

use std::io;
use std::ops::Range;

use ringway_hypervisor::{Access, ForeignMemory, ForeignPage, GrantCopy, GrantStatus, PageCopy};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::Loopback;
use crate::domain::DomainIndex;
use crate::fault::FaultPoint;
use crate::state::MappingId;

/// One worker's handle. A call of copies allocates nothing.
#[derive(Debug, Clone)]
pub struct LoopbackMemory {
    machine: Loopback,
    domid: DomId,
    user: DomainIndex,
}

/// Ends a mapping when it is dropped.
struct Mapping {
    machine: Loopback,
    id: MappingId,
}

impl LoopbackMemory {
    pub(crate) fn new(machine: Loopback, domid: DomId, user: DomainIndex) -> LoopbackMemory {
        LoopbackMemory { machine, domid, user }
    }

    /// `copy_one` gets the foreign page, does the rest of an operation and returns how many local
    /// pages that touched; `None` if it names no local bytes.
    fn copy_each(
        &mut self,
        peer: DomId,
        access: Access,
        ops: &mut [GrantCopy],
        mut copy_one: impl FnMut(&GrantCopy, &SharedPages) -> Option<usize>,
    ) -> io::Result<()> {
        let mut state = self.machine.state();
        state.caller(self.user)?;
        let Some(owner) = state.owner(peer) else {
            ops.iter_mut().for_each(|op| op.status = GrantStatus::BadDomain);
            return Ok(());
        };
        if state.fails(owner, FaultPoint::CopyCall) {
            return Err(io::Error::other("a planned fault refused to copy"));
        }
        for op in ops {
            if usize::from(op.offset) + usize::from(op.len) > PAGE_SIZE {
                state.domain_mut(self.user).copies_out_of_page += 1;
                op.status = GrantStatus::BadCopyArg;
                continue;
            }
            let page = state.copied_page(owner, self.domid, op.gref, access);
            op.status = match page.map(|page| copy_one(op, page)) {
                Ok(Some(touched)) => {
                    state.domain_mut(self.user).copy_operations += touched;
                    GrantStatus::Okay
                }
                Ok(None) => GrantStatus::BadCopyArg,
                Err(status) => status,
            };
        }
        Ok(())
    }
}

impl ForeignMemory for LoopbackMemory {
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage> {
        let (page, id) = self.machine.state().map(self.user, peer, gref, access)?;
        Ok(ForeignPage::new(page, Mapping { machine: self.machine.clone(), id }))
    }

    fn copy_from_peer<L: AsMut<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()> {
        self.copy_each(peer, Access::ReadOnly, ops, |op, page| {
            let local =
                locals.get_mut(usize::from(op.local))?.as_mut().get_mut(local_range(op)?)?;
            page.copy_to(usize::from(op.offset), local);
            Some(pages_of(local))
        })
    }

    fn copy_to_peer<L: AsRef<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()> {
        self.copy_each(peer, Access::ReadWrite, ops, |op, page| {
            let local = locals.get(usize::from(op.local))?.as_ref().get(local_range(op)?)?;
            page.copy_from(usize::from(op.offset), local);
            Some(pages_of(local))
        })
    }

    fn copy_between_peers(&mut self, to: DomId, ops: &mut [PageCopy]) -> io::Result<()> {
        let mut state = self.machine.state();
        state.caller(self.user)?;
        let Some(target) = state.owner(to) else {
            ops.iter_mut().for_each(|op| op.status = GrantStatus::BadDomain);
            return Ok(());
        };
        if state.fails(target, FaultPoint::CopyCall) {
            return Err(io::Error::other("a planned fault refused to copy"));
        }
        state.domain_mut(self.user).copy_operations += ops.len();
        for op in ops {
            if !op.is_in_pages() {
                state.domain_mut(self.user).copies_out_of_page += 1;
                op.status = GrantStatus::BadCopyArg;
                continue;
            }
            op.status = match state.copy_across(target, self.domid, op) {
                Ok(()) => GrantStatus::Okay,
                Err(status) => status,
            };
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.machine.state().unmap(self.id);
    }
}

/// How many pages hold these bytes.
fn pages_of(bytes: &[u8]) -> usize {
    let range = bytes.as_ptr_range();
    range.end.addr().div_ceil(PAGE_SIZE) - range.start.addr() / PAGE_SIZE
}

fn local_range(op: &GrantCopy) -> Option<Range<usize>> {
    let start = usize::try_from(op.local_offset).ok()?;
    Some(start..start.checked_add(usize::from(op.len))?)
}
