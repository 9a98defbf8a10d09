//! What the guest receives: frames become rx slots.
//!
//! A frame is packed into as few of the guest's pages as possible. If it has pending segmentation,
//! an extra takes the slot after the first (`netif.h:slot-order`). A frame is begun only when
//! enough pages are posted for all of it.

use ringway_datapath::{Checksum, DropReason, Frame, FramePool, FrameQueue, LARGE_LEN, QueueDown};
use ringway_hypervisor::{Direction, EventChannel, ForeignMemory, GrantCopy, GrantStatus};
use ringway_ring::{BackRing, Rx};
use ringway_wire::netif::{
    NETIF_RSP_ERROR, NETRXF_CSUM_BLANK, NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA,
    RX_RING_SLOTS, RxRequest, RxResponse,
};
use ringway_wire::{GrantRef, PAGE_SIZE};

use crate::VifQueue;

/// Slots that the longest frame takes: its pages and an extra.
const SLOTS_A_FRAME_MAX: usize = LARGE_LEN.div_ceil(PAGE_SIZE) + 1;

impl<M: ForeignMemory, E: EventChannel> VifQueue<M, E> {
    pub(crate) fn give_packets(
        &mut self,
        from: &mut FrameQueue,
        pool: &mut FramePool,
    ) -> Result<(), QueueDown> {
        self.rx_pages_wanted = 0;
        if from.is_empty() {
            return Ok(());
        }
        let slots_max = from.len().saturating_mul(SLOTS_A_FRAME_MAX).min(RX_RING_SLOTS);
        let posted = &mut self.scratch.rx_requests[..slots_max];
        let (taken, _) = self.rx.peek_requests(posted).map_err(QueueDown::peer)?;
        self.plan_leaving(taken, from, pool);
        let given = self.copy_and_respond();
        // The pool outlives this port, so it must get its buffers back even when the port goes
        // down.
        for frame in self.scratch.leaving.drain(..) {
            pool.recycle(frame);
        }
        given
    }

    fn copy_and_respond(&mut self) -> Result<(), QueueDown> {
        let leaving = &self.scratch.leaving;
        self.memory.copy_to_peer(self.peer, &mut self.scratch.copies, leaving)?;
        self.push_rx_responses();
        let notify = self.rx.publish_responses();
        self.notify(Direction::Rx, notify)
    }

    /// Chooses the frames that fit into the posted pages and plans their copies.
    fn plan_leaving(&mut self, taken: usize, from: &mut FrameQueue, pool: &mut FramePool) {
        let scratch = &mut *self.scratch;
        scratch.copies.clear();
        let mut posted = &scratch.rx_requests[..taken];
        while let (Some(frame), false) = (from.front(), scratch.leaving.is_full()) {
            let pages = frame.len().div_ceil(PAGE_SIZE);
            if pages > 1 && !self.features.caps.scatter_gather {
                self.counters.dropped.count(DropReason::TooLong, 1);
                from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
                continue;
            }
            let slots = pages + usize::from(frame.offload.gso.is_some());
            if slots > posted.len() {
                self.rx_pages_wanted = u32::try_from(slots).expect("a frame has few pages");
                break;
            }
            let (own, others) = posted.split_at(slots);
            let local = u16::try_from(scratch.leaving.len()).expect("a batch is small");
            match own {
                [only] => scratch.copies.push(copy_of(frame, 0, only, local)),
                several => plan_copies(frame, several, local, &mut scratch.copies),
            }
            let frame = from.pop_front().expect("a frame was at the front");
            scratch.leaving.push(frame);
            posted = others;
        }
        self.rx.consume(taken - posted.len());
    }

    /// One response per page, each in the slot of its request.
    fn push_rx_responses(&mut self) {
        let scratch = &*self.scratch;
        let (mut copies, mut requests) = (&scratch.copies[..], &scratch.rx_requests[..]);
        let (mut packets, mut bytes) = (0, 0);
        for frame in &scratch.leaving {
            let pages = frame.len().div_ceil(PAGE_SIZE);
            let slots = pages + usize::from(frame.offload.gso.is_some());
            let (own_copies, other_copies) = copies.split_at(pages);
            let (own_requests, other_requests) = requests.split_at(slots);
            (copies, requests) = (other_copies, other_requests);
            if let ([copy], [request]) = (own_copies, own_requests) {
                self.rx.push_response(response_of(copy, request, flags_of(frame)));
            } else {
                push_several(&mut self.rx, frame, own_copies, own_requests);
            }
            if own_copies.iter().all(|copy| copy.status == GrantStatus::Okay) {
                packets += 1;
                bytes += u64::try_from(frame.len()).unwrap_or(u64::MAX);
            } else {
                self.counters.dropped.count(DropReason::GrantCopy, 1);
            }
        }
        self.counters.add_rx(packets, bytes);
    }
}

/// Writes the responses of a frame of several slots: its first page, the extra if it has one, its
/// other pages.
#[inline(never)]
fn push_several(
    rx: &mut BackRing<Rx>,
    frame: &Frame,
    copies: &[GrantCopy],
    requests: &[RxRequest],
) {
    let mut requests = requests.iter();
    for (page, copy) in copies.iter().enumerate() {
        let Some(request) = requests.next() else { return };
        let more = if page + 1 < copies.len() { NETRXF_MORE_DATA } else { 0 };
        let flags = more | if page == 0 { flags_of(frame) } else { 0 };
        rx.push_response(response_of(copy, request, flags));
        if let (0, Some(gso)) = (page, frame.offload.gso) {
            rx.push_response(gso.to_extra().expect("no frame of UDP comes whole"));
            requests.next();
        }
    }
}

#[inline]
fn response_of(copy: &GrantCopy, request: &RxRequest, flags: u16) -> RxResponse {
    let len = i16::try_from(copy.len).expect("a page is 4096 bytes");
    let status = if copy.status == GrantStatus::Okay { len } else { NETIF_RSP_ERROR };
    RxResponse { id: request.id, offset: 0, flags, status }
}

/// One copy per page; the slot after the first is left for an extra if there are more slots than
/// pages.
#[inline(never)]
fn plan_copies(
    frame: &Frame,
    slots: &[RxRequest],
    local: u16,
    copies: &mut impl Extend<GrantCopy>,
) {
    let has_extra = frame.offload.gso.is_some();
    let data = slots.iter().enumerate().filter(|(slot, _)| !has_extra || *slot != 1);
    copies
        .extend(data.enumerate().map(|(page, (_, request))| copy_of(frame, page, request, local)));
}

/// The copy of a frame's `page`-th page.
#[inline]
fn copy_of(frame: &Frame, page: usize, request: &RxRequest, local: u16) -> GrantCopy {
    GrantCopy {
        gref: GrantRef(request.gref),
        offset: 0,
        len: u16::try_from(chunk_len(frame, page)).expect("a page is 4096 bytes"),
        local,
        local_offset: u32::try_from(page * PAGE_SIZE).expect("a frame is 64 KiB"),
        status: GrantStatus::GeneralError,
    }
}

/// Bytes of a frame in its `page`-th page.
fn chunk_len(frame: &Frame, page: usize) -> usize {
    (frame.len() - page * PAGE_SIZE).min(PAGE_SIZE)
}

fn flags_of(frame: &Frame) -> u16 {
    let checksum = match frame.offload.checksum {
        Checksum::Blank => NETRXF_CSUM_BLANK | NETRXF_DATA_VALIDATED,
        Checksum::Validated => NETRXF_DATA_VALIDATED,
        Checksum::Unverified => 0,
    };
    checksum | if frame.offload.gso.is_some() { NETRXF_EXTRA_INFO } else { 0 }
}
