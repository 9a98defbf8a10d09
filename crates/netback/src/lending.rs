//! Ends of long packets that stay in the guest's pages until they are copied into the pages of the
//! guest that receives them.
//!
//! The start of such a packet is copied as always, and only the copy is inspected. The rest becomes
//! the frame's [`End`], which refers to the grants of its slots. If the frame leaves by another vif
//! in the same round, its end is copied from page to page; otherwise the frame is completed
//! (`FramePool::complete`). The slots have their responses at the end of the round.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use ringway_datapath::{DropReason, End, Ends, FramePool, Lender, LoanUse, Pages, QueueCounters};
use ringway_hypervisor::{ForeignMemory, GrantCopy, GrantStatus};
use ringway_wire::netif::{TX_RING_SLOTS, TxRequest, TxResponse};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::staging::{StagedMemory, StagedPages};

/// Bytes that a packet must have after its head to be lent: for fewer, a second call costs more
/// than a second copy.
pub(crate) const END_LEN_MIN: usize = 2 * PAGE_SIZE;
/// The fewest bytes of a packet that are copied at once. No honest TCP segment has longer headers.
pub(crate) const HEAD_LEN_MIN: usize = 256;
/// Long packets that are copied as a whole after a round in which one had to be completed: those
/// behind it are likely to go the same way, and completing costs a call for each.
const PAUSE: u32 = 64;
/// Copies of one call that completes a frame.
const COPIES_PER_CALL: usize = 16;

/// What a queue needs to lend its guest's pages to frames.
pub(crate) struct Lending<M> {
    pages: Arc<LentPages<M>>,
    /// The pages, in the form that ends refer to.
    as_pages: Arc<dyn Pages>,
    /// Their number in the pool, once something was lent in this round.
    lender: Option<Lender>,
    /// Responses that wait for the end of the round, in ring order.
    pub(crate) unanswered: Vec<TxResponse>,
    /// Long packets to be copied as a whole.
    pause: u32,
    counters: Arc<QueueCounters>,
}

/// The pages of a tx ring's slots as one run of bytes, in which those of slot n begin at n pages.
pub(crate) struct LentPages<M> {
    peer: DomId,
    grefs: [AtomicU32; TX_RING_SLOTS],
    /// The handle for completing frames: a caller takes it, and puts it back. Only the queue's own
    /// thread has frames with these pages, so it is always there, and no caller waits.
    memory: ArrayQueue<M>,
    /// Those of the guest's pages that stay mapped, if any may.
    staged: OnceLock<Arc<StagedPages>>,
}

impl<M: ForeignMemory + Send + 'static> Lending<M> {
    pub(crate) fn new(peer: DomId, memory: M, counters: Arc<QueueCounters>) -> Lending<M> {
        let lent = Arc::new(LentPages::new(peer, memory));
        let pages = Arc::clone(&lent);
        let as_pages: Arc<dyn Pages> = pages;
        let unanswered = Vec::with_capacity(TX_RING_SLOTS);
        Lending { as_pages, pages: lent, lender: None, unanswered, pause: 0, counters }
    }
}

impl<M> Lending<StagedMemory<M>> {
    /// Uses pages that stay mapped, too.
    pub(crate) fn stage(&self, pages: &Arc<StagedPages>) {
        // They are the same for as long as the queue exists.
        let _ = self.pages.staged.set(Arc::clone(pages));
        if let Some(mut memory) = self.pages.memory.pop() {
            memory.stage(pages);
            // It cannot be full: this is the only handle.
            let _ = self.pages.memory.push(memory);
        }
    }
}

impl<M> Lending<M> {
    /// Whether the next long packet should be lent.
    pub(crate) fn is_worthwhile(&mut self) -> bool {
        self.counters.add_tx_long(1);
        let is_worthwhile = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_worthwhile
    }

    /// Whether something was lent in this round.
    pub(crate) fn has_lent(&self) -> bool {
        self.lender.is_some()
    }

    /// An empty end.
    pub(crate) fn end_for(&mut self, pool: &mut FramePool) -> End {
        End::lent(*self.lender.get_or_insert_with(|| pool.lender(&self.as_pages)))
    }

    /// Adds the bytes of the slot in this place of the ring to an end; false if the end would have
    /// too many pieces.
    #[must_use]
    pub(crate) fn push(&self, end: &mut End, place: usize, slot: &TxRequest, len: u16) -> bool {
        self.pages.grefs[place].store(slot.gref, Ordering::Relaxed);
        len == 0 || end.push(place * PAGE_SIZE + usize::from(slot.offset), usize::from(len))
    }

    /// Called when no frame refers to the guest's pages any more. If frames had to be completed,
    /// those behind them are likely to go the same way.
    pub(crate) fn end(&mut self, pool: &FramePool) {
        let Some(lender) = self.lender.take() else { return };
        let LoanUse { copied, completed } = pool.use_of(lender);
        self.counters.add_tx_lent(copied);
        if completed > 0 {
            self.pause = PAUSE;
        }
    }
}

/// The place of a slot in the ring. The ring's size is a power of two, so places remain consecutive
/// when indices wrap.
pub(crate) fn place(index: u32) -> usize {
    usize::try_from(index).expect("32 bits fit") % TX_RING_SLOTS
}

impl<M> LentPages<M> {
    fn new(peer: DomId, memory: M) -> LentPages<M> {
        let handle = ArrayQueue::new(1);
        assert!(handle.push(memory).is_ok(), "it has room for one");
        LentPages {
            peer,
            grefs: [const { AtomicU32::new(0) }; TX_RING_SLOTS],
            memory: handle,
            staged: OnceLock::new(),
        }
    }

    /// Those of the guest's pages that stay mapped, if any may.
    pub(crate) fn staged(&self) -> Option<&Arc<StagedPages>> {
        self.staged.get()
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
    fn read(&self, memory: &mut M, at: usize, into: &mut [u8]) -> Result<(), DropReason> {
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
        // A second thread would break the contract of `VifQueue::lend_pages`; its frame is dropped.
        let mut memory = self.memory.pop().ok_or(DropReason::GrantCopy)?;
        let copied = self.read(&mut memory, at, into);
        // It cannot be full: this is the only handle.
        let _ = self.memory.push(memory);
        copied
    }

    fn kind(&self) -> Ends {
        Ends::GRANTED
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
    fn a_caller_that_reads_never_waits() {
        let (host, guest, machine) = (DomId(0), DomId(7), Loopback::new());
        let [there, here] = [host, guest]
            .map(|domid| machine.create_domain(domid, Limits::default()).expect("it is new"));
        let mut grants = here.grants().expect("always made");
        let granted = grants.share(host, 1, Access::ReadOnly).expect("there is memory");
        granted.pages.copy_from(8, &[7; 4]);
        let memory = there.memory().expect("always made");
        let pages = LentPages::new(guest, memory);
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
