//! The end of a frame that stays in its sender's memory for a round of the engine.
//!
//! A [`Body`](crate::Body) can be lent as well, but it counts its holders with atomic operations,
//! which cost as much as a copy of 1500 bytes. A loan is only a number and an offset: the pool of
//! the engine knows the memory. The engine ends all loans with the round
//! ([`FramePool::end_loans`]). By then each frame has left, was dropped or was
//! [gathered](FramePool::gather). If one were left behind, its end could not be read any more, and
//! it would be dropped.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Frame, FramePool, Space};
use crate::{DropReason, Pages};

/// Memory from which the ends of frames are lent in this round, by its number in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lender {
    round: u64,
    index: usize,
}

/// Where a frame's end is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Loan {
    lender: Lender,
    /// An offset in the lender's memory.
    at: usize,
}

/// The end of a frame in its sender's memory.
#[derive(Debug, Clone, Copy)]
pub struct LentEnd<'a> {
    /// The sender's memory.
    pub pages: &'a dyn Pages,
    /// Its offset there.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// What became of the frames that a lender has lent in this round. Others were dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoanUse {
    /// Frames whose ends were copied from the lender's memory to where they left.
    pub copied: u64,
    /// Frames that had to be gathered: it was of no use to lend these.
    pub gathered: u64,
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
    fn get(&self, lender: Lender) -> Option<&LenderState> {
        let is_current = lender.round == self.round;
        self.lenders.get(lender.index).filter(|_| is_current)
    }
}

impl Space {
    /// Whether the frame's end is lent, and not a body.
    #[inline]
    fn is_on_loan(&self) -> bool {
        self.end_len > 0 && self.body.is_none()
    }
}

impl Frame {
    /// Whether all of the frame's bytes are in its buffer: it has no [body](Frame::body), and its
    /// end is not on loan.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.space.end_len == 0
    }

    /// Whether the frame's end is on loan, which only its pool can [gather](FramePool::gather).
    #[inline]
    pub fn is_on_loan(&self) -> bool {
        self.space.is_on_loan()
    }

    /// Leaves the bytes behind the first `head_len` in the memory of a lender, at offset `at`,
    /// until the end of the round.
    ///
    /// # Panics
    /// If the frame is shorter, or is not [complete](Frame::is_complete).
    #[inline]
    pub fn lend(&mut self, head_len: usize, lender: Lender, at: usize) {
        assert!(self.is_complete(), "the end of a frame is lent once");
        assert!(head_len <= self.len, "the end of {} bytes behind {head_len}", self.len);
        self.space.end_len = self.len - head_len;
        self.space.loan = Loan { lender, at };
    }
}

impl FramePool {
    /// Registers memory of a sender, until the end of the round.
    pub fn lender(&mut self, pages: &Arc<dyn Pages>) -> Lender {
        let Loans { round, lenders } = &mut self.loans;
        let lender = Lender { round: *round, index: lenders.len() };
        lenders.push(LenderState { pages: Arc::clone(pages), use_of: LoanUse::default() });
        lender
    }

    /// The end of a frame, if it is on loan in this round.
    #[inline]
    pub fn lent_end(&self, frame: &Frame) -> Option<LentEnd<'_>> {
        if !frame.is_on_loan() {
            return None;
        }
        let Loan { lender, at } = frame.space.loan;
        let pages = &*self.loans.get(lender)?.pages;
        Some(LentEnd { pages, at, len: frame.space.end_len })
    }

    /// Copies into a frame's buffer what is not there yet: its body, or an end on loan.
    ///
    /// # Errors
    /// Why it cannot be read. The frame must be dropped.
    #[inline]
    pub fn gather(&mut self, frame: &mut Frame) -> Result<(), DropReason> {
        match frame.is_on_loan() {
            true => self.gather_loan(frame),
            false => frame.linearize(),
        }
    }

    /// Does the same for an end on loan, and for a body that a peer has lent.
    ///
    /// # Errors
    /// As [`gather`](FramePool::gather).
    #[inline]
    pub fn gather_lent(&mut self, frame: &mut Frame) -> Result<(), DropReason> {
        if frame.is_lent() { self.gather(frame) } else { Ok(()) }
    }

    /// A function of its own, to keep the path of complete frames short.
    #[cold]
    fn gather_loan(&mut self, frame: &mut Frame) -> Result<(), DropReason> {
        let end = self.lent_end(frame).ok_or(DropReason::GrantCopy)?;
        let LentEnd { pages, at, len } = end;
        frame.space.end_len = 0;
        let head_len = frame.len - len;
        if let Err(reason) = pages.copy_to(at, &mut frame.bytes_mut()[head_len..]) {
            // What follows in the buffer is of an earlier frame.
            frame.len = head_len;
            return Err(reason);
        }
        self.loans.lenders[frame.space.loan.lender.index].use_of.gathered += 1;
        Ok(())
    }

    /// Notes that the [end](FramePool::lent_end) of a frame was copied to where the frame leaves.
    #[inline]
    pub fn count_copied(&mut self, frame: &Frame) {
        let Lender { round, index } = frame.space.loan.lender;
        let is_current = frame.is_on_loan() && round == self.loans.round;
        if let Some(state) = self.loans.lenders.get_mut(index).filter(|_| is_current) {
            state.use_of.copied += 1;
        }
    }

    /// What became of the frames that a lender has lent in this round so far.
    pub fn use_of(&self, lender: Lender) -> LoanUse {
        self.loans.get(lender).map_or_else(LoanUse::default, |state| state.use_of)
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
    use super::*;
    use crate::PoolBudget;

    fn pool() -> FramePool {
        FramePool::new(PoolBudget::new(1 << 20))
    }

    /// A frame of ten bytes, the last six of them on loan.
    fn lent(pool: &mut FramePool) -> (Frame, Lender) {
        let pages: Arc<dyn Pages> = Arc::new(alloc::vec![7_u8; 100]);
        let lender = pool.lender(&pages);
        let mut frame = pool.take(10).expect("there is memory");
        frame.bytes_mut().fill(1);
        frame.lend(4, lender, 50);
        (frame, lender)
    }

    #[test]
    fn a_frame_shows_its_start_until_it_is_gathered() {
        let mut pool = pool();
        let (mut frame, lender) = lent(&mut pool);
        assert_eq!((frame.len(), frame.bytes()), (10, &[1; 4][..]));
        assert!(frame.is_lent() && frame.is_on_loan() && !frame.is_complete());
        assert!(frame.body().is_none());
        let end = pool.lent_end(&frame).expect("it is on loan");
        assert_eq!((end.at, end.len), (50, 6));
        assert_eq!(pool.use_of(lender), LoanUse::default());

        assert_eq!(pool.gather_lent(&mut frame), Ok(()));
        assert_eq!(frame.bytes(), [1, 1, 1, 1, 7, 7, 7, 7, 7, 7]);
        assert!(!frame.is_lent() && !frame.is_on_loan() && frame.is_complete());
        assert_eq!(pool.use_of(lender), LoanUse { copied: 0, gathered: 1 });
    }

    #[test]
    fn a_loan_ends_with_its_round() {
        let mut pool = pool();
        let (mut frame, lender) = lent(&mut pool);
        pool.end_loans();
        // The memory of another sender has the same place in the next round.
        let (other, _) = lent(&mut pool);
        assert!(pool.lent_end(&frame).is_none() && pool.lent_end(&other).is_some());
        assert_eq!(pool.gather(&mut frame), Err(DropReason::GrantCopy));
        assert_eq!(pool.use_of(lender), LoanUse::default());
    }

    #[test]
    fn no_pool_finds_the_loan_of_another() {
        let (mut one, mut two) = (pool(), pool());
        let (mut frame, _) = lent(&mut one);
        let (_other, _) = lent(&mut two);
        assert_eq!(two.gather(&mut frame), Err(DropReason::GrantCopy));
        assert_eq!(frame.linearize(), Err(DropReason::GrantCopy));
        assert_eq!(one.gather(&mut frame), Ok(()));
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
