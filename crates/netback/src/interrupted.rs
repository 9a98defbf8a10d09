//! Responses that a killed backend wrote and did not publish.
//!
//! They may be complete, or written for some of their slots only, or for none. What the slots still
//! show is enough to write them once more: which slots belong to extras, and the ids of all others.
//! The frames of that batch are lost, except those from the guest with `Completion::Sent`, which
//! had left.

use std::ops::AddAssign;

use ringway_ring::{BackRing, RingFault, Rx, Tx};
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, NETIF_RSP_ERROR, NETIF_RSP_OKAY, NETTXF_EXTRA_INFO, NETTXF_MORE_DATA,
    RX_RING_SLOTS, RxRequest, RxResponse, TX_RING_SLOTS, TxRequest, TxResponse,
};

use crate::runs::{extra_of, null_response};

/// Slots of a queue that got their responses when it was attached, because an earlier backend had
/// begun to write responses to them, or to others of their packet, and had published none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interrupted {
    /// Slots of the tx ring. Their packets are lost, unless that backend responded when frames had
    /// left.
    pub tx_slots: usize,
    /// Slots of the rx ring. Frames for them are lost.
    pub rx_slots: usize,
}

impl AddAssign for Interrupted {
    fn add_assign(&mut self, other: Interrupted) {
        self.tx_slots += other.tx_slots;
        self.rx_slots += other.rx_slots;
    }
}

/// Publishes the responses to what the guest transmitted: to whole packets, as their slots were
/// consumed together. Returns their number.
pub(crate) fn publish_tx(ring: &mut BackRing<Tx>) -> Result<usize, RingFault> {
    let interrupted = ring.interrupted();
    if interrupted == 0 {
        return Ok(0);
    }
    let mut slots = [TxRequest::default(); TX_RING_SLOTS];
    let (count, _) = ring.peek_requests(&mut slots)?;
    let (mut is_first, mut is_extra, mut is_data_next) = (true, false, false);
    let mut responses = 0;
    for slot in &slots[..count] {
        if responses >= interrupted && is_first {
            break;
        }
        responses += 1;
        ring.consume(1);
        if is_extra {
            ring.push_response(null_response(slot));
            is_extra = extra_of(slot).flags & EXTRA_FLAG_MORE != 0;
        } else {
            ring.push_response(TxResponse { id: slot.id, status: NETIF_RSP_OKAY });
            is_extra = is_first && slot.flags & NETTXF_EXTRA_INFO != 0;
            is_data_next = slot.flags & NETTXF_MORE_DATA != 0;
        }
        is_first = !is_extra && !is_data_next;
    }
    // The guest is notified in any case after a restart.
    let _ = ring.publish_responses();
    Ok(responses)
}

/// Returns the pages for what the guest should have received, as failed: of a frame in several
/// pages, some may have no response. Returns their number.
pub(crate) fn publish_rx(ring: &mut BackRing<Rx>) -> Result<usize, RingFault> {
    let mut slots = [RxRequest::default(); RX_RING_SLOTS];
    let (count, _) = ring.peek_requests(&mut slots[..ring.interrupted()])?;
    ring.consume(count);
    for slot in &slots[..count] {
        // A response has the id where its request had it. An extra had no id: frontends pair pages
        // with responses by slot (`netif.h:rx-same-slot`).
        ring.push_response(RxResponse {
            id: slot.id,
            offset: 0,
            flags: 0,
            status: NETIF_RSP_ERROR,
        });
    }
    let _ = ring.publish_responses();
    Ok(count)
}
