//! What the guest receives: frames become rx slots.
//!
//! A frame is packed into as few of the guest's pages as possible: its own bytes from its buffer,
//! and an end that another guest has lent from that guest's pages. If it has pending segmentation,
//! or was steered by the guest's own hash, extras take the slots after the first
//! (`netif.h:slot-order`). A frame is begun only when enough pages are posted for all of it. What a
//! guest with headroom gets is planned elsewhere (`headroom.rs`): most have none.

use std::io;
use std::sync::Arc;

use arrayvec::ArrayVec;
use ringway_datapath::{
    Checksum, DropReason, End, FlowHash, Frame, FramePool, FrameQueue, LARGE_LEN, QueueCounters,
    QueueDown, Result,
};
use ringway_hypervisor::{
    Direction, EventChannel, ForeignMemory, GrantCopy, GrantStatus, PageCopy,
};
use ringway_ring::{BackRing, Rx};
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, ExtraInfo, HASH_ALGORITHM_TOEPLITZ, NETIF_RSP_ERROR, NETRXF_CSUM_BLANK,
    NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA, RX_RING_SLOTS, RxRequest,
    RxResponse,
};
use ringway_wire::{GrantRef, PAGE_SIZE};

use crate::lending::LentPages;
use crate::staging::{Sources, StagedMemory, StagedPages};
use crate::{Scratch, VifQueue};

mod headroom;

pub use headroom::Headroom;

/// Slots that the longest frame takes: its pages and two extras.
// not a limit: the longest frame
const SLOTS_A_FRAME_MAX: usize = LARGE_LEN.div_ceil(PAGE_SIZE) + 2;
/// Copies from page to page in one call: two for each page, as those of two guests seldom begin at
/// the same byte of a frame.
// not a limit: a batch, the rest follows
pub(crate) const PAGE_COPIES_MAX: usize = 2 * RX_RING_SLOTS;

/// How ends leave that other guests have lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// From page to page, by copies that are planned.
    InPages,
    /// From the frame's buffer: each frame is completed first.
    Completed,
}

impl<M: ForeignMemory + 'static, E: EventChannel> VifQueue<M, E> {
    pub(crate) fn give_packets(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        self.rx_pages_wanted = 0;
        if from.is_empty() {
            return Ok(());
        }
        let headroom = self.headroom.get();
        let slots_max = from.len().saturating_mul(SLOTS_A_FRAME_MAX).min(RX_RING_SLOTS);
        let posted = &mut self.scratch.rx_requests[..slots_max];
        let (taken, _) = self.rx.peek_requests(posted).map_err(QueueDown::peer)?;
        let used = match headroom {
            0 => self.plan_leaving(Leaving::InPages, taken, from, pool),
            _ => self.plan_behind(headroom, taken, from, pool),
        };
        let given = match self.copy_ends(taken, used, from, pool) {
            Ok(used) => self.copy_and_respond(headroom, used),
            Err(error) => Err(error.into()),
        };
        // The pool outlives this port, so it must get its buffers back even when the port goes
        // down.
        for frame in self.scratch.leaving.drain(..) {
            pool.recycle(frame);
        }
        given
    }

    /// Copies the ends that are in pages of other guests. If one of these copies fails, whichever
    /// guest is to blame, all frames are completed, those whose pages cannot be read are dropped,
    /// and the others are planned again, with the next ones in the slots of what was dropped.
    /// Returns the slots that are used.
    fn copy_ends(
        &mut self,
        taken: usize,
        used: usize,
        from: &mut FrameQueue,
        pool: &mut FramePool,
    ) -> io::Result<usize> {
        let Scratch { page_copies: copies, sources, .. } = &mut *self.scratch;
        if copies.is_empty() {
            return Ok(used);
        }
        let copied = self.memory.copy_pages(self.peer, copies, sources);
        sources.clear();
        copied?;
        if copies.iter().all(|copy| copy.status == GrantStatus::Okay) {
            self.scratch.leaving.iter().for_each(|frame| pool.count_copied(frame));
            return Ok(used);
        }
        while let Some(mut frame) = self.scratch.leaving.pop() {
            match pool.complete(&mut frame) {
                Ok(()) => from.push_front(frame),
                Err(reason) => {
                    self.counters.dropped.count(reason, 1);
                    pool.recycle(frame);
                }
            }
        }
        Ok(self.plan_leaving(Leaving::Completed, taken, from, pool))
    }

    fn copy_and_respond(&mut self, headroom: u16, used: usize) -> Result {
        self.rx.consume(used);
        let leaving = &self.scratch.leaving;
        self.memory.copy_to_peer(self.peer, &mut self.scratch.copies, leaving)?;
        self.push_rx_responses(headroom, used);
        let notify = self.rx.publish_responses();
        self.notify(Direction::Rx, notify)
    }

    /// Chooses the frames that fit into the posted pages and plans their copies. Returns the slots
    /// that they use.
    fn plan_leaving(
        &mut self,
        way: Leaving,
        taken: usize,
        from: &mut FrameQueue,
        pool: &mut FramePool,
    ) -> usize {
        self.rx_pages_wanted = 0;
        let scratch = &mut *self.scratch;
        scratch.copies.clear();
        scratch.page_copies.clear();
        scratch.sources.clear();
        let mut posted = &scratch.rx_requests[..taken];
        while !scratch.leaving.is_full() {
            let Some(mut frame) = from.pop_front() else { break };
            let local = u16::try_from(scratch.leaving.len()).expect("a batch is small");
            if let (true, [only, others @ ..]) = (is_single(&frame, self.takes_hashes), posted) {
                scratch.copies.push(copy_of(&frame, 0, only, local));
                scratch.leaving.push(frame);
                posted = others;
                continue;
            }
            let pages = frame.len().div_ceil(PAGE_SIZE);
            if pages > 1 && !self.features.caps.scatter_gather {
                self.counters.dropped.count(DropReason::TooLong, 1);
                pool.recycle(frame);
                continue;
            }
            let extras = extras_of(&frame, self.takes_hashes);
            let slots = pages + extras;
            if slots > posted.len() {
                self.rx_pages_wanted = u32::try_from(slots).expect("a frame has few pages");
                from.push_front(frame);
                break;
            }
            let (own, others) = posted.split_at(slots);
            let copies = (&mut scratch.page_copies, &mut scratch.sources);
            if !plan_page_copies::<M>(way, &frame, (own, extras), pool, copies) {
                if let Err(reason) = pool.complete(&mut frame) {
                    self.counters.dropped.count(reason, 1);
                    pool.recycle(frame);
                    continue;
                }
            }
            plan_copies(&frame, (own, extras), local, &mut scratch.copies);
            scratch.leaving.push(frame);
            posted = others;
        }
        taken - posted.len()
    }

    /// One response per page, each in the slot of its request.
    fn push_rx_responses(&mut self, headroom: u16, used: usize) {
        let scratch = &*self.scratch;
        let (mut copies, mut requests) = (&scratch.copies[..], &scratch.rx_requests[..used]);
        let mut given = Tally::default();
        if requests.len() == scratch.leaving.len() {
            // One slot each, and so one copy.
            let parts = copies.iter().zip(requests).zip(&scratch.leaving);
            self.rx.push_responses(parts.map(|((copy, request), frame)| {
                given.add(copy.status == GrantStatus::Okay, copy.len.into());
                response_of(copy.status, copy.len, request, flags_of(frame, 0))
            }));
            return given.count(&self.counters);
        }
        if headroom > 0 {
            // Each of its frames has an extra.
            return self.push_behind(headroom, used);
        }
        self.rx.begin_responses();
        for frame in &scratch.leaving {
            let slots = frame.len().div_ceil(PAGE_SIZE) + extras_of(frame, self.takes_hashes);
            let (own_copies, other_copies) =
                copies.split_at(frame.bytes().len().div_ceil(PAGE_SIZE));
            let (own_requests, other_requests) = requests.split_at(slots);
            (copies, requests) = (other_copies, other_requests);
            push_several(&mut self.rx, frame, own_copies, own_requests);
            let is_whole = own_copies.iter().all(|copy| copy.status == GrantStatus::Okay);
            given.add(is_whole, frame.len());
        }
        given.count(&self.counters);
    }
}

/// What became of frames whose copies were made.
#[derive(Default)]
struct Tally {
    packets: u64,
    bytes: u64,
    lost: u64,
}

impl Tally {
    #[inline]
    fn add(&mut self, is_whole: bool, len: usize) {
        match is_whole {
            true => {
                self.packets += 1;
                self.bytes += u64::try_from(len).unwrap_or(u64::MAX);
            }
            false => self.lost += 1,
        }
    }

    #[inline]
    fn count(self, counters: &QueueCounters) {
        counters.add_rx(self.packets, self.bytes);
        if self.lost > 0 {
            counters.dropped.count(DropReason::GrantCopy, self.lost);
        }
    }
}

/// Whether a frame takes one slot and one copy, as nearly all do.
#[inline]
fn is_single(frame: &Frame, takes_hashes: bool) -> bool {
    let is_short = frame.len() <= PAGE_SIZE && frame.is_complete();
    is_short && extras_of(frame, takes_hashes) == 0
}

/// Writes the responses of a frame of several slots: its first page, the extras if it has some, its
/// other pages.
#[inline(never)]
fn push_several(
    rx: &mut BackRing<Rx>,
    frame: &Frame,
    copies: &[GrantCopy],
    requests: &[RxRequest],
) {
    let pages = frame.len().div_ceil(PAGE_SIZE);
    let extras = requests.len() - pages;
    let response = |page: usize, request: &RxRequest, flags: u16| {
        // Pages behind the frame's own bytes were copied from another guest's, without fault.
        let status = copies.get(page).map_or(GrantStatus::Okay, |copy| copy.status);
        let len = u16::try_from(chunk_len(frame.len(), page)).expect("a page is 4096 bytes");
        let more = if page + 1 < pages { NETRXF_MORE_DATA } else { 0 };
        response_of(status, len, request, flags | more)
    };
    let Some((first, others)) = requests.split_first() else { return };
    rx.push_response(response(0, first, flags_of(frame, extras)));
    push_extras(rx, frame, extras);
    let further = (1..pages).zip(&others[extras..]);
    rx.push_responses(further.map(|(page, request)| response(page, request, 0)));
}

fn push_extras(rx: &mut BackRing<Rx>, frame: &Frame, count: usize) {
    for (index, mut extra) in extras(frame).take(count).enumerate() {
        if index + 1 < count {
            extra.flags |= EXTRA_FLAG_MORE;
        }
        rx.push_response(extra);
    }
}

/// How a frame is to be segmented, and the hash by which it was steered.
fn extras(frame: &Frame) -> impl Iterator<Item = ExtraInfo> {
    let gso = frame.offload.gso.map(|gso| gso.to_extra().expect("no frame of UDP comes whole"));
    let hash = frame
        .flow
        .map(|FlowHash { value, kind }| ExtraInfo::for_hash(value, kind, HASH_ALGORITHM_TOEPLITZ));
    gso.into_iter().chain(hash)
}

/// How many of them its guest gets.
#[inline]
fn extras_of(frame: &Frame, takes_hashes: bool) -> usize {
    let hash = takes_hashes && frame.flow.is_some();
    usize::from(frame.offload.gso.is_some()) + usize::from(hash)
}

#[inline]
fn response_of(status: GrantStatus, len: u16, request: &RxRequest, flags: u16) -> RxResponse {
    let len = i16::try_from(len).expect("a page is 4096 bytes");
    let status = if status == GrantStatus::Okay { len } else { NETIF_RSP_ERROR };
    RxResponse { id: request.id, offset: 0, flags, status }
}

/// One copy per page of the frame's own bytes; the slots after the first are left for its extras.
#[inline(never)]
fn plan_copies(
    frame: &Frame,
    (slots, extras): (&[RxRequest], usize),
    local: u16,
    copies: &mut impl Extend<GrantCopy>,
) {
    let pages = 0..frame.bytes().len().div_ceil(PAGE_SIZE);
    copies.extend(pages.map(|page| copy_of(frame, page, &slots[slot_of(page, extras)], local)));
}

/// The slot for a frame's `page`-th page, among those of the frame.
fn slot_of(page: usize, extras: usize) -> usize {
    if page > 0 { page + extras } else { page }
}

/// The copy of the frame's own bytes in its `page`-th page.
#[inline]
fn copy_of(frame: &Frame, page: usize, request: &RxRequest, local: u16) -> GrantCopy {
    let len = chunk_len(frame.bytes().len(), page);
    GrantCopy {
        gref: GrantRef(request.gref),
        offset: 0,
        len: u16::try_from(len).expect("a page is 4096 bytes"),
        local,
        local_offset: u32::try_from(page * PAGE_SIZE).expect("a frame is 64 KiB"),
        status: GrantStatus::GeneralError,
    }
}

/// The copies of an end that another guest has lent, each within one page of both guests. False if
/// the frame has such an end and must be completed: all are, there is no room for the copies, or
/// the memory is not of our kind.
#[inline]
fn plan_page_copies<M: 'static>(
    way: Leaving,
    frame: &Frame,
    slots: (&[RxRequest], usize),
    pool: &FramePool,
    copies: (&mut ArrayVec<PageCopy, PAGE_COPIES_MAX>, &mut Sources),
) -> bool {
    frame.end().is_none_or(|end| {
        let lent = pool.pages_of(end).and_then(|pages| pages.memory().downcast_ref());
        way == Leaving::InPages && plan_end::<M>(frame, end, lent, slots, copies)
    })
}

#[inline(never)]
fn plan_end<M: 'static>(
    frame: &Frame,
    frame_end: &End,
    lent: Option<&LentPages<StagedMemory<M>>>,
    (slots, extras): (&[RxRequest], usize),
    (copies, sources): (&mut ArrayVec<PageCopy, PAGE_COPIES_MAX>, &mut Sources),
) -> bool {
    // A copy ends where a page of either guest ends, or a piece.
    let copies_max = 2 * frame_end.len().div_ceil(PAGE_SIZE) + 2 * frame_end.pieces().len();
    let Some(lent) = lent.filter(|_| copies_max <= copies.remaining_capacity()) else {
        return false;
    };
    if let Some(pages) = lent.staged().filter(|pages| !is_in(sources, pages)) {
        // Without room for one more, the hypervisor copies from these.
        let _ = sources.try_push((lent.peer(), Arc::clone(pages)));
    }
    let mut to = frame.bytes().len();
    for piece in frame_end.pieces() {
        let (mut at, end) = (piece.at, piece.at + piece.len);
        while at < end {
            let left_in_pages = PAGE_SIZE - (at % PAGE_SIZE).max(to % PAGE_SIZE);
            let len = (end - at).min(left_in_pages);
            copies.push(PageCopy {
                from: lent.peer(),
                from_gref: lent.gref(at),
                from_offset: in_page(at),
                to_gref: GrantRef(slots[slot_of(to / PAGE_SIZE, extras)].gref),
                to_offset: in_page(to),
                len: u16::try_from(len).expect("a page is 4096 bytes"),
                status: GrantStatus::GeneralError,
            });
            at += len;
            to += len;
        }
    }
    true
}

fn is_in(sources: &Sources, pages: &Arc<StagedPages>) -> bool {
    sources.iter().any(|(_, known)| Arc::ptr_eq(known, pages))
}

fn in_page(at: usize) -> u16 {
    u16::try_from(at % PAGE_SIZE).expect("a page is 4096 bytes")
}

/// How many of `len` bytes are in the `page`-th page.
fn chunk_len(len: usize, page: usize) -> usize {
    (len - page * PAGE_SIZE).min(PAGE_SIZE)
}

fn flags_of(frame: &Frame, extras: usize) -> u16 {
    let checksum = match frame.offload.checksum {
        Checksum::Blank => NETRXF_CSUM_BLANK | NETRXF_DATA_VALIDATED,
        Checksum::Validated => NETRXF_DATA_VALIDATED,
        Checksum::Unverified => 0,
    };
    checksum | if extras > 0 { NETRXF_EXTRA_INFO } else { 0 }
}
