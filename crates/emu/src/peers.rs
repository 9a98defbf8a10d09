//! The other domains whose memory this process has mapped, shared by its workers.

use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_hypervisor::{Access, GrantStatus};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::connection::Connection;
use crate::protocol::{Call, Reply};
use crate::table::{Table, Use};

/// All of them.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) broker: Arc<Connection>,
    pub(crate) ours: DomId,
    known: Mutex<Known>,
    /// Changes whenever a peer is forgotten, so that a worker detects a stale list with one load
    /// per call.
    epoch: AtomicU64,
}

type Known = BTreeMap<DomId, Arc<Peer>>;

/// One peer: all its memory, and its grant table.
#[derive(Debug)]
pub(crate) struct Peer {
    generation: u64,
    pub(crate) memory: SharedPages,
    pub(crate) table: Table,
    mappings: Mutex<BTreeMap<GrantRef, Mappings>>,
}

/// How often this process has a grant mapped.
#[derive(Debug, Default)]
struct Mappings {
    readers: usize,
    writers: usize,
}

/// A mapping of one granted page; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    peers: Arc<Peers>,
    peer: Arc<Peer>,
    domid: DomId,
    gref: GrantRef,
    access: Access,
}

impl Peers {
    pub(crate) fn new(broker: Arc<Connection>, ours: DomId) -> Peers {
        Peers { broker, ours, known: Mutex::default(), epoch: AtomicU64::new(0) }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The known peer, or one requested from the broker.
    ///
    /// # Errors
    /// `NotFound` without a living domain, `PermissionDenied` if we may not use other domains'
    /// grants, or what mapping reports.
    pub(crate) fn find(&self, domid: DomId) -> io::Result<Arc<Peer>> {
        match self.known().entry(domid) {
            Entry::Occupied(known) => Ok(Arc::clone(known.get())),
            Entry::Vacant(unknown) => {
                let (reply, fds) = self.broker.call_for_fd_pair(&Call::ForeignDomain(domid))?;
                Ok(Arc::clone(unknown.insert(Arc::new(Peer::open(&reply, fds)?))))
            }
        }
    }

    /// Drops a peer's memory, here and in each worker's list at its next check. A peer with a
    /// mapped page stays: its count of mappings must be unique.
    pub(crate) fn forget(&self, domid: DomId) {
        let mut known = self.known();
        if known.get(&domid).is_some_and(|peer| !peer.is_mapped()) {
            known.remove(&domid);
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// Maps one granted page.
    ///
    /// # Errors
    /// As [`ringway_hypervisor::ForeignMemory::map`].
    pub(crate) fn map(
        self: &Arc<Peers>,
        domid: DomId,
        gref: GrantRef,
        access: Access,
    ) -> io::Result<(SharedPages, Mapping)> {
        let mut known = self.known();
        let peer = self.find_again(&mut known, domid)?;
        // Still under the lock, so that no thread forgets the peer before the mapping is counted.
        let page = peer.begin_mapping(gref, self.ours, access).map_err(|status| match status {
            GrantStatus::PermissionDenied => io::ErrorKind::PermissionDenied,
            GrantStatus::BadGrantRef | GrantStatus::BadPage => io::ErrorKind::NotFound,
            _ => io::ErrorKind::Other,
        })?;
        Ok((page, Mapping { peers: Arc::clone(self), peer, domid, gref, access }))
    }

    /// The peer as the broker knows it now: the domain may have been destroyed, and its number
    /// given to another.
    fn find_again(&self, known: &mut Known, domid: DomId) -> io::Result<Arc<Peer>> {
        let (reply, fds) = self.broker.call_for_fd_pair(&Call::ForeignDomain(domid))?;
        match known.get(&domid) {
            Some(peer) if peer.generation == reply.generation() => Ok(Arc::clone(peer)),
            _ => {
                let peer = Arc::new(Peer::open(&reply, fds)?);
                known.insert(domid, Arc::clone(&peer));
                self.epoch.fetch_add(1, Ordering::Release);
                Ok(peer)
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn open(reply: &Reply, [pages, table]: [OwnedFd; 2]) -> io::Result<Peer> {
        Ok(Peer {
            generation: reply.generation(),
            memory: map_memory(&pages, reply.info().memory_bytes)?,
            table: Table::map(table)?,
            mappings: Mutex::default(),
        })
    }

    /// Byte offset of a frame in the peer's memory; `None` for a frame that it does not have.
    #[inline]
    fn frame_start(&self, frame: u32) -> Option<usize> {
        let start = usize::try_from(frame).ok()?.checked_mul(PAGE_SIZE)?;
        Some(start).filter(|start| *start < self.memory.len())
    }

    /// Marks a use of a granted frame, and returns where the frame starts in the peer's memory, in
    /// bytes.
    #[inline(always)]
    pub(crate) fn begin_use(
        &self,
        gref: GrantRef,
        user: DomId,
        access: Access,
    ) -> Result<(Use, usize), GrantStatus> {
        let begun = self.table.begin_use(gref, user, access)?;
        match self.frame_start(begun.frame) {
            Some(start) => Ok((begun, start)),
            None => {
                self.table.end_use(gref, begun);
                Err(GrantStatus::BadPage)
            }
        }
    }

    fn begin_mapping(
        &self,
        gref: GrantRef,
        user: DomId,
        access: Access,
    ) -> Result<SharedPages, GrantStatus> {
        let mut mappings = self.mappings();
        let (_, start) = self.begin_use(gref, user, access)?;
        let counts = mappings.entry(gref).or_default();
        match access {
            Access::ReadOnly => counts.readers += 1,
            Access::ReadWrite => counts.writers += 1,
        }
        Ok(self.memory.slice(start..start + PAGE_SIZE))
    }

    /// Clears the marks that none of our mappings needs any more.
    fn end_mapping(&self, gref: GrantRef, access: Access) {
        let mut mappings = self.mappings();
        let Some(counts) = mappings.get_mut(&gref) else { return };
        match access {
            Access::ReadOnly => counts.readers -= 1,
            Access::ReadWrite => counts.writers -= 1,
        }
        if counts.writers == 0 {
            self.table.clear_marks(gref, Access::ReadWrite);
        }
        if counts.writers == 0 && counts.readers == 0 {
            self.table.clear_marks(gref, Access::ReadOnly);
            mappings.remove(&gref);
        }
    }

    fn is_mapped(&self) -> bool {
        !self.mappings().is_empty()
    }

    fn mappings(&self) -> MutexGuard<'_, BTreeMap<GrantRef, Mappings>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.peer.end_mapping(self.gref, self.access);
        // The last page is unmapped, so the memory can be dropped. Copies may still follow: the
        // first of them maps it again.
        self.peers.forget(self.domid);
    }
}

/// Maps a domain's memory, whose length the broker has sent.
pub(crate) fn map_memory(pages: impl AsFd, memory_bytes: u64) -> io::Result<SharedPages> {
    let len = usize::try_from(memory_bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    SharedPages::map(pages, 0, len)
}
