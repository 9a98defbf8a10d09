//! Long frames whose ends stay in the guest's memory until the end of the engine's round.
//!
//! Only the start of such a frame is copied: the virtio guest that receives it gets the rest from
//! the sender's memory, and a byte is copied once, not twice. The sender's chains are used at the
//! end of the round, so that the sender does not reuse the memory before.

use std::any::Any;
use std::sync::Arc;

use ringway_datapath::{
    DropReason, Ends, Frame, FramePool, Lender, LoanUse, Pages, Piece, QueueCounters,
};
use ringway_sys::SharedPages;
use ringway_sys::guest_memory::{GuestView, OutsideMemory};
use ringway_wire::virtio::VirtioNetHdrV1;
use ringway_wire::vnet::VIRTIO_NET_HDR_GSO_NONE;

/// Bytes of a frame that are always copied: all headers that are inspected. With the header before
/// the frame they take two cache lines, which are prefetched.
const HEAD_LEN: usize = 128 - size_of::<VirtioNetHdrV1>();
/// The shortest frame whose end is lent. The end of a shorter one is copied faster than lent.
pub(crate) const LENT_LEN_MIN: usize = 512;
/// Long frames that are copied after one that was lent had to be completed, because its receiver
/// takes none or has no room, and after a batch whose long frames left work, which are not lent.
const COPIED_AFTER_COMPLETION: usize = 1024;

/// A region of a guest's memory.
#[derive(Debug)]
struct LentRegion(SharedPages);

impl Pages for LentRegion {
    fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), DropReason> {
        self.0.copy_to(at, into);
        Ok(())
    }

    fn kind(&self) -> Ends {
        Ends::MAPPED
    }

    fn memory(&self) -> &dyn Any {
        self
    }
}

/// What a queue lends.
#[derive(Debug)]
pub(crate) struct Lending {
    /// The regions of the guest's memory, in the order of the view.
    regions: Box<[Arc<dyn Pages>]>,
    /// The number of the region lent from in this round: that of the first frame whose end is lent.
    lender: Option<(usize, Lender)>,
    /// Frames in this round whose ends might have been lent.
    long: u64,
    /// Whether only the head of a frame was copied at first in this round.
    has_split: bool,
    /// Long frames to copy before another one is lent.
    to_copy: usize,
}

impl Lending {
    pub(crate) fn new(view: &GuestView) -> Lending {
        let region =
            |pages: &SharedPages| -> Arc<dyn Pages> { Arc::new(LentRegion(pages.clone())) };
        let regions = view.regions().map(region).collect();
        Lending { regions, lender: None, long: 0, has_split: false, to_copy: 0 }
    }

    /// Copies header and frame from a buffer of the guest, or leaves the frame's end there, if it
    /// can be lent. Not inlined, to keep the path of short frames short.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    #[inline(never)]
    pub(crate) fn copy(
        &mut self,
        view: &GuestView,
        address: u64,
        header: &mut VirtioNetHdrV1,
        frame: &mut Frame,
        pool: &mut FramePool,
    ) -> Result<(), OutsideMemory> {
        let head_len = self.head_len(frame.len());
        view.copy_to_both(address, header, &mut frame.bytes_mut()[..head_len])?;
        let may_lend = leaves_nothing(header);
        if may_lend {
            self.count(frame.len());
        }
        if head_len == frame.len() {
            return Ok(());
        }
        let end = address + to_u64(size_of::<VirtioNetHdrV1>() + head_len);
        match may_lend && self.lend(view, end, frame, pool) {
            true => Ok(()),
            false => view.copy_to(end, &mut frame.bytes_mut()[head_len..]),
        }
    }

    /// How many bytes to copy of a frame of `len` bytes: only the first ones, if its end may be
    /// lent.
    #[inline]
    fn head_len(&mut self, len: usize) -> usize {
        if len < LENT_LEN_MIN || self.to_copy > 0 {
            return len;
        }
        self.has_split = true;
        HEAD_LEN
    }

    /// Counts a frame of `len` bytes that leaves no work, if it is a long one.
    #[inline]
    fn count(&mut self, len: usize) {
        if len >= LENT_LEN_MIN {
            self.long += 1;
            self.to_copy = self.to_copy.saturating_sub(1);
        }
    }

    /// Leaves the end of a frame, behind its first [`HEAD_LEN`] bytes, at `address`. False if it
    /// has to be copied, because it is not in the region that is lent from.
    #[inline]
    fn lend(
        &mut self,
        view: &GuestView,
        address: u64,
        frame: &mut Frame,
        pool: &mut FramePool,
    ) -> bool {
        let Some((region, at)) = view.locate(address, frame.len() - HEAD_LEN) else { return false };
        let new = || (region, pool.lender(&self.regions[region]));
        let (lent_region, lender) = *self.lender.get_or_insert_with(new);
        let is_lent = region == lent_region;
        if is_lent {
            frame.lend(HEAD_LEN, lender, at);
        }
        is_lent
    }

    /// Whether something was lent in this round.
    #[inline]
    pub(crate) fn has_lent(&self) -> bool {
        self.lender.is_some()
    }

    /// Called when no frame refers to the guest's memory any more.
    #[inline]
    pub(crate) fn end(&mut self, pool: &FramePool, counters: &QueueCounters) {
        if self.long > 0 || self.has_split {
            self.evaluate(pool, counters);
        }
    }

    /// Counts what was lent, and stops lending for a while if it was of no use.
    fn evaluate(&mut self, pool: &FramePool, counters: &QueueCounters) {
        let of_lender = self.lender.take().map(|(_, lender)| pool.use_of(lender));
        let LoanUse { copied, completed } = of_lender.unwrap_or_default();
        if completed > 0 || (self.has_split && of_lender.is_none()) {
            self.to_copy = COPIED_AFTER_COMPLETION;
        }
        counters.add_tx_long(self.long);
        counters.add_tx_lent(copied);
        (self.long, self.has_split) = (0, false);
    }
}

/// Whether a header asks for no checksum and no segments. A frame that asks for something may have
/// to be read as a whole.
#[inline]
pub(crate) fn leaves_nothing(header: &VirtioNetHdrV1) -> bool {
    header.hdr.flags == 0 && header.hdr.gso_type == VIRTIO_NET_HDR_GSO_NONE
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Copies the end of a frame from the guest that lent it to an address of another. `None` if it is
/// not the memory of a virtio guest.
#[inline]
pub(crate) fn copy_end(
    frame: &Frame,
    pool: &FramePool,
    view: &GuestView,
    address: u64,
) -> Option<Result<(), OutsideMemory>> {
    let end = frame.end()?;
    let LentRegion(pages) = pool.pages_of(end)?.memory().downcast_ref()?;
    let [Piece { at, len }] = *end.pieces() else { return None };
    Some(view.copy_across(address, pages, at, len))
}
