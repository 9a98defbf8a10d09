//! Responses that wait until their frames no longer refer to the guest's pages: within the round in
//! which the frames came.
//!
//! Responses keep the order of the ring, so only the oldest packet is checked. Its receipt shows
//! whether the frame still has its body. If a backend ends before it has responded to a request,
//! the next backend serves the request again: such a frame may leave twice but is never lost.

use std::collections::VecDeque;
use std::task::Waker;

use ringway_datapath::{Pending, Receipt, Receipts};
use ringway_wire::netif::{TX_RING_SLOTS, TxResponse};

/// Deferred responses of a tx ring.
pub(crate) struct Unanswered {
    /// One for each slot of the ring. A packet uses that of its first slot, and blocks the
    /// responses behind it.
    receipts: Receipts,
    /// In ring order.
    responses: VecDeque<TxResponse>,
}

impl Unanswered {
    pub(crate) fn new() -> Unanswered {
        Unanswered {
            // Receipts return in the thread of the queue, which need not be woken.
            receipts: Receipts::new(TX_RING_SLOTS, Waker::noop()),
            responses: VecDeque::with_capacity(TX_RING_SLOTS),
        }
    }

    /// The receipt for the body of the packet that begins in the slot with this index.
    pub(crate) fn issue(&self, index: u32) -> Receipt {
        self.receipts.issue(place(index))
    }

    /// Adds the response for the next slot.
    pub(crate) fn push(&mut self, response: TxResponse) {
        self.responses.push_back(response);
    }

    /// Takes the oldest response, once its frame has no body. `consumer` is the index of the slot
    /// after the newest.
    pub(crate) fn pop(&mut self, consumer: u32) -> Option<TxResponse> {
        let oldest = self.oldest(consumer)?;
        if self.receipts.is_held(oldest) { None } else { self.responses.pop_front() }
    }

    /// Whether the oldest response can be sent.
    pub(crate) fn pending(&self, consumer: u32) -> Pending {
        match self.oldest(consumer) {
            Some(oldest) if !self.receipts.is_held(oldest) => Pending::Work,
            _ => Pending::Nothing,
        }
    }

    /// The number of slots that wait for a response.
    pub(crate) fn len(&self) -> usize {
        self.responses.len()
    }

    fn oldest(&self, consumer: u32) -> Option<usize> {
        let count = u32::try_from(self.responses.len()).expect("a ring is small");
        (count > 0).then(|| place(consumer.wrapping_sub(count)))
    }
}

/// The ring's size is a power of two, so places remain consecutive when indices wrap.
pub(crate) fn place(index: u32) -> usize {
    usize::try_from(index).expect("32 bits fit") % TX_RING_SLOTS
}
