//! The end of a long frame, in pages that a process shares with a peer.
//!
//! A queue may leave all except the first bytes of a long frame in these pages, and another may
//! send them from there: this saves a copy. Code that inspects a frame reads only the bytes in its
//! buffer. They are copied once, and no reference ever points to memory that a peer can change.
//! [`FramePool::complete`](crate::FramePool::complete) copies the end for code that needs all
//! bytes.
//!
//! Pages of our own are kept as long as a frame refers to them, which costs atomic operations.
//! Memory of a peer is lent for a round of the engine: the end has only its number in the pool.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::ops::BitOr;

use arrayvec::ArrayVec;

use crate::{DropReason, Receipt};

/// Pages that are shared with a peer, as one run of bytes.
pub trait Pages: fmt::Debug + Send + Sync {
    /// Copies bytes out, each once.
    ///
    /// # Errors
    /// Why a peer's pages cannot be read.
    fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), DropReason>;

    /// Whose memory they are.
    fn kind(&self) -> Ends;

    /// The concrete type, for queues that know it and can send from these pages.
    fn memory(&self) -> &dyn Any;
}

/// Bytes that are not shared with a peer, for simulations and tests.
impl Pages for Vec<u8> {
    fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), DropReason> {
        into.copy_from_slice(&self[at..at + into.len()]);
        Ok(())
    }

    fn kind(&self) -> Ends {
        Ends::OWN
    }

    fn memory(&self) -> &dyn Any {
        self
    }
}

/// Pages that a peer may read, into which incoming frames are written.
pub trait PagePool: fmt::Debug + Send {
    /// Room for [`BODY_LEN_MAX`](crate::BODY_LEN_MAX) bytes, in one piece; `None` if all room is in
    /// use. Dropping the end returns the room.
    fn take(&mut self) -> Option<End>;
}

/// Kinds of ends, by whose memory they are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ends(u8);

impl Ends {
    /// None: all bytes are in the frame's buffer.
    pub const NONE: Ends = Ends(0);
    /// In pages of this process, which are kept until the frame is gone.
    pub const OWN: Ends = Ends(1);
    /// In pages that a guest has granted. They are lent.
    pub const GRANTED: Ends = Ends(2);
    /// In memory of a guest that this process has mapped. It is lent.
    pub const MAPPED: Ends = Ends(4);

    /// Whether these kinds include all of `others`.
    #[inline]
    pub const fn has(self, others: Ends) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether a peer waits until frames no longer refer to some of them.
    #[inline]
    pub const fn are_lent(self) -> bool {
        self.0 & (Ends::GRANTED.0 | Ends::MAPPED.0) != 0
    }
}

impl BitOr for Ends {
    type Output = Ends;

    #[inline]
    fn bitor(self, other: Ends) -> Ends {
        Ends(self.0 | other.0)
    }
}

/// The last bytes of a frame, in pages. After it is dropped, nothing reads them there.
#[derive(Debug)]
pub struct End {
    hold: Hold,
    pieces: ArrayVec<Piece, PIECES_MAX>,
}

/// What keeps pages from being reused.
#[derive(Debug)]
enum Hold {
    /// The receipt, which returns when the end is dropped.
    Kept { pages: Arc<dyn Pages>, _receipt: Receipt },
    /// The round of the engine.
    Lent(Lender),
}

/// Memory from which the ends of frames are lent in this round, by its number in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lender {
    pub(crate) round: u64,
    pub(crate) index: u32,
    pub(crate) kind: Ends,
}

/// A contiguous part of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its offset in the run of pages.
    pub at: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// The most pieces of an end. The pages of a frame are consecutive, except where the ring wraps.
pub const PIECES_MAX: usize = 3; // not a limit: our own frames

impl End {
    /// An empty end in our own pages. `receipt` is returned when it is dropped.
    pub fn kept(pages: Arc<dyn Pages>, receipt: Receipt) -> End {
        End { hold: Hold::Kept { pages, _receipt: receipt }, pieces: ArrayVec::new() }
    }

    /// An empty end in a peer's memory, which is lent for this round.
    #[inline]
    pub fn lent(lender: Lender) -> End {
        End { hold: Hold::Lent(lender), pieces: ArrayVec::new() }
    }

    /// Appends bytes; false if the end has too many pieces already.
    #[inline]
    #[must_use]
    pub fn push(&mut self, at: usize, len: usize) -> bool {
        match self.pieces.last_mut() {
            Some(last) if last.at + last.len == at => {
                last.len += len;
                true
            }
            _ => self.pieces.try_push(Piece { at, len }).is_ok(),
        }
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        let mut excess = self.len().saturating_sub(len);
        while let Some(last) = self.pieces.last_mut().filter(|_| excess > 0) {
            if excess < last.len {
                last.len -= excess;
                return;
            }
            excess -= last.len;
            self.pieces.pop();
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its bytes are, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Whose memory it is in.
    #[inline]
    pub fn kind(&self) -> Ends {
        match &self.hold {
            Hold::Kept { .. } => Ends::OWN,
            Hold::Lent(lender) => lender.kind,
        }
    }

    /// Our own pages; `None` if it is lent.
    pub fn kept_pages(&self) -> Option<&Arc<dyn Pages>> {
        match &self.hold {
            Hold::Kept { pages, .. } => Some(pages),
            Hold::Lent(_) => None,
        }
    }

    /// Who lends its pages.
    #[inline]
    pub(crate) fn lender(&self) -> Option<Lender> {
        match &self.hold {
            Hold::Kept { .. } => None,
            Hold::Lent(lender) => Some(*lender),
        }
    }

    /// Copies all bytes from these pages. `into` is as long as the end.
    pub(crate) fn copy_from(&self, pages: &dyn Pages, into: &mut [u8]) -> Result<(), DropReason> {
        let mut rest = into;
        for piece in &self.pieces {
            let (own, others) = rest.split_at_mut(piece.len);
            pages.copy_to(piece.at, own)?;
            rest = others;
        }
        Ok(())
    }
}
