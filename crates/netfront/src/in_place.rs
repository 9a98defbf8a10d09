//! Received pages that frames refer to, until these frames have left.
//!
//! The end of a long frame can be written to a device from the pages that it came in. They are
//! posted again when the frame is gone. Pages are posted in ring order, so later pages wait for it,
//! and the backend finds fewer posted pages meanwhile, as with a slow guest.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{End, Pages, Pending, Receipts};
use ringway_sys::wake::WakeFd;
use ringway_wire::netif::RX_RING_SLOTS;

use crate::buffers::Buffers;

/// Packets that were received but not posted again, in ring order.
pub(crate) struct InPlace {
    /// By slot.
    pages: Arc<dyn Pages>,
    /// One for each slot. A packet uses that of its first slot.
    receipts: Receipts,
    /// The number of slots of a packet, by its first slot.
    slots: Box<[usize; RX_RING_SLOTS]>,
    /// Slots that must be posted.
    unposted: usize,
    wake: Arc<WakeFd>,
}

impl InPlace {
    pub(crate) fn new(buffers: &Buffers) -> io::Result<InPlace> {
        let wake = Arc::new(WakeFd::new()?);
        Ok(InPlace {
            pages: buffers.as_pages(),
            receipts: Receipts::new(RX_RING_SLOTS, &Waker::from(Arc::clone(&wake))),
            slots: Box::new([0; RX_RING_SLOTS]),
            unposted: 0,
            wake,
        })
    }

    /// An empty end for the packet with this first slot, to which bytes of the packet's pages may
    /// be added.
    pub(crate) fn end(&self, first_slot: usize) -> End {
        End::kept(Arc::clone(&self.pages), self.receipts.issue(first_slot))
    }

    /// Notes a consumed packet, with or without such an end, and its number of slots.
    pub(crate) fn consumed(&mut self, first_slot: usize, slots: usize) {
        self.slots[first_slot] = slots;
        self.unposted += slots;
    }

    /// The number of slots to post next, from `slot` on, if their packet is gone.
    pub(crate) fn next(&mut self, slot: usize) -> Option<usize> {
        if self.unposted == 0 || self.receipts.is_held(slot) {
            return None;
        }
        let slots = self.slots[slot];
        self.unposted -= slots;
        Some(slots)
    }

    /// Asks to be woken when the packet in `slot`, the next one to post, is gone.
    pub(crate) fn arm(&self, slot: usize) -> Pending {
        if self.unposted == 0 { Pending::Nothing } else { self.receipts.arm(slot) }
    }

    /// The first slot whose packet a frame refers to, if there is one.
    pub(crate) fn first_held(&self) -> Option<usize> {
        (0..RX_RING_SLOTS).find(|slot| self.receipts.is_held(*slot))
    }

    pub(crate) fn woken(&self) {
        self.wake.clear();
    }

    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
