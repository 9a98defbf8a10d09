//! What a guest with headroom receives: its first page begins with free bytes, and an extra says
//! how many.
//!
//! A frontend asks for that while it runs a program of XDP, which may put headers before a frame.
//! Nothing else is different in what it gets. Linux' backend writes the offset 0, leaves the bytes
//! free in each slot, and counts them in each status, so that a frame seems longer than it is; its
//! frontend finds the frame by the extra alone, so here offset and status say what the header of
//! the protocol says of them.
//!
//! Frames come here complete, or are completed: a port with headroom leaves no segmentation to its
//! guest, so they are short.

use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

use ringway_datapath::{DropReason, Frame, FramePool, FrameQueue};
use ringway_hypervisor::{EventChannel, ForeignMemory, GrantCopy, GrantStatus};
use ringway_ring::{BackRing, Rx};
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, ExtraInfo, HEADROOM_MAX, NETRXF_MORE_DATA, RxRequest, RxResponse,
};
use ringway_wire::{GrantRef, PAGE_SIZE};

use super::{SLOTS_A_FRAME_MAX, Tally, extras, extras_of, flags_of, response_of};
use crate::VifQueue;

/// How many bytes the queues of a vif leave free before a frame for its guest: none unless that
/// asks for some. It changes while they are served, and applies to each batch as a whole.
#[derive(Debug, Default)]
pub struct Headroom(AtomicU16);

impl Headroom {
    /// Leaves as many bytes free from the next batch of each queue on; at most [`HEADROOM_MAX`].
    pub fn set(&self, bytes: u16) {
        // Nothing else depends on it: each frame says by itself how it is placed.
        self.0.store(bytes.min(HEADROOM_MAX), Ordering::Relaxed);
    }

    /// How many bytes are left free.
    #[inline]
    pub fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    /// The most slots that a frame takes because of it: one that its last bytes reach into, and an
    /// extra.
    #[inline]
    pub(crate) fn slots_max(&self) -> usize {
        if self.get() > 0 { 2 } else { 0 }
    }
}

impl<M: ForeignMemory + 'static, E: EventChannel> VifQueue<M, E> {
    /// Chooses the frames that fit into the posted pages and plans their copies. Returns the slots
    /// that they use: those of their extras count, so never more than are posted.
    #[inline(never)]
    pub(super) fn plan_behind(
        &mut self,
        headroom: u16,
        taken: usize,
        from: &mut FrameQueue,
        pool: &mut FramePool,
    ) -> usize {
        let scratch = &mut *self.scratch;
        scratch.copies.clear();
        scratch.page_copies.clear();
        let mut posted = &scratch.rx_requests[..taken];
        while !scratch.leaving.is_full() {
            let Some(mut frame) = from.pop_front() else { break };
            let pages = pages_of(frame.len(), headroom);
            let extras = extras_of(&frame, self.takes_hashes) + 1;
            let slots = pages + extras;
            // One of 64 KiB was made for a guest that had no headroom then.
            let is_long = pages > 1 && !self.features.caps.scatter_gather;
            let completed = match is_long || slots > SLOTS_A_FRAME_MAX {
                true => Err(DropReason::TooLong),
                false => pool.complete(&mut frame),
            };
            if let Err(reason) = completed {
                self.counters.dropped.count(reason, 1);
                pool.recycle(frame);
                continue;
            }
            if slots > posted.len() {
                self.rx_pages_wanted = u32::try_from(slots).expect("a frame has few pages");
                from.push_front(frame);
                break;
            }
            let (own, others) = posted.split_at(slots);
            let local = u16::try_from(scratch.leaving.len()).expect("a batch is small");
            let copies = (0..pages).map(|page| {
                let slot = if page > 0 { page + extras } else { 0 };
                copy_of(&frame, page, headroom, &own[slot], local)
            });
            scratch.copies.extend(copies);
            scratch.leaving.push(frame);
            posted = others;
        }
        taken - posted.len()
    }

    /// Writes the responses of all frames whose copies were made.
    #[inline(never)]
    pub(super) fn push_behind(&mut self, headroom: u16, used: usize) {
        let scratch = &*self.scratch;
        let (mut copies, mut requests) = (&scratch.copies[..], &scratch.rx_requests[..used]);
        let mut given = Tally::default();
        self.rx.begin_responses();
        for frame in &scratch.leaving {
            let pages = pages_of(frame.len(), headroom);
            let extras = extras_of(frame, self.takes_hashes) + 1;
            let (own_copies, other_copies) = copies.split_at(pages);
            let (own_requests, other_requests) = requests.split_at(pages + extras);
            (copies, requests) = (other_copies, other_requests);
            push(&mut self.rx, frame, headroom, own_copies, own_requests);
            let is_whole = own_copies.iter().all(|copy| copy.status == GrantStatus::Okay);
            given.add(is_whole, frame.len());
        }
        given.count(&self.counters);
    }
}

/// Writes the responses of a frame: its first page, its extras, its other pages.
fn push(
    rx: &mut BackRing<Rx>,
    frame: &Frame,
    headroom: u16,
    copies: &[GrantCopy],
    requests: &[RxRequest],
) {
    let count = requests.len() - copies.len();
    let Some((first, others)) = requests.split_first() else { return };
    for (page, copy) in copies.iter().enumerate() {
        let more = if page + 1 < copies.len() { NETRXF_MORE_DATA } else { 0 };
        if page > 0 {
            let request = &others[count + page - 1];
            rx.push_response(response_of(copy.status, copy.len, request, more));
            continue;
        }
        let flags = flags_of(frame, count) | more;
        let response = response_of(copy.status, copy.len, first, flags);
        //= netif.h:xdp-extra
        rx.push_response(RxResponse { offset: headroom, ..response });
        for mut extra in extras(frame).take(count - 1) {
            extra.flags |= EXTRA_FLAG_MORE;
            rx.push_response(extra);
        }
        rx.push_response(ExtraInfo::for_xdp(headroom));
    }
}

/// The copy of the bytes in a frame's `page`-th page.
fn copy_of(
    frame: &Frame,
    page: usize,
    headroom: u16,
    request: &RxRequest,
    local: u16,
) -> GrantCopy {
    let bytes = bytes_in(frame.len(), page, headroom);
    GrantCopy {
        gref: GrantRef(request.gref),
        offset: if page == 0 { headroom } else { 0 },
        len: u16::try_from(bytes.len()).expect("a page is 4096 bytes"),
        local,
        local_offset: u32::try_from(bytes.start).expect("a frame is 64 KiB"),
        status: GrantStatus::GeneralError,
    }
}

/// The pages that a frame of `len` bytes takes behind its headroom.
fn pages_of(len: usize, headroom: u16) -> usize {
    (len + usize::from(headroom)).div_ceil(PAGE_SIZE).max(1)
}

/// The place in a frame of the bytes in its `page`-th page.
fn bytes_in(len: usize, page: usize, headroom: u16) -> Range<usize> {
    let headroom = usize::from(headroom);
    let start = (page * PAGE_SIZE).saturating_sub(headroom);
    start..len.min((page + 1) * PAGE_SIZE - headroom)
}
