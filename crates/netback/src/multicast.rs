//! The guest's orders of which multicast frames it wants: requests of the tx ring without a packet.
//!
//! A queue carries them out at once. It responds when the control plane has noted them for the next
//! process of the backend: one that finds a request without a response carries it out again, so an
//! order is either noted or repeated. Until then the queue takes in nothing more, and a guest can
//! cause no more notes than the control plane writes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use ringway_datapath::{DropReason, MacAddr, MulticastFilter};
use ringway_wire::netif::{EXTRA_TYPE_MCAST_ADD, EXTRA_TYPE_MCAST_DEL, ExtraInfo};

/// What all queues of a vif change of the multicast frames that its guest gets, and what of that is
/// to be noted.
pub struct MulticastControl {
    filter: Arc<MulticastFilter>,
    /// Batches of orders that were carried out.
    done: AtomicU64,
    /// Of these, how many are noted.
    noted: AtomicU64,
    /// Wakes the control plane.
    waker: Waker,
}

/// The number of a batch of orders, counted over all queues of a vif.
pub type OrderBatch = u64;

impl MulticastControl {
    /// Changes this filter. `waker` is woken when [`note`](Self::note) has something to do.
    pub fn new(filter: Arc<MulticastFilter>, waker: Waker) -> MulticastControl {
        MulticastControl { filter, done: AtomicU64::new(0), noted: AtomicU64::new(0), waker }
    }

    /// Whether there are orders that are not noted.
    pub fn has_unnoted(&self) -> bool {
        self.noted.load(Ordering::Acquire) != self.done.load(Ordering::Acquire)
    }

    /// Has all orders so far noted at once: `write` is given what they result in. The queues that
    /// wait for it respond when they are polled again.
    pub fn note(&self, write: impl FnOnce(&MulticastFilter)) {
        // Before the filter, which has at least what was ordered until then.
        let done = self.done.load(Ordering::Acquire);
        write(&self.filter);
        self.noted.store(done, Ordering::Release);
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// The reason for which it is refused, and counted.
    pub fn carry_out(&self, order: MulticastOrder) -> Result<(), DropReason> {
        match order {
            MulticastOrder::Add(address) => {
                self.filter.add(address).map_err(|_| DropReason::MulticastFull)
            }
            MulticastOrder::Remove(address) => {
                self.filter.remove(address);
                Ok(())
            }
        }
    }

    /// Asks for a note of the orders that the calling queue has carried out.
    pub fn end_batch(&self) -> OrderBatch {
        // After the filter, which is noted as it is then.
        let before = self.done.fetch_add(1, Ordering::AcqRel);
        self.waker.wake_by_ref();
        before.wrapping_add(1)
    }

    /// Whether a batch of orders is noted.
    pub(crate) fn is_noted(&self, batch: OrderBatch) -> bool {
        self.noted.load(Ordering::Acquire) >= batch
    }
}

impl fmt::Debug for MulticastControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastControl").field("filter", &self.filter).finish_non_exhaustive()
    }
}

/// What a guest orders by an extra.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MulticastOrder {
    /// It wants frames to this address.
    Add(MacAddr),
    /// It does not want them any more.
    Remove(MacAddr),
}

impl MulticastOrder {
    /// The order of an extra, if it is one.
    pub(crate) fn of(extra: &ExtraInfo) -> Option<MulticastOrder> {
        //= netif.h:multicast-order
        match extra.kind {
            EXTRA_TYPE_MCAST_ADD => Some(MulticastOrder::Add(MacAddr(extra.payload))),
            EXTRA_TYPE_MCAST_DEL => Some(MulticastOrder::Remove(MacAddr(extra.payload))),
            _ => None,
        }
    }
}
