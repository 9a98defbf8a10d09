//! The end of a long frame, in pages that a process shares with a peer.
//!
//! A queue of a vif may leave all except the first page of a long frame in these pages, and a TAP
//! device may write it to the kernel from there: this saves a copy of 64 KiB. Code that inspects a
//! frame reads only the bytes in its buffer. They are copied once, and no reference ever points to
//! memory that a peer can change. [`Frame::linearize`](crate::Frame::linearize) copies the body for
//! code that needs all bytes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

use arrayvec::ArrayVec;

use crate::{DropReason, Receipt};

/// Pages that are shared with a peer, as one run of bytes.
pub trait Pages: fmt::Debug + Send + Sync {
    /// Copies bytes out, each once.
    ///
    /// # Errors
    /// Why a peer's pages cannot be read.
    fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), DropReason>;

    /// Whether they belong to a peer that waits until frames no longer refer to them. Such a body
    /// is gathered when its frame has to wait, so that no guest waits for another.
    fn are_lent(&self) -> bool;

    /// The concrete type, for queues that know it and can send from these pages.
    fn memory(&self) -> &dyn Any;
}

/// Bytes that are not shared with a peer, for simulations and tests.
impl Pages for Vec<u8> {
    fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), DropReason> {
        into.copy_from_slice(&self[at..at + into.len()]);
        Ok(())
    }

    fn are_lent(&self) -> bool {
        false
    }

    fn memory(&self) -> &dyn Any {
        self
    }
}

/// Pages that a peer may read, into which incoming frames are written.
pub trait PagePool: fmt::Debug + Send {
    /// Room for [`BODY_LEN_MAX`](crate::BODY_LEN_MAX) bytes, in one piece; `None` if all room is in
    /// use. Dropping the body returns the room.
    fn take(&mut self) -> Option<Body>;
}

/// Bytes of a frame that are in pages. After it is dropped, nothing reads them there.
#[derive(Debug)]
pub struct Body {
    pages: Arc<dyn Pages>,
    pieces: ArrayVec<Piece, PIECES_MAX>,
    len: usize,
    /// Returned when the body is dropped.
    _receipt: Receipt,
}

/// A contiguous part of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its offset in the run of pages.
    pub at: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// The most pieces of a body. The pages of a frame are consecutive, except where the ring wraps.
pub const PIECES_MAX: usize = 3; // not a limit: our own frames

impl Body {
    /// An empty body. `receipt` is returned when the body is dropped.
    pub fn new(pages: Arc<dyn Pages>, receipt: Receipt) -> Body {
        Body { pages, pieces: ArrayVec::new(), len: 0, _receipt: receipt }
    }

    /// Appends bytes; false if the body has too many pieces already.
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

    /// Keeps the first `len` bytes.
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

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The run of pages that contains its pieces.
    pub fn pages(&self) -> &Arc<dyn Pages> {
        &self.pages
    }

    /// Where its bytes are, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Copies all bytes.
    ///
    /// # Errors
    /// Why a peer's pages cannot be read.
    ///
    /// # Panics
    /// If the length of `into` is not the body's.
    pub fn copy_to(&self, into: &mut [u8]) -> Result<(), DropReason> {
        assert!(into.len() == self.len, "a body of {} bytes to {}", self.len, into.len());
        let mut rest = into;
        for piece in &self.pieces {
            let (own, others) = rest.split_at_mut(piece.len);
            self.pages.copy_to(piece.at, own)?;
            rest = others;
        }
        Ok(())
    }
}
