//! A backend's access to other domains' memory, checked against their grant tables.

use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use ringway_hypervisor::{Access, ForeignMemory, ForeignPage, GrantCopy, GrantStatus, PageCopy};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::peers::{Peer, Peers};
use crate::table::Use;

/// One worker's handle. A copy between domains takes no lock, makes no system call and allocates
/// nothing, except the first one for a peer after that peer, or any other, was last unmapped.
#[derive(Debug)]
pub struct EmuMemory {
    shared: Arc<Peers>,
    /// A copy of the peers in `shared` as of `epoch`.
    peers: BTreeMap<DomId, Arc<Peer>>,
    epoch: u64,
}

/// A grant in use for copying.
struct GrantUse<'peer> {
    peer: &'peer Peer,
    gref: GrantRef,
    /// Where the frame starts in the peer's memory, in bytes.
    start: usize,
    begun: Use,
}

impl EmuMemory {
    pub(crate) fn new(shared: Arc<Peers>) -> EmuMemory {
        EmuMemory { epoch: shared.epoch(), shared, peers: BTreeMap::new() }
    }

    /// `None` if there is no such domain.
    #[inline]
    fn find(&mut self, domid: DomId) -> io::Result<Option<&Arc<Peer>>> {
        let epoch = self.shared.epoch();
        if self.epoch != epoch {
            self.peers.clear();
            self.epoch = epoch;
        }
        match self.peers.entry(domid) {
            Entry::Occupied(known) => Ok(Some(known.into_mut())),
            Entry::Vacant(unknown) => match self.shared.find(domid) {
                Ok(peer) => Ok(Some(unknown.insert(peer))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// `copy_one` gets the peer's memory and the position in it, and does the rest of the
    /// operation; it fails with `BadCopyArg` if that names no local bytes.
    #[inline]
    fn copy_each(
        &mut self,
        domid: DomId,
        access: Access,
        ops: &mut [GrantCopy],
        mut copy_one: impl FnMut(&GrantCopy, &SharedPages, usize) -> Option<()>,
    ) -> io::Result<()> {
        let ours = self.shared.ours;
        let Some(peer) = self.find(domid)? else {
            ops.iter_mut().for_each(|op| op.status = GrantStatus::BadDomain);
            return Ok(());
        };
        let mut copy = |op: &GrantCopy| {
            if usize::from(op.offset) + usize::from(op.len) > PAGE_SIZE {
                return Err(GrantStatus::BadCopyArg);
            }
            // Not moved, as by `?`: see "Structs that stall" in HACKING.md.
            let held = GrantUse::begin(peer, op.gref, ours, access);
            let start = match &held {
                Ok(held) => held.start + usize::from(op.offset),
                Err(status) => return Err(*status),
            };
            copy_one(op, &peer.memory, start).ok_or(GrantStatus::BadCopyArg)
        };
        for op in ops {
            op.status = match copy(op) {
                Ok(()) => GrantStatus::Okay,
                Err(status) => status,
            };
        }
        Ok(())
    }
}

impl ForeignMemory for EmuMemory {
    /// A page mapped `ReadOnly` must not be written; on Xen that would fault.
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage> {
        let (page, mapping) = self.shared.map(peer, gref, access)?;
        Ok(ForeignPage::new(page, mapping))
    }

    /// Fails as a whole only if this domain is not a backend, or cannot map the peer.
    #[inline]
    fn copy_from_peer<L: AsMut<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()> {
        self.copy_each(peer, Access::ReadOnly, ops, |op, memory, start| {
            let local = locals.get_mut(usize::from(op.local))?;
            memory.copy_to(start, local.as_mut().get_mut(local_range(op)?)?);
            Some(())
        })
    }

    #[inline]
    fn copy_to_peer<L: AsRef<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()> {
        self.copy_each(peer, Access::ReadWrite, ops, |op, memory, start| {
            let local = locals.get(usize::from(op.local))?;
            memory.copy_from(start, local.as_ref().get(local_range(op)?)?);
            Some(())
        })
    }

    /// Fails as a whole as the other copies, but only for the peer that is written: no guest
    /// suffers from a peer whose pages are read.
    fn copy_between_peers(&mut self, to: DomId, ops: &mut [PageCopy]) -> io::Result<()> {
        let ours = self.shared.ours;
        let Some(target) = self.find(to)?.map(Arc::clone) else {
            ops.iter_mut().for_each(|op| op.status = GrantStatus::BadDomain);
            return Ok(());
        };
        for op in ops {
            op.status = match self.find(op.from) {
                Err(_) | Ok(None) => GrantStatus::BadDomain,
                Ok(Some(source)) => match copy_across(source, &target, op, ours) {
                    Ok(()) => GrantStatus::Okay,
                    Err(status) => status,
                },
            };
        }
        Ok(())
    }
}

impl GrantUse<'_> {
    #[inline]
    fn begin(
        peer: &Peer,
        gref: GrantRef,
        user: DomId,
        access: Access,
    ) -> Result<GrantUse<'_>, GrantStatus> {
        let begun = peer.table.begin_use(gref, user, access)?;
        match peer.frame_start(begun.frame) {
            Some(start) => Ok(GrantUse { peer, gref, start, begun }),
            None => {
                peer.table.end_use(gref, begun);
                Err(GrantStatus::BadPage)
            }
        }
    }
}

impl Drop for GrantUse<'_> {
    #[inline]
    fn drop(&mut self) {
        self.peer.table.end_use(self.gref, self.begun);
    }
}

/// Carries out one copy between two peers for the domain `user`.
#[inline]
fn copy_across(
    source: &Peer,
    target: &Peer,
    op: &PageCopy,
    user: DomId,
) -> Result<(), GrantStatus> {
    if !op.is_in_pages() {
        return Err(GrantStatus::BadCopyArg);
    }
    let from = GrantUse::begin(source, op.from_gref, user, Access::ReadOnly)?;
    let to = GrantUse::begin(target, op.to_gref, user, Access::ReadWrite)?;
    let from_start = from.start + usize::from(op.from_offset);
    let to_start = to.start + usize::from(op.to_offset);
    source.memory.copy_across(from_start, &target.memory, to_start, op.len.into());
    Ok(())
}

#[inline]
fn local_range(op: &GrantCopy) -> Option<Range<usize>> {
    let start = usize::try_from(op.local_offset).ok()?;
    Some(start..start.checked_add(usize::from(op.len))?)
}
