//! What the guest transmits: frames become tx requests.

use ringway_datapath::{Checksum, DropReason, Frame, FramePool, FrameQueue, PortDown};
use ringway_hypervisor::{Direction, EventChannel, GrantTable};
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{
    MAX_TX_SIZE, NETIF_RSP_NULL, NETTXF_CSUM_BLANK, NETTXF_DATA_VALIDATED, NETTXF_EXTRA_INFO,
    NETTXF_MORE_DATA, TX_RING_SLOTS, TxRequest,
};

use crate::{ResponseFault, VifQueue};

/// A queue that may have so many pages unanswered asks to be woken when this many were answered: of
/// a full ring, one wake-up then makes room for the largest packet or for many small ones.
pub(crate) fn answers_per_wake(pages: usize) -> u32 {
    u32::try_from(pages / 8).unwrap_or(u32::MAX).clamp(1, 32)
}

impl<G: GrantTable, E: EventChannel> VifQueue<G, E> {
    pub(crate) fn give_packets(
        &mut self,
        from: &mut FrameQueue,
        pool: &mut FramePool,
    ) -> Result<(), PortDown> {
        // A full ring keeps the backend busy. Reading its slots before enough of them are answered
        // would only take their cache lines from the backend, for room of a frame or two.
        if self.tx.pending().map_err(PortDown::peer)? < self.tx_answers_wanted {
            return Ok(());
        }
        self.reap()?;
        self.tx_answers_wanted = 0;
        let (mut packets, mut bytes) = (0, 0);
        while let Some(frame) = from.front() {
            let Ok(total) = u16::try_from(frame.len()) else {
                // Longer than MAX_TX_SIZE, which the ring has no words for.
                const { assert!(MAX_TX_SIZE == u16::MAX) };
                self.counters.dropped.count(DropReason::TooLong, 1);
                from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
                continue;
            };
            let pages = frame.len().div_ceil(PAGE_SIZE);
            let slots = pages + usize::from(frame.offload.gso.is_some());
            let pages = pages.max(self.tx_reserve + 1);
            if slots > self.tx.free() || pages > self.tx_free.len() {
                self.tx_answers_wanted = self.tx_answers_per_wake;
                break;
            }
            self.push_packet(frame, total);
            packets += 1;
            bytes += u64::from(total);
            from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
        }
        self.counters.add_tx(packets, bytes);
        self.counters.set_tx_unanswered(self.pages_unanswered());
        let notify = self.tx.publish_requests();
        self.notify(Direction::Tx, notify)
    }

    /// Pages that the backend may still read.
    fn pages_unanswered(&self) -> u64 {
        u64::try_from(TX_RING_SLOTS - self.tx_free.len()).unwrap_or(u64::MAX)
    }

    /// Copies one frame into granted pages and pushes its requests: first, extra, further.
    fn push_packet(&mut self, frame: &Frame, total: u16) {
        let chunks = frame.bytes().chunks(PAGE_SIZE);
        let count = chunks.len();
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
                self.tx.push_request(gso.to_extra());
            }
        }
    }

    /// Takes answered buffers back. A status other than OKAY means that the backend dropped the
    /// packet and counted it; the buffer is ours again all the same.
    fn reap(&mut self) -> Result<(), PortDown> {
        let count = self.tx.peek_responses(&mut *self.tx_responses).map_err(PortDown::peer)?;
        for response in &self.tx_responses[..count] {
            if response.status == NETIF_RSP_NULL {
                continue;
            }
            //= netif.h:id-echo
            let outstanding = self.tx_outstanding.get_mut(usize::from(response.id));
            match outstanding {
                Some(is_outstanding) if *is_outstanding => *is_outstanding = false,
                _ => return Err(PortDown::peer(ResponseFault::Unknown { id: response.id })),
            }
            self.tx_free.push(response.id);
        }
        self.tx.consume(count);
        Ok(())
    }
}

fn first_flags(frame: &Frame) -> u16 {
    let checksum = match frame.offload.checksum {
        Checksum::Blank => NETTXF_CSUM_BLANK | NETTXF_DATA_VALIDATED,
        Checksum::Validated => NETTXF_DATA_VALIDATED,
        Checksum::Unverified => 0,
    };
    checksum | if frame.offload.gso.is_some() { NETTXF_EXTRA_INFO } else { 0 }
}
