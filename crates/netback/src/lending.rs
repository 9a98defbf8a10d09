//! Ends of long packets that stay in the guest's pages until they are copied into the pages of the
//! guest that receives them.
//!
//! The start of such a packet is copied as always, and only the copy is inspected. The rest becomes
//! the frame's [`Body`], which refers to the grants of its slots. If the frame leaves by another
//! vif in the same round, its body is copied from page to page; otherwise it is gathered
//! (`Frame::linearize`). The slots have their responses when the frame no longer refers to them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use ringway_datapath::{Body, DropReason, Pages, QueueCounters, Receipt};
use ringway_hypervisor::{ForeignMemory, GrantCopy, GrantStatus};
use ringway_wire::netif::{TX_RING_SLOTS, TxRequest};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

/// Bytes that a packet must have after its head to be lent: for fewer, a second call costs more
/// than a second copy.
pub(crate) const BODY_LEN_MIN: usize = 2 * PAGE_SIZE;
/// The fewest bytes of a packet that are copied at once. No honest TCP segment has longer headers.
pub(crate) const HEAD_LEN_MIN: usize = 256;
/// Long packets that are copied as a whole after one had to be gathered: those behind it are likely
/// to go the same way, and gathering costs a call for each.
const PAUSE: u32 = 64;
/// Copies of one call that gathers a body.
const COPIES_PER_CALL: usize = 16;

/// What a queue needs to lend its guest's pages to frames.
pub(crate) struct Lending<M> {
    pages: Arc<LentPages<M>>,
    /// The pages, in the form that bodies refer to.
    as_pages: Arc<dyn Pages>,
    /// Long packets to be copied as a whole.
    pause: u32,
}

/// The pages of a tx ring's slots as one run of bytes, in which those of slot n begin at n pages.
pub(crate) struct LentPages<M> {
    peer: DomId,
    grefs: [AtomicU32; TX_RING_SLOTS],
    was_gathered: AtomicBool,
    /// Counters of the queue, whose thread is the only one with frames that have these pages.
    counters: Arc<QueueCounters>,
    /// The handle for gathering: a caller that gathers takes it, and puts it back. Only the queue's
    /// own thread has frames with these pages, so it is always there, and no caller waits.
    memory: ArrayQueue<M>,
}

impl<M: ForeignMemory + Send + 'static> Lending<M> {
    pub(crate) fn new(peer: DomId, memory: M, counters: Arc<QueueCounters>) -> Lending<M> {
        let lent = Arc::new(LentPages::new(peer, memory, counters));
        let pages = Arc::clone(&lent);
        let as_pages: Arc<dyn Pages> = pages;
        Lending { as_pages, pages: lent, pause: 0 }
    }
}

impl<M> Lending<M> {
    /// Whether the next long packet should be lent.
    pub(crate) fn is_worthwhile(&mut self) -> bool {
        self.pages.counters.add_tx_long(1);
        if self.pages.was_gathered.swap(false, Ordering::Relaxed) {
            self.pause = PAUSE;
        }
        let is_worthwhile = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_worthwhile
    }

    /// An empty body. `receipt` is returned when nothing refers to its pages any more.
    pub(crate) fn body(&self, receipt: Receipt) -> Body {
        Body::new(Arc::clone(&self.as_pages), receipt)
    }

    /// Adds the bytes of the slot in this place of the ring to a body; false if the body would have
    /// too many pieces.
    #[must_use]
    pub(crate) fn push(&self, body: &mut Body, place: usize, slot: &TxRequest, len: u16) -> bool {
        self.pages.grefs[place].store(slot.gref, Ordering::Relaxed);
        len == 0 || body.push(place * PAGE_SIZE + usize::from(slot.offset), usize::from(len))
    }
}

impl<M> LentPages<M> {
    fn new(peer: DomId, memory: M, counters: Arc<QueueCounters>) -> LentPages<M> {
        let handle = ArrayQueue::new(1);
        assert!(handle.push(memory).is_ok(), "it has room for one");
        LentPages {
            peer,
            grefs: [const { AtomicU32::new(0) }; TX_RING_SLOTS],
            was_gathered: AtomicBool::new(false),
            counters,
            memory: handle,
        }
    }

    /// Counts a frame whose body went from page to page.
    pub(crate) fn count_lent(&self) {
        self.counters.add_tx_lent(1);
    }

    /// The guest that lends them.
    pub(crate) fn peer(&self) -> DomId {
        self.peer
    }

    /// The grant of the page that has the byte `at`.
    pub(crate) fn gref(&self, at: usize) -> GrantRef {
        GrantRef(self.grefs[at / PAGE_SIZE].load(Ordering::Relaxed))
    }
}

impl<M: ForeignMemory> LentPages<M> {
    fn gather(&self, memory: &mut M, at: usize, into: &mut [u8]) -> Result<(), DropReason> {
        let mut done = 0;
        while done < into.len() {
            let mut copies = ArrayVec::<GrantCopy, COPIES_PER_CALL>::new();
            while done < into.len() && !copies.is_full() {
                let from = at + done;
                let len = (into.len() - done).min(PAGE_SIZE - from % PAGE_SIZE);
                copies.push(GrantCopy {
                    gref: self.gref(from),
                    offset: u16::try_from(from % PAGE_SIZE).expect("it is in a page"),
                    len: u16::try_from(len).expect("a page is 4096 bytes"),
                    local: 0,
                    local_offset: u32::try_from(done).expect("a frame is 64 KiB"),
                    status: GrantStatus::GeneralError,
                });
                done += len;
            }
            let copied = memory.copy_from_peer(self.peer, &mut copies, &mut [&mut *into]);
            let is_whole = copies.iter().all(|copy| copy.status == GrantStatus::Okay);
            if copied.is_err() || !is_whole {
                return Err(DropReason::GrantCopy);
            }
        }
        Ok(())
    }
}

impl<M: ForeignMemory + Send + 'static> Pages for LentPages<M> {
    fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), DropReason> {
        self.was_gathered.store(true, Ordering::Relaxed);
        // A second thread would break the contract of `VifQueue::lend_pages`; its frame is dropped.
        let mut memory = self.memory.pop().ok_or(DropReason::GrantCopy)?;
        let gathered = self.gather(&mut memory, at, into);
        // It cannot be full: this is the only handle.
        let _ = self.memory.push(memory);
        gathered
    }

    fn are_lent(&self) -> bool {
        true
    }

    fn memory(&self) -> &dyn Any {
        self
    }
}

impl<M> fmt::Debug for LentPages<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentPages").field("peer", &self.peer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ringway_hypervisor::{Access, GrantTable, Hypervisor};
    use ringway_loopback::{Limits, Loopback};

    use super::*;

    #[test]
    fn a_caller_that_gathers_never_waits() {
        let (host, guest, machine) = (DomId(0), DomId(7), Loopback::new());
        let [there, here] = [host, guest]
            .map(|domid| machine.create_domain(domid, Limits::default()).expect("it is new"));
        let mut grants = here.grants().expect("always made");
        let granted = grants.share(host, 1, Access::ReadOnly).expect("there is memory");
        granted.pages.copy_from(8, &[7; 4]);
        let memory = there.memory().expect("always made");
        let pages = LentPages::new(guest, memory, Arc::default());
        pages.grefs[0].store(granted.grefs[0].0, Ordering::Relaxed);

        let mut bytes = [0; 4];
        let handle = pages.memory.pop().expect("it is there");
        assert_eq!(pages.copy_to(8, &mut bytes), Err(DropReason::GrantCopy));
        assert!(pages.memory.push(handle).is_ok());
        for _ in 0..2 {
            assert_eq!(pages.copy_to(8, &mut bytes), Ok(()));
            assert_eq!(bytes, [7; 4]);
        }
    }
}
