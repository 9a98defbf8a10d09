//! Received pages that frames refer to, until those have left.
//!
//! The end of a long frame can be written to a device from the pages that it came in. They are
//! posted again when the frame is gone, so the order in which pages are posted, that of the ring,
//! waits for it. A backend meets fewer posted pages meanwhile, as with a guest that is slow.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{Body, Pages, Pending, Receipts};
use ringway_sys::wake::WakeFd;
use ringway_wire::netif::RX_RING_SLOTS;

use crate::buffers::Buffers;

/// What was received and not posted again, in ring order.
pub(crate) struct Lent {
    /// By slot.
    pages: Arc<dyn Pages>,
    /// One for each slot. A packet's is that of its first slot.
    receipts: Receipts,
    /// By its first slot, the slots of a packet.
    slots: Box<[usize; RX_RING_SLOTS]>,
    /// Slots that are to be posted.
    unposted: usize,
    wake: Arc<WakeFd>,
}

impl Lent {
    pub(crate) fn new(buffers: &Buffers) -> io::Result<Lent> {
        let wake = Arc::new(WakeFd::new()?);
        Ok(Lent {
            pages: buffers.as_pages(),
            receipts: Receipts::new(RX_RING_SLOTS, &Waker::from(Arc::clone(&wake))),
            slots: Box::new([0; RX_RING_SLOTS]),
            unposted: 0,
            wake,
        })
    }

    /// An empty body of the packet whose first slot is this one. It may have bytes of the packet's
    /// pages.
    pub(crate) fn body(&self, first_slot: usize) -> Body {
        Body::new(Arc::clone(&self.pages), self.receipts.issue(first_slot))
    }

    /// A packet of so many slots was consumed, whether or not it has a body.
    pub(crate) fn consumed(&mut self, first_slot: usize, slots: usize) {
        self.slots[first_slot] = slots;
        self.unposted += slots;
    }

    /// Slots to post next, if the next to be posted is `slot`: those of a packet that is gone.
    pub(crate) fn next(&mut self, slot: usize) -> Option<usize> {
        if self.unposted == 0 || self.receipts.is_held(slot) {
            return None;
        }
        let slots = self.slots[slot];
        self.unposted -= slots;
        Some(slots)
    }

    /// Asks to be woken when the packet in `slot`, the next to be posted, is gone.
    pub(crate) fn arm(&self, slot: usize) -> Pending {
        if self.unposted == 0 { Pending::Nothing } else { self.receipts.arm(slot) }
    }

    /// Whether a frame refers to a page.
    pub(crate) fn is_any_held(&self) -> bool {
        (0..RX_RING_SLOTS).any(|slot| self.receipts.is_held(slot))
    }

    pub(crate) fn woken(&self) {
        self.wake.clear();
    }

    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
