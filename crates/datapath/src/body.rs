//! The end of a long frame, in pages that a process shares with a peer.
//!
//! A queue of a vif may leave all but the first page of a long frame where it is, and a TAP device
//! may write it to the kernel from there: one copy of 64 KiB less. Whatever looks at a frame looks
//! at the bytes in its buffer. They are copied once, and nothing that a peer can change is ever
//! behind a reference. Who needs all bytes has them copied, by
//! [`Frame::gather`](crate::Frame::gather).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

use arrayvec::ArrayVec;

use crate::Receipt;

/// Pages that are shared with a peer, as one run of bytes.
pub trait Pages: fmt::Debug + Send + Sync {
    /// Copies bytes out, each once.
    fn copy_to(&self, at: usize, into: &mut [u8]);

    /// What they are made of, for queues that know that type and can send from there.
    fn memory(&self) -> &dyn Any;
}

/// Bytes that are shared with no peer, as simulations and tests have them.
impl Pages for Vec<u8> {
    fn copy_to(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[at..at + into.len()]);
    }

    fn memory(&self) -> &dyn Any {
        self
    }
}

/// Pages that a peer may read, for frames to be put into where they come in.
pub trait Stock: fmt::Debug + Send {
    /// Room for [`STOCK_LEN`](crate::STOCK_LEN) bytes, in one piece; `None` if all of it is in use.
    /// It comes back when the body is dropped.
    fn take(&mut self) -> Option<Body>;
}

/// Bytes of a frame that are in pages. Once it is dropped, no one reads them there.
#[derive(Debug)]
pub struct Body {
    pages: Arc<dyn Pages>,
    pieces: ArrayVec<Piece, PIECES_MAX>,
    len: usize,
    _receipt: Receipt,
}

/// A part of a body without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the run of pages.
    pub at: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// The most pieces of a body. The pages of a frame follow each other, but for where the ring ends.
pub const PIECES_MAX: usize = 3;

impl Body {
    /// An empty one. `receipt` is given back when it is gone.
    pub fn new(pages: Arc<dyn Pages>, receipt: Receipt) -> Body {
        Body { pages, pieces: ArrayVec::new(), len: 0, _receipt: receipt }
    }

    /// Adds bytes; false if it has too many pieces already.
    #[must_use]
    pub fn push(&mut self, at: usize, len: usize) -> bool {
        let has_room = match self.pieces.last_mut() {
            Some(last) if last.at + last.len == at => {
                last.len += len;
                true
            }
            _ => self.pieces.try_push(Piece { at, len }).is_ok(),
        };
        self.len += if has_room { len } else { 0 };
        has_room
    }

    /// Leaves the first `len` bytes of it.
    pub fn truncate(&mut self, len: usize) {
        while let Some(last) = self.pieces.last_mut() {
            let excess = self.len.saturating_sub(len);
            if excess < last.len {
                last.len -= excess;
                self.len -= excess;
                return;
            }
            self.len -= last.len;
            self.pieces.pop();
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The run of pages that its pieces are of.
    pub fn pages(&self) -> &Arc<dyn Pages> {
        &self.pages
    }

    /// Where its bytes are, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Copies all of it.
    ///
    /// # Panics
    /// If `into` is not as long as it is.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert!(into.len() == self.len, "a body of {} bytes to {}", self.len, into.len());
        let mut rest = into;
        for piece in &self.pieces {
            let (own, others) = rest.split_at_mut(piece.len);
            self.pages.copy_to(piece.at, own);
            rest = others;
        }
    }
}
