//! How much of each flow has entered the engines and left them, by the queues that counted it.
//!
//! It counts in units of a flow: frames, or bytes of a TCP stream, whose number does not change
//! when a frame is cut. A copy of a flooded frame counts only at the destination of its flow.

use std::cell::RefCell;
use std::rc::Rc;

use ringway_datapath::Frame;

use crate::traffic::Share;

/// The owner of a port: a guest, or a device with all stations behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Guest(usize),
    Device(usize),
}

/// Clones refer to the same ledger.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Rc<RefCell<Vec<Entry>>>);

/// The counts of one flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) from: Owner,
    pub(crate) to: Owner,
    /// Taken in by the queues of `from`.
    pub(crate) entered: u64,
    /// Sent, or dropped, by the queues of `to`.
    pub(crate) left: u64,
    /// In the engines at the last census.
    pub(crate) held: u64,
}

impl Ledger {
    /// Adds the next flow.
    pub(crate) fn add(&self, from: Owner, to: Owner) {
        self.0.borrow_mut().push(Entry { from, to, entered: 0, left: 0, held: 0 });
    }

    /// Counts a frame that a queue of `by` has taken in.
    pub(crate) fn enter(&self, by: Owner, frame: &Frame) {
        self.count(frame, |entry, units| {
            if entry.from == by {
                entry.entered += units;
            }
        });
    }

    /// Counts what has left on a queue of `by`.
    pub(crate) fn leave(&self, by: Owner, share: Share) {
        if let Some(entry) = self.0.borrow_mut().get_mut(usize::from(share.flow)) {
            if entry.to == by {
                entry.left += share.units;
            }
        }
    }

    /// Counts a frame in an engine: it was taken in and not forwarded, or is for a queue of `to`.
    pub(crate) fn hold(&self, from: Option<Owner>, to: Option<Owner>, frame: &Frame) {
        self.count(frame, |entry, units| {
            if Some(entry.from) == from || Some(entry.to) == to {
                entry.held += units;
            }
        });
    }

    /// Clears the counts of the engines before a census.
    pub(crate) fn forget_held(&self) {
        self.0.borrow_mut().iter_mut().for_each(|entry| entry.held = 0);
    }

    /// Resets the counts when nothing is in flight.
    pub(crate) fn settle(&self) {
        for entry in self.0.borrow_mut().iter_mut() {
            (entry.entered, entry.left, entry.held) = (0, 0, 0);
        }
    }

    pub(crate) fn entry(&self, flow: u16) -> Option<Entry> {
        self.0.borrow().get(usize::from(flow)).copied()
    }

    fn count(&self, frame: &Frame, count: impl FnOnce(&mut Entry, u64)) {
        let Some(share) = Share::of(frame.bytes()) else { return };
        if let Some(entry) = self.0.borrow_mut().get_mut(usize::from(share.flow)) {
            count(entry, share.units);
        }
    }
}
