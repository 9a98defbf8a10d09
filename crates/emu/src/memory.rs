//! A backend's access to other domains' memory, checked against their grant tables.

use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use ringway_hypervisor::{Access, ForeignMemory, ForeignPage, GrantCopy, GrantStatus, PageCopy};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::peers::{Peer, Peers};
use crate::span::Span;

/// One worker's handle. A copy between domains takes no lock, makes no system call and allocates
/// nothing, except the first one for a peer after that peer, or any other, was last unmapped.
#[derive(Debug)]
pub struct EmuMemory {
    shared: Arc<Peers>,
    /// A copy of the peers in `shared` as of `epoch`.
    peers: BTreeMap<DomId, Arc<Peer>>,
    epoch: u64,
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

    /// Carries out operations, and those as one that continue one another in the peer's memory and
    /// in a local buffer: the pages of a long frame have consecutive grants.
    ///
    /// `copy` gets the first of them, the number of bytes of all of them, the peer's memory and the
    /// position in it, and does the rest; it fails with `BadCopyArg` if that names no local bytes.
    #[inline]
    fn copy_each(
        &mut self,
        domid: DomId,
        access: Access,
        ops: &mut [GrantCopy],
        mut copy: impl FnMut(&GrantCopy, usize, &SharedPages, usize) -> Option<()>,
    ) -> io::Result<()> {
        let ours = self.shared.ours;
        let Some(peer) = self.find(domid)? else {
            ops.iter_mut().for_each(|op| op.status = GrantStatus::BadDomain);
            return Ok(());
        };
        let peer = &**peer;
        let mut ops = ops;
        while let [first, others @ ..] = ops {
            if usize::from(first.offset) + usize::from(first.len) > PAGE_SIZE {
                first.status = GrantStatus::BadCopyArg;
                ops = others;
                continue;
            }
            // Not moved, as by `?`: see "Structs that stall" in HACKING.md.
            let span = match Span::begin(peer, first.gref, ours, access) {
                Ok(span) => span,
                Err(status) => {
                    first.status = status;
                    ops = others;
                    continue;
                }
            };
            let alone = Run { span, len: first.len.into(), count: 0 };
            let run = match others {
                [next, ..] if next.local == first.local => alone.with(first, others),
                _ => alone,
            };
            let copied = copy(first, run.len, &peer.memory, run.span.at(first.offset));
            run.span.end();
            first.status =
                if copied.is_some() { GrantStatus::Okay } else { GrantStatus::BadCopyArg };
            let (continuing, rest) = others.split_at_mut(run.count);
            continuing.iter_mut().for_each(|op| op.status = first.status);
            ops = rest;
        }
        Ok(())
    }
}

/// An operation with those that continue it.
struct Run<'peer> {
    span: Span<'peer>,
    /// The bytes of all of them.
    len: usize,
    /// The number of those that continue it.
    count: usize,
}

impl Run<'_> {
    /// Adds as many of the next operations as continue the first. Not inlined, so that the path of
    /// short frames stays short.
    #[inline(never)]
    fn with(mut self, first: &GrantCopy, others: &[GrantCopy]) -> Self {
        for next in others {
            let end = usize::from(first.offset) + self.len;
            let local_end = usize::try_from(first.local_offset).map(|at| at + self.len);
            let continues = next.local == first.local
                && usize::try_from(next.local_offset) == local_end
                && usize::from(next.offset) + usize::from(next.len) <= PAGE_SIZE
                && self.span.reaches(end, next.gref, next.offset);
            if !continues {
                break;
            }
            self.len += usize::from(next.len);
            self.count += 1;
        }
        self
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
        self.copy_each(peer, Access::ReadOnly, ops, |op, len, memory, start| {
            let local = locals.get_mut(usize::from(op.local))?;
            memory.copy_to(start, local.as_mut().get_mut(local_range(op, len)?)?);
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
        self.copy_each(peer, Access::ReadWrite, ops, |op, len, memory, start| {
            let local = locals.get(usize::from(op.local))?;
            memory.copy_from(start, local.as_ref().get(local_range(op, len)?)?);
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
        let mut ops = ops;
        while let [first, ..] = ops {
            let (status, count) = match self.find(first.from) {
                Err(_) | Ok(None) => (GrantStatus::BadDomain, 1),
                Ok(Some(source)) => copy_across(source, &target, ops, ours),
            };
            let (done, rest) = ops.split_at_mut(count);
            done.iter_mut().for_each(|op| op.status = status);
            ops = rest;
        }
        Ok(())
    }
}

/// Carries out the first of these copies between two peers for the domain `user`, with those that
/// continue it in the memory of both; returns their outcome and number.
fn copy_across(
    source: &Peer,
    target: &Peer,
    ops: &[PageCopy],
    user: DomId,
) -> (GrantStatus, usize) {
    let [first, others @ ..] = ops else { return (GrantStatus::Okay, 0) };
    if !first.is_in_pages() {
        return (GrantStatus::BadCopyArg, 1);
    }
    let mut from = match Span::begin(source, first.from_gref, user, Access::ReadOnly) {
        Ok(from) => from,
        Err(status) => return (status, 1),
    };
    let mut to = match Span::begin(target, first.to_gref, user, Access::ReadWrite) {
        Ok(to) => to,
        Err(status) => {
            from.end();
            return (status, 1);
        }
    };
    let (mut len, mut count) = (usize::from(first.len), 1);
    for next in others {
        let [from_end, to_end] =
            [first.from_offset, first.to_offset].map(|offset| usize::from(offset) + len);
        let continues = next.from == first.from
            && next.is_in_pages()
            && from.reaches(from_end, next.from_gref, next.from_offset)
            && to.reaches(to_end, next.to_gref, next.to_offset);
        if !continues {
            break;
        }
        len += usize::from(next.len);
        count += 1;
    }
    let (at, to_at) = (from.at(first.from_offset), to.at(first.to_offset));
    source.memory.copy_across(at, &target.memory, to_at, len);
    to.end();
    from.end();
    (GrantStatus::Okay, count)
}

/// The bytes of a local buffer for `len` bytes from this operation on.
#[inline]
fn local_range(op: &GrantCopy, len: usize) -> Option<Range<usize>> {
    let start = usize::try_from(op.local_offset).ok()?;
    Some(start..start.checked_add(len)?)
}
