//! Frames in private memory, and where their buffers come from.
//!
//! A frame owns a contiguous buffer of one of three sizes, so headers can always be parsed in one
//! slice, and a 64 KiB GSO segment is one frame. Buffers are recycled through a [`FramePool`] per
//! worker; the pools of one process share a [`PoolBudget`], which bounds their memory and returns
//! buffers when traffic flows in one direction only, from one worker to another.
//!
//! The end of a long frame may still be in pages shared with a peer: see [`End`]. The frame's
//! buffer always has room for these bytes, so they can be copied at any time.

mod loan;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use ringway_wire::PAGE_SIZE;

use crate::headers::{Headers, parse_head};
use crate::{End, FrameVlan, Offload, Verdict};

pub use loan::LoanUse;
use loan::Loans;

/// The most frames that one call of a port moves.
pub const BATCH: usize = 64;

/// Capacity of a small buffer: a 1500-byte frame with its VLAN tags and room to spare.
pub const SMALL_LEN: usize = 2048;
/// A segment size that every sender may use: the default of RFC 9293, section 3.7.1, is 536 bytes.
pub(crate) const SEGMENT_USUAL: usize = 512;
/// Cost of making a segment into a frame and handling it, in bytes copied: the 3 us that a kernel
/// takes.
const FRAME_WORK: usize = 16 << 10;
/// Capacity of a middle buffer: the longest frame that one slot of a ring can hold. A frame that
/// costs its sender one page costs us no more than that.
pub const MIDDLE_LEN: usize = 4096;
/// Bytes of a 64 KiB frame after its first [`MIDDLE_LEN`]: the room in a
/// [`PagePool`](crate::PagePool).
pub const BODY_LEN_MAX: usize = 65536 - MIDDLE_LEN; // not a limit: the longest frame
/// Capacity of a large buffer: the largest frame that netif can describe, plus headers.
pub const LARGE_LEN: usize = 65536 + 256;
/// Memory of a large buffer: its frame may begin anywhere in a page.
const LARGE_SPACE: usize = LARGE_LEN + PAGE_SIZE;

/// The heap memory of a frame: its bytes, and what is known about it. So a frame is a pointer, and
/// costs little to move from batch to batch.
///
/// What every frame uses is next to its first bytes.
#[derive(Debug)]
#[repr(C)]
struct Space<Bytes: ?Sized = [u8]> {
    /// What follows the bytes in the buffer, if `end_len` is not 0; otherwise it may be what an
    /// earlier frame was lent.
    end: Option<End>,
    /// Bytes at the end of the frame that are not in the buffer.
    end_len: usize,
    /// Where the frame begins; 0 except in large buffers.
    start: usize,
    metadata: Metadata,
    bytes: Bytes,
}

/// A hash of a frame's flow that its receiver has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowHash {
    /// The hash.
    pub value: u32,
    /// The number of its type in netif (`HASH_TYPE_*`).
    pub kind: u8,
}

/// What is known about a frame besides its bytes: a [`Frame`] dereferences to it.
#[derive(Debug, Default)]
pub struct Metadata {
    len: usize,
    /// Work that its sender left to a later station.
    pub offload: Offload,
    /// The VLAN that it belongs to, set by the switch.
    pub vlan: FrameVlan,
    /// Where it goes, set by the switch.
    pub verdict: Verdict,
    /// The hash by which it was steered to a queue, if that is one which its receiver has chosen.
    pub flow: Option<FlowHash>,
}

type Buffer = Box<Space>;

impl Space {
    fn boxed<const LEN: usize>() -> Buffer {
        Box::new(Space {
            end: None,
            end_len: 0,
            start: 0,
            metadata: Metadata::default(),
            bytes: [0; LEN],
        })
    }

    /// Moves the beginning of the frame so that its first `lead` bytes end at a page boundary.
    #[inline]
    fn align_end_of_head(&mut self, lead: usize) {
        self.start = self.bytes.as_ptr().addr().wrapping_add(lead).wrapping_neg() % PAGE_SIZE;
    }
}

/// An Ethernet frame on its way through this process.
#[derive(Debug)]
pub struct Frame {
    space: Buffer,
}

/// Frames of one ingress call.
pub type FrameBatch = ArrayVec<Frame, BATCH>;

/// Frames that wait to leave by one port queue, in order.
pub type FrameQueue = VecDeque<Frame>;

impl Frame {
    /// Length in bytes, from the Ethernet header on.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Cost of handling the frame, in bytes copied: its length, plus 16 KiB for each segment beyond
    /// one per 512 bytes. Internet hosts use no shorter segments, so a sender that asks for them
    /// has many frames made from one.
    pub fn work(&self) -> usize {
        self.len + self.excess_segments() * FRAME_WORK
    }

    /// Segments that the frame asks for beyond one per 512 bytes: 0 for what senders usually ask
    /// for.
    pub fn excess_segments(&self) -> usize {
        let Some(gso) = self.offload.gso else { return 0 };
        let segments = self.len / usize::from(gso.size.max(1));
        segments.saturating_sub(self.len / SEGMENT_USUAL)
    }

    /// True for a frame without bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Greatest length that the frame can have in its buffer.
    pub fn capacity(&self) -> usize {
        self.space.bytes.len().min(LARGE_LEN)
    }

    /// Bytes of the pool's budget that the frame's buffer takes.
    pub fn memory(&self) -> usize {
        self.space.bytes.len()
    }

    /// Moves the beginning of a frame in a large buffer so that its first `lead` bytes end at a
    /// page boundary; the frame's bytes are undefined afterwards. By default a frame begins with a
    /// page.
    ///
    /// It is for a caller that fills the frame with copies of a page each: on Xen, the kernel makes
    /// one operation for each page of memory that a copy touches.
    pub fn align_end_of_head(&mut self, lead: usize) {
        if self.is_large() {
            self.space.align_end_of_head(lead);
        }
    }

    /// Sets the length after bytes were written to [`bytes_mut`](Frame::bytes_mut).
    ///
    /// # Panics
    /// If `len` exceeds the capacity, or if the frame's end is not in its buffer.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a frame of {len} bytes does not fit its buffer");
        assert!(
            self.is_complete(),
            "the length of a frame changes only if all of it is in its buffer"
        );
        self.len = len;
    }

    /// Removes the last `count` of the bytes in the frame's buffer; its end, if it has one, follows
    /// those that are left.
    pub(crate) fn shorten_head(&mut self, count: usize) {
        assert!(count <= self.bytes().len(), "a head of {} bytes", self.bytes().len());
        self.len -= count;
    }

    /// The frame's bytes in its buffer: those before its [end](Frame::end), if it has one.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let Space { end_len, start, metadata, bytes, .. } = &*self.space;
        &bytes[*start..][..metadata.len - end_len]
    }

    /// The bytes that [`bytes`](Frame::bytes) returns, for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Space { end_len, start, metadata, bytes, .. } = &mut *self.space;
        &mut bytes[*start..][..metadata.len - *end_len]
    }

    /// Where the frame's headers are, as [`parse`](crate::headers::parse) finds them; if the frame
    /// has an end, only headers before it are found.
    #[inline]
    pub fn headers(&self) -> Option<Headers> {
        parse_head(self.bytes(), self.len)
    }

    fn is_large(&self) -> bool {
        self.memory() == LARGE_SPACE
    }
}

impl Deref for Frame {
    type Target = Metadata;

    #[inline]
    fn deref(&self) -> &Metadata {
        &self.space.metadata
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut Metadata {
        &mut self.space.metadata
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsMut<[u8]> for Frame {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// The memory that the pools of one process may take, and the spare buffers that they exchange.
#[derive(Debug)]
pub struct PoolBudget {
    bytes: usize,
    bytes_left: AtomicUsize,
    small: SharedFreeList,
    middle: SharedFreeList,
    large: SharedFreeList,
}

/// Spare buffers of one size that wait for another worker.
type SharedFreeList = ArrayQueue<Buffer>;

impl PoolBudget {
    /// Spare middle or large buffers that wait for another worker.
    const DEPOT_LEN: usize = 1024;
    /// Spare small buffers may take 1 in this of the budget, if that is more. A thousand vifs with
    /// a few frames each have more frames in flight than workers keep, and buffers without a place
    /// are freed and allocated again.
    const DEPOT_PART: usize = 4;

    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Arc<PoolBudget> {
        Arc::new(PoolBudget {
            bytes,
            bytes_left: AtomicUsize::new(bytes),
            small: SharedFreeList::new((bytes / Self::DEPOT_PART / SMALL_LEN).max(Self::DEPOT_LEN)),
            middle: SharedFreeList::new(Self::DEPOT_LEN),
            large: SharedFreeList::new(Self::DEPOT_LEN),
        })
    }

    /// Bytes that neither frames nor pools hold: the whole budget once all frames are recycled and
    /// all pools are gone.
    pub fn bytes_left(&self) -> usize {
        let spare = self.small.len() * SMALL_LEN
            + self.middle.len() * MIDDLE_LEN
            + self.large.len() * LARGE_SPACE;
        self.bytes_left.load(Ordering::Relaxed) + spare
    }

    fn take(&self, bytes: usize) -> bool {
        let left = |left: usize| left.checked_sub(bytes);
        self.bytes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.bytes_left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Free buffers of one size.
#[derive(Debug)]
struct FreeList {
    free: Vec<Buffer>,
    /// Memory of one of them.
    memory: usize,
    /// How many buffers to keep.
    keep: usize,
}

impl FreeList {
    /// An empty list of buffers that take this `memory` each.
    fn new(memory: usize, budget_bytes: usize, keep_max: usize) -> FreeList {
        let keep = (budget_bytes / FramePool::KEEP_PART / memory).min(keep_max);
        FreeList { free: Vec::with_capacity(keep), memory, keep }
    }

    #[inline]
    fn take(&mut self, depot: &SharedFreeList) -> Option<Buffer> {
        self.free.pop().or_else(|| depot.pop())
    }

    /// Takes a buffer back; false if there is no room, and the buffer is freed.
    #[inline]
    fn put(&mut self, buffer: Buffer, depot: &SharedFreeList) -> bool {
        if self.free.len() < self.keep {
            self.free.push(buffer);
            return true;
        }
        depot.push(buffer).is_ok()
    }

    fn bytes(&self) -> usize {
        self.free.len() * self.memory
    }
}

/// One worker's free buffers.
///
/// It allocates only while it warms up: buffers come back through [`recycle`](FramePool::recycle)
/// and are handed out again, the most recently used, cache-warm one first.
#[derive(Debug)]
pub struct FramePool {
    budget: Arc<PoolBudget>,
    small: FreeList,
    middle: FreeList,
    large: FreeList,
    was_short: bool,
    loans: Loans,
}

impl FramePool {
    /// The most free small buffers that a worker keeps to itself: 1 MiB.
    const KEEP_SMALL: usize = 512;
    /// The most free middle buffers that a worker keeps to itself: 512 KiB.
    const KEEP_MIDDLE: usize = 128;
    /// The most free large buffers that a worker keeps to itself: 2 MiB.
    const KEEP_LARGE: usize = 32;
    /// A worker keeps at most 1 in this of the budget, for each size of buffer: no other thread can
    /// use what it keeps while it sleeps.
    const KEEP_PART: usize = 32;

    /// An empty pool on a shared budget.
    pub fn new(budget: Arc<PoolBudget>) -> FramePool {
        FramePool {
            small: FreeList::new(SMALL_LEN, budget.bytes, Self::KEEP_SMALL),
            middle: FreeList::new(MIDDLE_LEN, budget.bytes, Self::KEEP_MIDDLE),
            large: FreeList::new(LARGE_SPACE, budget.bytes, Self::KEEP_LARGE),
            budget,
            was_short: false,
            loans: Loans::default(),
        }
    }

    /// Bytes of the budget that neither frames nor pools hold.
    pub fn bytes_left(&self) -> usize {
        self.budget.bytes_left()
    }

    /// Bytes of the budget in buffers that the pool keeps for later frames.
    pub fn bytes_kept(&self) -> usize {
        self.small.bytes() + self.middle.bytes() + self.large.bytes()
    }

    /// Whether a buffer was refused for lack of memory since the last call: a port that took
    /// nothing in may have left frames behind.
    pub fn take_shortage(&mut self) -> bool {
        core::mem::take(&mut self.was_short)
    }

    /// A frame of `len` bytes with undefined content, or `None` if the budget is spent or no
    /// buffer is that large.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<Frame> {
        let ready = if len <= SMALL_LEN { self.small.free.pop() } else { None };
        let mut space = match ready {
            Some(buffer) => buffer,
            None => self.find(len)?,
        };
        space.metadata = Metadata { len, ..Metadata::default() };
        Some(Frame { space })
    }

    /// A buffer for a frame that needs a longer one than a small one, or for any frame when the
    /// shelf of small ones is empty. Not inlined, so that the usual path stays short.
    #[inline(never)]
    fn find(&mut self, len: usize) -> Option<Buffer> {
        if len <= SMALL_LEN {
            return self.small.take(&self.budget.small).or_else(|| self.make::<SMALL_LEN>());
        }
        if len <= MIDDLE_LEN {
            return self.middle.take(&self.budget.middle).or_else(|| self.make::<MIDDLE_LEN>());
        }
        if len <= LARGE_LEN {
            let mut buffer =
                self.large.take(&self.budget.large).or_else(|| self.make::<LARGE_SPACE>())?;
            buffer.align_end_of_head(0);
            return Some(buffer);
        }
        None
    }

    /// The longest frame that [`take`](FramePool::take) has a buffer for.
    pub fn frame_len_max(&self) -> usize {
        LARGE_LEN
    }

    /// Takes a frame's buffer back.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        let mut buffer = frame.space;
        buffer.end_len = 0;
        if buffer.bytes.len() == SMALL_LEN && self.small.free.len() < self.small.keep {
            self.small.free.push(buffer);
        } else {
            self.put_back(buffer);
        }
    }

    /// Takes back a longer buffer, or a small one that does not fit on the shelf.
    #[inline(never)]
    fn put_back(&mut self, mut buffer: Buffer) {
        let budget = &*self.budget;
        let len = buffer.bytes.len();
        let is_kept = match len {
            SMALL_LEN => self.small.put(buffer, &budget.small),
            MIDDLE_LEN => self.middle.put(buffer, &budget.middle),
            _ => {
                buffer.end = None;
                self.large.put(buffer, &budget.large)
            }
        };
        if !is_kept {
            budget.give(len);
        }
    }

    /// A new buffer, if there is memory for it.
    #[cold]
    fn make<const LEN: usize>(&mut self) -> Option<Buffer> {
        let has_memory = self.budget.take(LEN) || self.trade(LEN);
        self.was_short |= !has_memory;
        has_memory.then(Space::boxed::<LEN>)
    }

    /// Frees spare buffers of other sizes until `bytes` of the budget are available. Without this,
    /// memory once taken for large frames would never again be available for small ones.
    fn trade(&mut self, bytes: usize) -> bool {
        for _ in 0..LARGE_SPACE.div_ceil(SMALL_LEN) {
            let Some(freed) = self.give_up() else { return false };
            self.budget.give(freed);
            if self.budget.take(bytes) {
                return true;
            }
        }
        false
    }

    /// Frees one spare buffer, a long one if possible, and returns its length.
    fn give_up(&mut self) -> Option<usize> {
        let budget = &*self.budget;
        if self.large.take(&budget.large).is_some() {
            return Some(LARGE_SPACE);
        }
        if self.middle.take(&budget.middle).is_some() {
            return Some(MIDDLE_LEN);
        }
        self.small.take(&budget.small).map(|_| SMALL_LEN)
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        self.budget.give(self.bytes_kept());
    }
}
