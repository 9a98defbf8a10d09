//! What the guest transmits: frames become tx requests.

use ringway_datapath::{
    Checksum, DropReason, End, Frame, FramePool, FrameQueue, MacAddr, QueueDown, Result,
};
use ringway_hypervisor::{Direction, EventChannel, GrantTable};
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{
    EXTRA_TYPE_MCAST_ADD, EXTRA_TYPE_MCAST_DEL, ExtraInfo, MAX_TX_SIZE, NETIF_RSP_NULL,
    NETTXF_CSUM_BLANK, NETTXF_DATA_VALIDATED, NETTXF_EXTRA_INFO, NETTXF_MORE_DATA, TX_RING_SLOTS,
    TxRequest, slots_max,
};

use crate::sending::Sending;
use crate::{ResponseFault, VifQueue};

/// What a guest wants of a multicast address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupOrder {
    /// Its frames.
    Add,
    /// No more of them.
    Remove,
}

/// Slots of an order: its request, which has no packet, and an extra.
const ORDER_SLOTS: usize = 2;

/// How many pages are prefetched before they are written.
const PAGES_AHEAD: usize = 2;

/// How many of `pages` outstanding pages must complete before a queue is woken: for a full ring,
/// one wake-up then makes room for the largest packet or for many small ones.
pub(crate) fn responses_per_wake(pages: usize) -> u32 {
    u32::try_from(pages / 8).unwrap_or(u32::MAX).clamp(1, 32)
}

impl<G: GrantTable, E: EventChannel> VifQueue<G, E> {
    pub(crate) fn give_packets(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        // A full ring keeps the backend busy. Reading its slots before enough of them are completed
        // would take their cache lines from the backend to gain room for only a frame or two.
        if self.tx.pending().map_err(QueueDown::peer)? < self.tx_responses_wanted {
            return Ok(());
        }
        self.reap()?;
        self.must_try_again = false;
        let (mut packets, mut bytes) = (0, 0);
        for (ahead, frame) in from.iter().take(PAGES_AHEAD).enumerate() {
            self.prefetch_for(ahead, frame);
        }
        while let Some(frame) = from.front_mut() {
            let Ok(total) = u16::try_from(frame.len()) else {
                // Longer than MAX_TX_SIZE, which the ring cannot express.
                const { assert!(MAX_TX_SIZE == u16::MAX) };
                self.counters.dropped.count(DropReason::TooLong, 1);
                from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
                continue;
            };
            if !self.has_slab_of(frame) {
                if let Err(reason) = pool.complete(frame) {
                    self.counters.dropped.count(reason, 1);
                    from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
                    continue;
                }
            }
            let pages = frame.bytes().len().div_ceil(PAGE_SIZE);
            let slots = pages + end_pages(frame) + usize::from(frame.offload.gso.is_some());
            if slots > self.tx.free() || pages > self.tx_free.len() || self.is_at_limit() {
                self.tx_responses_wanted = self.tx_responses_per_wake;
                break;
            }
            if let Some(later) = from.get(PAGES_AHEAD) {
                self.prefetch_for(PAGES_AHEAD, later);
            }
            let Some(mut frame) = from.pop_front() else { break };
            self.push_packet(&mut frame, total);
            packets += 1;
            bytes += u64::from(total);
            pool.recycle(frame);
        }
        self.counters.add_tx(packets, bytes);
        let unanswered = u64::try_from(self.pages_unanswered()).unwrap_or(u64::MAX);
        self.counters.set_tx_unanswered(unanswered);
        let notify = self.tx.publish_requests();
        self.notify(Direction::Tx, notify)
    }

    /// Prefetches the page for the frame `ahead` places behind the first, if each takes one page.
    /// The backend's CPU has read these pages last, so each store would wait for a line.
    fn prefetch_for(&self, ahead: usize, frame: &Frame) {
        let last = self.tx_free.len().checked_sub(1 + ahead);
        if let Some(buffer) = last.and_then(|at| self.tx_free.get(at)) {
            self.tx_buffers.prefetch(*buffer, frame.bytes().len().min(PAGE_SIZE));
        }
    }

    /// Pages that the backend may still read.
    fn pages_unanswered(&self) -> usize {
        let of_slabs = self.sending.as_ref().map_or(0, Sending::pages);
        TX_RING_SLOTS - self.tx_free.len() + of_slabs
    }

    /// Whether the limit of outstanding pages is reached.
    fn is_at_limit(&self) -> bool {
        self.tx_reserve > 0 && self.pages_unanswered() >= TX_RING_SLOTS - self.tx_reserve
    }

    /// Frames of this length that the ring has room for, within the limit of outstanding pages.
    pub(crate) fn room_in_ring(&self, len: usize) -> usize {
        let allowed = match self.tx_reserve {
            0 => usize::MAX,
            reserve => (TX_RING_SLOTS - reserve).saturating_sub(self.pages_unanswered()),
        };
        // The frame that reaches the limit may exceed it.
        (self.tx.free() / slots_max(len)).min(allowed.div_ceil(slots_max(len)))
    }

    fn has_slab_of(&self, frame: &Frame) -> bool {
        let (Some(sending), Some(end)) = (&self.sending, frame.end()) else { return false };
        sending.has(end)
    }

    /// Pushes the requests of one frame: first, extra, further. The bytes in its buffer are copied
    /// into granted pages; its end is in such pages already.
    fn push_packet(&mut self, frame: &mut Frame, total: u16) {
        let end = frame.take_end();
        let end_len = end.as_ref().map_or(0, End::len);
        let chunks = frame.bytes().chunks(PAGE_SIZE);
        let count = chunks.len() + end_len.div_ceil(PAGE_SIZE);
        for (index, chunk) in chunks.enumerate() {
            let buffer = self.tx_free.pop().expect("the caller counted free buffers");
            self.tx_buffers.fill(buffer, chunk);
            self.tx_outstanding[usize::from(buffer)] = true;
            let more = if index + 1 < count { NETTXF_MORE_DATA } else { 0 };
            let own = u16::try_from(chunk.len()).expect("a page is 4096 bytes");
            let (flags, size) = if index == 0 { (first_flags(frame), total) } else { (0, own) };
            self.tx.push_request(TxRequest {
                gref: self.tx_buffers.gref(usize::from(buffer)).0,
                offset: 0,
                flags: flags | more,
                id: buffer,
                size,
            });
            if let (0, Some(gso)) = (index, frame.offload.gso) {
                self.tx.push_request(gso.to_extra().expect("no frame of UDP comes whole"));
            }
        }
        let (Some(sending), Some(end)) = (&mut self.sending, end) else { return };
        let pages = end_len.div_ceil(PAGE_SIZE);
        self.tx.push_requests(sending.begin(end, pages).zip(0..pages).map(|((id, gref), page)| {
            let left = end_len - page * PAGE_SIZE;
            let flags = if left > PAGE_SIZE { NETTXF_MORE_DATA } else { 0 };
            let size = u16::try_from(left.min(PAGE_SIZE)).expect("a page is 4096 bytes");
            TxRequest { gref: gref.0, offset: 0, flags, id, size }
        }));
    }

    pub(crate) fn push_orders(&mut self, order: GroupOrder, groups: &[MacAddr]) -> Result<usize> {
        self.reap()?;
        let kind = match order {
            GroupOrder::Add => EXTRA_TYPE_MCAST_ADD,
            GroupOrder::Remove => EXTRA_TYPE_MCAST_DEL,
        };
        let mut count = 0;
        for group in groups {
            if self.tx.free() < ORDER_SLOTS {
                break;
            }
            let Some(buffer) = self.tx_free.pop() else { break };
            self.tx_outstanding[usize::from(buffer)] = true;
            //= netif.h:multicast-order
            self.tx.push_request(TxRequest {
                gref: self.tx_buffers.gref(usize::from(buffer)).0,
                offset: 0,
                flags: NETTXF_EXTRA_INFO,
                id: buffer,
                size: 0,
            });
            self.tx.push_request(ExtraInfo::for_multicast(kind, group.0));
            count += 1;
        }
        let notify = self.tx.publish_requests();
        self.notify(Direction::Tx, notify)?;
        Ok(count)
    }

    /// Takes completed buffers back. A status other than OKAY means that the backend dropped the
    /// packet and counted it; the buffer is ours again in any case.
    pub(crate) fn reap(&mut self) -> Result {
        let count = self.tx.peek_responses(&mut *self.tx_responses).map_err(QueueDown::peer)?;
        for response in &self.tx_responses[..count] {
            if response.status == NETIF_RSP_NULL {
                continue;
            }
            //= netif.h:id-echo
            let outstanding = self.tx_outstanding.get_mut(usize::from(response.id));
            match outstanding {
                Some(is_outstanding) if *is_outstanding => *is_outstanding = false,
                None if self.sending.as_mut().is_some_and(|own| own.complete(response.id)) => {
                    continue;
                }
                _ => return Err(QueueDown::peer(ResponseFault::Unknown { id: response.id })),
            }
            self.tx_free.push(response.id);
        }
        self.tx.consume(count);
        // Frames that wait for so many responses may have their room now, and as many more may not
        // come.
        self.must_try_again |= std::mem::take(&mut self.tx_responses_wanted) > 0;
        Ok(())
    }
}

fn end_pages(frame: &Frame) -> usize {
    frame.end().map_or(0, |end| end.len().div_ceil(PAGE_SIZE))
}

fn first_flags(frame: &Frame) -> u16 {
    let checksum = match frame.offload.checksum {
        Checksum::Blank => NETTXF_CSUM_BLANK | NETTXF_DATA_VALIDATED,
        Checksum::Validated => NETTXF_DATA_VALIDATED,
        Checksum::Unverified => 0,
    };
    checksum | if frame.offload.gso.is_some() { NETTXF_EXTRA_INFO } else { 0 }
}
