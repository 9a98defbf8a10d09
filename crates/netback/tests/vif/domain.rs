//! One guest as a queue sees it: its memory, its grants and its event channels, in this process and
//! with faults that a test asks for. It judges nothing: what a real hypervisor promises is
//! the subject of the conformance suite.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ringway_hypervisor::{
    Access, EventChannel, ForeignMemory, ForeignPage, GrantCopy, GrantStatus, GrantTable,
    GrantedPages, QueueEvents, StillInUse,
};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// The guest.
pub(crate) const GUEST: DomId = DomId(7);
/// The domain with the backend.
pub(crate) const HOST: DomId = DomId(0);

const PAGES: usize = 1024;
/// The first reference given out, as the first ones are a toolstack's.
const FIRST_GREF: u32 = 8;

/// A handle on the guest; clones share it.
#[derive(Clone)]
pub(crate) struct Domain(Arc<Mutex<State>>);

struct State {
    memory: SharedPages,
    pages_taken: usize,
    grants: Vec<Option<Grant>>,
    /// Fails the next batch of copies as a whole.
    fails_next_call: bool,
    /// Batches of copies so far.
    calls: usize,
}

struct Grant {
    frame: usize,
    access: Access,
    is_mapped: bool,
}

impl Domain {
    pub(crate) fn new() -> Domain {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memfd_create works");
        let len = PAGES * PAGE_SIZE;
        ftruncate(&memory, len.try_into().expect("a few megabytes")).expect("a memfd can grow");
        Domain(Arc::new(Mutex::new(State {
            memory: SharedPages::map(&memory, 0, len).expect("mmap works"),
            pages_taken: 0,
            grants: Vec::new(),
            fails_next_call: false,
            calls: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder panics")
    }

    /// Withdraws a grant, whatever it is used for.
    pub(crate) fn revoke(&self, gref: GrantRef) {
        self.state().grants[index(gref)] = None;
    }

    /// Makes the next batch of copies fail as a whole.
    pub(crate) fn fail_next_call(&self) {
        self.state().fails_next_call = true;
    }

    /// How many batches of copies were made.
    pub(crate) fn calls(&self) -> usize {
        self.state().calls
    }

    /// Maps both rings of a queue.
    pub(crate) fn map_rings(&mut self, rings: [GrantRef; 2]) -> [ForeignPage; 2] {
        rings.map(|gref| self.map(GUEST, gref, Access::ReadWrite).expect("the rings are granted"))
    }

    /// Grants that have not ended.
    pub(crate) fn grants_in_use(&self) -> usize {
        self.state().grants.iter().flatten().count()
    }
}

fn index(gref: GrantRef) -> usize {
    usize::try_from(gref.0.wrapping_sub(FIRST_GREF)).expect("32 bits fit")
}

impl State {
    /// The bytes that a copy is about, or why it is refused.
    fn find(&self, peer: DomId, op: &GrantCopy, access: Access) -> Result<usize, GrantStatus> {
        if peer != GUEST {
            return Err(GrantStatus::BadDomain);
        }
        let grant = self.grants.get(index(op.gref)).and_then(Option::as_ref);
        let grant = grant.ok_or(GrantStatus::BadGrantRef)?;
        if access == Access::ReadWrite && grant.access == Access::ReadOnly {
            return Err(GrantStatus::PermissionDenied);
        }
        assert!(usize::from(op.offset) + usize::from(op.len) <= PAGE_SIZE, "{op:?} spoils a batch");
        Ok(grant.frame * PAGE_SIZE + usize::from(op.offset))
    }

    fn begin_call(&mut self) -> io::Result<()> {
        self.calls += 1;
        match std::mem::take(&mut self.fails_next_call) {
            true => Err(io::Error::other("refused by the test")),
            false => Ok(()),
        }
    }
}

fn local_range(op: &GrantCopy) -> std::ops::Range<usize> {
    let start = usize::try_from(op.local_offset).expect("a frame is small");
    start..start + usize::from(op.len)
}

impl ForeignMemory for Domain {
    fn map(&mut self, peer: DomId, gref: GrantRef, _: Access) -> io::Result<ForeignPage> {
        assert_eq!(peer, GUEST);
        let mut state = self.state();
        let grant = state.grants.get_mut(index(gref)).and_then(Option::as_mut);
        let grant = grant.ok_or(io::ErrorKind::NotFound)?;
        grant.is_mapped = true;
        let start = grant.frame * PAGE_SIZE;
        let page = state.memory.slice(start..start + PAGE_SIZE);
        Ok(ForeignPage::new(page, Mapping { domain: self.clone(), gref }))
    }

    fn copy_from_peer<L: AsMut<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()> {
        let mut state = self.state();
        state.begin_call()?;
        for op in ops {
            op.status = match state.find(peer, op, Access::ReadOnly) {
                Ok(start) => {
                    let local = locals[usize::from(op.local)].as_mut();
                    state.memory.copy_to(start, &mut local[local_range(op)]);
                    GrantStatus::Okay
                }
                Err(status) => status,
            };
        }
        Ok(())
    }

    fn copy_to_peer<L: AsRef<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()> {
        let mut state = self.state();
        state.begin_call()?;
        for op in ops {
            op.status = match state.find(peer, op, Access::ReadWrite) {
                Ok(start) => {
                    let local = locals[usize::from(op.local)].as_ref();
                    state.memory.copy_from(start, &local[local_range(op)]);
                    GrantStatus::Okay
                }
                Err(status) => status,
            };
        }
        Ok(())
    }
}

struct Mapping {
    domain: Domain,
    gref: GrantRef,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(Some(grant)) = self.domain.state().grants.get_mut(index(self.gref)) {
            grant.is_mapped = false;
        }
    }
}

impl Domain {
    /// Takes `count` pages; the number of the first frame comes with them.
    pub(crate) fn alloc_pages(&mut self, count: usize) -> io::Result<(SharedPages, u32)> {
        let mut state = self.state();
        let first = state.pages_taken;
        if first + count > PAGES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        state.pages_taken += count;
        let pages = state.memory.slice(first * PAGE_SIZE..(first + count) * PAGE_SIZE);
        Ok((pages, u32::try_from(first).expect("a guest is small")))
    }

    pub(crate) fn grant(
        &mut self,
        peer: DomId,
        frame: u32,
        access: Access,
    ) -> io::Result<GrantRef> {
        assert_eq!(peer, HOST);
        let mut state = self.state();
        let gref = FIRST_GREF + u32::try_from(state.grants.len()).expect("a table is small");
        let frame = usize::try_from(frame).expect("a guest is small");
        state.grants.push(Some(Grant { frame, access, is_mapped: false }));
        Ok(GrantRef(gref))
    }

    pub(crate) fn end_access(&mut self, gref: GrantRef) -> Result<(), StillInUse> {
        let mut state = self.state();
        let grant = &mut state.grants[index(gref)];
        if grant.as_ref().is_some_and(|grant| grant.is_mapped) {
            return Err(StillInUse { gref });
        }
        *grant = None;
        Ok(())
    }
}

impl GrantTable for Domain {
    fn share(&mut self, peer: DomId, count: usize, access: Access) -> io::Result<GrantedPages> {
        let (pages, first) = self.alloc_pages(count)?;
        let frames = (first..).take(count);
        let grefs =
            frames.map(|frame| self.grant(peer, frame, access)).collect::<Result<_, _>>()?;
        Ok(GrantedPages { pages, grefs, id: 0 })
    }

    fn end(&mut self, granted: GrantedPages) -> Result<(), StillInUse> {
        granted.grefs.into_iter().try_for_each(|gref| self.end_access(gref))
    }
}

/// One end of an event channel.
pub(crate) struct Event {
    ours: Arc<OwnedFd>,
    theirs: Arc<OwnedFd>,
    is_broken: Arc<AtomicBool>,
}

impl Event {
    pub(crate) fn pair() -> (Event, Event) {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let [a, b] = [(); 2].map(|()| Arc::new(eventfd(0, flags).expect("eventfd works")));
        let is_broken = Arc::new(AtomicBool::new(false));
        let event = |ours: &Arc<_>, theirs: &Arc<_>| {
            let (ours, theirs) = (Arc::clone(ours), Arc::clone(theirs));
            Event { ours, theirs, is_broken: Arc::clone(&is_broken) }
        };
        (event(&a, &b), event(&b, &a))
    }

    /// Lets no event through any more, from either end.
    pub(crate) fn break_channel(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// Two channels, one a direction: the frontend's ends and the backend's.
    pub(crate) fn split_pair() -> (QueueEvents<Event>, QueueEvents<Event>) {
        let ((front_tx, back_tx), (front_rx, back_rx)) = (Event::pair(), Event::pair());
        let front = QueueEvents::Split { tx: front_tx, rx: front_rx };
        (front, QueueEvents::Split { tx: back_tx, rx: back_rx })
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }
}

impl EventChannel for Event {
    fn port(&self) -> EvtchnPort {
        EvtchnPort(1)
    }

    fn notify(&self) -> io::Result<()> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(io::Error::other("refused by the test"));
        }
        rustix::io::write(&self.theirs, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    fn ack(&self) -> io::Result<bool> {
        match rustix::io::read(&self.ours, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
