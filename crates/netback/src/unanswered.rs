//! Responses that wait until their frames have left ([`Completion::Sent`]), or until these no
//! longer refer to the guest's pages.
//!
//! Responses keep the order of the ring, so only the oldest packet is checked. Its receipt shows
//! whether the frame has left, by whatever path in this process. If a backend ends before it has
//! responded to a request, the next backend serves the request again: such a frame may leave twice
//! but is never lost.
//!
//! [`Completion::Sent`]: ringway_datapath::Completion::Sent

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

use ringway_datapath::{Pending, Receipt, Receipts};
use ringway_wire::netif::{TX_RING_SLOTS, TxResponse};
use rustix::event::{EventfdFlags, eventfd};

/// Deferred responses of a tx ring.
pub(crate) struct Unanswered {
    /// One for each slot of the ring. A packet uses that of its first slot, and blocks the
    /// responses behind it.
    receipts: Receipts,
    /// In ring order.
    responses: VecDeque<TxResponse>,
    /// Rings when the oldest response can be sent; `None` if that is always within the round in
    /// which the frame came.
    bell: Option<Arc<Bell>>,
}

impl Unanswered {
    /// # Errors
    /// If the process has no descriptor left.
    pub(crate) fn new() -> io::Result<Unanswered> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bell = Arc::new(Bell(bell));
        let waker = Waker::from(Arc::clone(&bell));
        Ok(Unanswered::of(&waker, Some(bell)))
    }

    /// For responses that wait within a round only.
    pub(crate) fn without_bell() -> Unanswered {
        Unanswered::of(Waker::noop(), None)
    }

    fn of(waker: &Waker, bell: Option<Arc<Bell>>) -> Unanswered {
        Unanswered {
            receipts: Receipts::new(TX_RING_SLOTS, waker),
            responses: VecDeque::with_capacity(TX_RING_SLOTS),
            bell,
        }
    }

    /// Whether every frame keeps its response back, and not only those that refer to pages.
    pub(crate) fn is_of_all(&self) -> bool {
        self.bell.is_some()
    }

    /// The receipt for the frame of the packet that begins in the slot with this index.
    pub(crate) fn issue(&self, index: u32) -> Receipt {
        self.receipts.issue(place(index))
    }

    /// Adds the response for the next slot.
    pub(crate) fn push(&mut self, response: TxResponse) {
        self.responses.push_back(response);
    }

    /// Takes the oldest response, once its frame has left. `consumer` is the index of the slot
    /// after the newest.
    pub(crate) fn pop(&mut self, consumer: u32) -> Option<TxResponse> {
        let oldest = self.oldest(consumer)?;
        if self.receipts.is_held(oldest) { None } else { self.responses.pop_front() }
    }

    /// Asks to be woken when the oldest response can be sent.
    pub(crate) fn arm(&self, consumer: u32) -> Pending {
        self.oldest(consumer).map_or(Pending::Nothing, |oldest| self.receipts.arm(oldest))
    }

    /// The number of slots that wait for a response.
    pub(crate) fn len(&self) -> usize {
        self.responses.len()
    }

    /// Empties the descriptor that woke us.
    pub(crate) fn woken(&self) {
        if let Some(bell) = &self.bell {
            // It may be empty: the event channels wake us, too.
            let _ = rustix::io::read(&bell.0, &mut [0; 8]);
        }
    }

    /// Becomes readable when the oldest response can be sent, if [`arm`](Unanswered::arm) asked for
    /// it.
    pub(crate) fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.0.as_fd())
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

/// Wakes the worker that owns the queue, from whichever thread returned the receipt.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The counter cannot overflow: the bell rings at most once for each request.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}
