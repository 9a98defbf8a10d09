//! Where a frame's end is, and the only code that reads it.
//!
//! The pool of an engine knows the memory that is lent in a round, and ends all loans with it
//! ([`FramePool::end_loans`]). By then each frame with such an end has left, was dropped or was
//! [completed](FramePool::complete). If one were left behind, its end could not be read any more,
//! and it would be dropped.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Frame, FramePool, Space};
use crate::end::Lender;
use crate::{DropReason, End, Ends, Pages};

/// What became of the frames that a lender has lent in this round. Others were dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoanUse {
    /// Frames whose ends were copied from the lender's memory to where they left.
    pub copied: u64,
    /// Frames that had to be completed: it was of no use to lend these.
    pub completed: u64,
}

/// What is lent in this round.
#[derive(Debug)]
pub(super) struct Loans {
    /// Unlike that of any other pool, so that no pool finds the loan of another.
    round: u64,
    lenders: Vec<LenderState>,
}

#[derive(Debug)]
struct LenderState {
    pages: Arc<dyn Pages>,
    use_of: LoanUse,
}

impl Default for Loans {
    fn default() -> Loans {
        static POOLS: AtomicU64 = AtomicU64::new(1);
        let round = POOLS.fetch_add(1, Ordering::Relaxed) << 40;
        Loans { round, lenders: Vec::new() }
    }
}

impl Loans {
    #[inline]
    fn index_of(&self, lender: Lender) -> Option<usize> {
        let index = usize::try_from(lender.index).ok()?;
        (lender.round == self.round && index < self.lenders.len()).then_some(index)
    }
}

impl Frame {
    /// Whether all of the frame's bytes are in its buffer.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.space.end_len == 0
    }

    /// The frame's last bytes, if they are not in its buffer.
    #[inline]
    pub fn end(&self) -> Option<&End> {
        match self.space.end_len {
            0 => None,
            _ => self.space.end.as_ref(),
        }
    }

    /// The kind of its end.
    #[inline]
    pub fn ends(&self) -> Ends {
        self.end().map_or(Ends::NONE, End::kind)
    }

    /// Whether a peer waits until the frame no longer refers to its memory.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.ends().are_lent()
    }

    /// Appends bytes that stay in pages.
    ///
    /// # Panics
    /// If the buffer is not a large one or lacks room for the whole end, or if the frame has an end
    /// already.
    pub fn set_end(&mut self, end: End) {
        let (end_len, len) = (end.len(), self.len + end.len());
        assert!(len <= self.capacity() && self.is_complete(), "an end of {end_len} bytes");
        assert!(self.is_large(), "an end of a frame in a short buffer");
        self.space.end_len = end_len;
        self.space.end = (end_len > 0).then_some(end);
        self.len = len;
    }

    /// Leaves the bytes behind the first `head_len` in the memory of a lender, at offset `at`.
    ///
    /// # Panics
    /// If the frame is shorter, or has an end already.
    #[inline]
    pub fn lend(&mut self, head_len: usize, lender: Lender, at: usize) {
        assert!(self.is_complete(), "the end of a frame is lent once");
        assert!(head_len <= self.len, "the end of {} bytes behind {head_len}", self.len);
        let len = self.len - head_len;
        let mut end = End::lent(lender);
        let has_room = end.push(at, len);
        debug_assert!(has_room, "the first piece");
        (self.space.end_len, self.space.end) = (len, Some(end));
    }

    /// Removes the frame's end; the bytes before it remain.
    #[inline]
    pub fn take_end(&mut self) -> Option<End> {
        // Most frames have none, and it would be moved: see "Structs that stall" in HACKING.md.
        self.end()?;
        self.len -= core::mem::take(&mut self.space.end_len);
        self.space.end.take()
    }
}

impl FramePool {
    /// Registers memory of a sender, until the end of the round.
    pub fn lender(&mut self, pages: &Arc<dyn Pages>) -> Lender {
        let Loans { round, lenders } = &mut self.loans;
        let index = u32::try_from(lenders.len()).expect("queues are few");
        lenders.push(LenderState { pages: Arc::clone(pages), use_of: LoanUse::default() });
        Lender { round: *round, index, kind: pages.kind() }
    }

    /// The pages that an end is in; `None` if they were lent in an earlier round.
    #[inline]
    pub fn pages_of<'a>(&'a self, end: &'a End) -> Option<&'a dyn Pages> {
        match end.lender() {
            None => end.kept_pages().map(|pages| &**pages),
            Some(lender) => {
                let index = self.loans.index_of(lender)?;
                Some(&*self.loans.lenders[index].pages)
            }
        }
    }

    /// Copies a frame's end, if it has one, into its buffer, which always has room for it.
    ///
    /// # Errors
    /// Why it cannot be read. The frame must be dropped: it has lost its end.
    #[inline]
    pub fn complete(&mut self, frame: &mut Frame) -> Result<(), DropReason> {
        if frame.is_complete() { Ok(()) } else { self.read_end(frame) }
    }

    /// A function of its own, to keep the path of complete frames short.
    #[cold]
    fn read_end(&mut self, frame: &mut Frame) -> Result<(), DropReason> {
        let Space { end, end_len, start, metadata, bytes } = &mut *frame.space;
        let head_len = metadata.len - core::mem::take(end_len);
        let pages = end.as_ref().and_then(|end| Some((end, self.pages_of(end)?)));
        let read = match pages {
            Some((end, pages)) => {
                end.copy_from(pages, &mut bytes[*start..][head_len..metadata.len])
            }
            None => Err(DropReason::GrantCopy),
        };
        match read {
            Ok(()) => {
                if let Some(state) = end.as_ref().and_then(|end| self.state_of(end)) {
                    state.use_of.completed += 1;
                }
            }
            // What follows in the buffer is of an earlier frame.
            Err(_) => metadata.len = head_len,
        }
        // Releases our own pages.
        *end = None;
        read
    }

    /// Notes that the [end](Frame::end) of a frame was copied to where the frame leaves.
    #[inline]
    pub fn count_copied(&mut self, frame: &Frame) {
        if let Some(state) = frame.end().and_then(|end| self.state_of(end)) {
            state.use_of.copied += 1;
        }
    }

    /// What became of the frames that a lender has lent in this round so far.
    pub fn use_of(&self, lender: Lender) -> LoanUse {
        let index = self.loans.index_of(lender);
        index.map_or_else(LoanUse::default, |index| self.loans.lenders[index].use_of)
    }

    #[inline]
    fn state_of(&mut self, end: &End) -> Option<&mut LenderState> {
        let index = self.loans.index_of(end.lender()?)?;
        Some(&mut self.loans.lenders[index])
    }

    /// Ends the loans of this round: the senders may reuse their memory.
    #[inline]
    pub fn end_loans(&mut self) {
        if !self.loans.lenders.is_empty() {
            self.loans.lenders.clear();
            self.loans.round += 1;
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use core::any::Any;

    use super::*;
    use crate::PoolBudget;

    /// Memory of a guest, all of it sevens.
    #[derive(Debug)]
    struct Guest;

    impl Pages for Guest {
        fn copy_to(&self, _: usize, into: &mut [u8]) -> Result<(), DropReason> {
            into.fill(7);
            Ok(())
        }

        fn kind(&self) -> Ends {
            Ends::MAPPED
        }

        fn memory(&self) -> &dyn Any {
            self
        }
    }

    fn pool() -> FramePool {
        FramePool::new(PoolBudget::new(1 << 20))
    }

    /// A frame of ten bytes, the last six of them on loan.
    fn lent(pool: &mut FramePool) -> (Frame, Lender) {
        let pages: Arc<dyn Pages> = Arc::new(Guest);
        let lender = pool.lender(&pages);
        let mut frame = pool.take(10).expect("there is memory");
        frame.bytes_mut().fill(1);
        frame.lend(4, lender, 50);
        (frame, lender)
    }

    #[test]
    fn a_frame_shows_its_start_until_it_is_completed() {
        let mut pool = pool();
        let (mut frame, lender) = lent(&mut pool);
        assert_eq!((frame.len(), frame.bytes()), (10, &[1; 4][..]));
        assert!(frame.is_lent() && !frame.is_complete());
        assert_eq!(frame.ends(), Ends::MAPPED);
        let end = frame.end().expect("it is on loan");
        assert_eq!(end.pieces(), [crate::Piece { at: 50, len: 6 }]);
        assert!(end.kept_pages().is_none() && pool.pages_of(end).is_some());
        assert_eq!(pool.use_of(lender), LoanUse::default());

        assert_eq!(pool.complete(&mut frame), Ok(()));
        assert_eq!(frame.bytes(), [1, 1, 1, 1, 7, 7, 7, 7, 7, 7]);
        assert!(!frame.is_lent() && frame.is_complete());
        assert_eq!(pool.use_of(lender), LoanUse { copied: 0, completed: 1 });
    }

    #[test]
    fn a_loan_ends_with_its_round() {
        let mut pool = pool();
        let (mut frame, lender) = lent(&mut pool);
        pool.end_loans();
        // The memory of another sender has the same place in the next round.
        let (other, _) = lent(&mut pool);
        let [old, new] = [&frame, &other].map(|frame| frame.end().expect("it is on loan"));
        assert!(pool.pages_of(old).is_none() && pool.pages_of(new).is_some());
        assert_eq!(pool.complete(&mut frame), Err(DropReason::GrantCopy));
        assert_eq!(frame.bytes(), [1; 4], "nothing of an earlier frame");
        assert_eq!(pool.use_of(lender), LoanUse::default());
    }

    #[test]
    fn no_pool_finds_the_loan_of_another() {
        let (mut one, mut two) = (pool(), pool());
        let (mut frame, _) = lent(&mut one);
        let (_other, _) = lent(&mut two);
        assert_eq!(two.complete(&mut frame), Err(DropReason::GrantCopy));
    }

    #[test]
    fn a_buffer_forgets_the_loan_of_its_frame() {
        let mut pool = pool();
        let (frame, _) = lent(&mut pool);
        pool.recycle(frame);
        let frame = pool.take(20).expect("there is memory");
        assert_eq!((frame.bytes().len(), frame.is_complete()), (20, true));
    }
}
