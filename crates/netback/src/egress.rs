//! What the guest receives: frames become rx slots.
//!
//! A frame is packed into as few of the guest's pages as possible. If it was segmented, an extra
//! takes the slot after the first (netif a3). A frame is only begun when enough pages are posted
//! for all of it.

use ringway_datapath::{Checksum, DropReason, Frame, FramePool, FrameQueue, PortDown};
use ringway_hypervisor::{Direction, EventChannel, ForeignMemory, GrantCopy, GrantStatus};
use ringway_wire::netif::{
    NETIF_RSP_ERROR, NETRXF_CSUM_BLANK, NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA,
    RxResponse,
};
use ringway_wire::{GrantRef, PAGE_SIZE};

use crate::VifQueue;

impl<M: ForeignMemory, E: EventChannel> VifQueue<M, E> {
    pub(crate) fn give_packets(
        &mut self,
        from: &mut FrameQueue,
        pool: &mut FramePool,
    ) -> Result<(), PortDown> {
        self.rx_pages_wanted = 0;
        if from.is_empty() {
            return Ok(());
        }
        let (taken, _) = self.rx.peek_requests(&mut self.scratch.rx_requests)?;
        self.plan_leaving(taken, from, pool);
        let given = self.copy_and_answer();
        // The pool outlives this port: it gets its buffers back also when the port goes down.
        for frame in self.scratch.leaving.drain(..) {
            pool.recycle(frame);
        }
        given
    }

    fn copy_and_answer(&mut self) -> Result<(), PortDown> {
        let leaving = &self.scratch.leaving;
        self.memory.copy_to_peer(self.peer, &mut self.scratch.copies, leaving)?;
        self.answer_pages();
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
            let extras = slots - pages;
            let data = own.iter().enumerate().filter(|(slot, _)| extras == 0 || *slot != 1);
            for (page, (_, request)) in data.enumerate() {
                scratch.copies.push(GrantCopy {
                    gref: GrantRef(request.gref),
                    offset: 0,
                    len: u16::try_from(chunk_len(frame, page)).expect("a page is 4096 bytes"),
                    local,
                    local_offset: u32::try_from(page * PAGE_SIZE).expect("a frame is 64 KiB"),
                    status: GrantStatus::GeneralError,
                });
            }
            scratch.leaving.extend(from.pop_front());
            self.rx.consume(slots);
            posted = others;
        }
    }

    /// One response per page, each in the slot of its request.
    fn answer_pages(&mut self) {
        let scratch = &*self.scratch;
        let mut copies = scratch.copies.iter();
        let mut requests = scratch.rx_requests.iter();
        let (mut packets, mut bytes) = (0, 0);
        for frame in &scratch.leaving {
            let pages = frame.len().div_ceil(PAGE_SIZE);
            let first_flags = flags_of(frame);
            let mut is_good = true;
            for page in 0..pages {
                let (Some(copy), Some(request)) = (copies.next(), requests.next()) else { return };
                let more = if page + 1 < pages { NETRXF_MORE_DATA } else { 0 };
                let flags = more | if page == 0 { first_flags } else { 0 };
                let is_copied = copy.status == GrantStatus::Okay;
                is_good &= is_copied;
                let len = i16::try_from(copy.len).expect("a page is 4096 bytes");
                let status = if is_copied { len } else { NETIF_RSP_ERROR };
                self.rx.push_response(RxResponse { id: request.id, offset: 0, flags, status });
                if let (0, Some(gso)) = (page, frame.offload.gso) {
                    self.rx.push_response(gso.to_extra());
                    requests.next();
                }
            }
            if is_good {
                packets += 1;
                bytes += u64::try_from(frame.len()).unwrap_or(u64::MAX);
            } else {
                self.counters.dropped.count(DropReason::GrantCopy, 1);
            }
        }
        self.counters.add_rx(packets, bytes);
    }
}

/// Bytes of a frame that its `page`-th page holds.
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
