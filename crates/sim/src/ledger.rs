//! How much of each flow has entered the engines and left them, by the queues that saw it.
//!
//! It counts in units of a flow: frames, or bytes of a TCP stream, which are as many however often
//! a frame is cut. A copy of a flooded frame counts where its flow is for and nowhere else.

use std::cell::RefCell;
use std::rc::Rc;

use ringway_datapath::Frame;

use crate::traffic::Share;

/// One of the things that ports belong to: a guest, or a device with all stations behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Guest(usize),
    Device(usize),
}

/// Clones are the same ledger.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Rc<RefCell<Vec<Entry>>>);

/// What is known of one flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) from: Owner,
    pub(crate) to: Owner,
    /// Taken in by the queues of `from`.
    pub(crate) entered: u64,
    /// Sent, or dropped, by the queues of `to`.
    pub(crate) left: u64,
    /// In the engines when they were last counted.
    pub(crate) held: u64,
}

impl Ledger {
    /// The next flow.
    pub(crate) fn add(&self, from: Owner, to: Owner) {
        self.0.borrow_mut().push(Entry { from, to, entered: 0, left: 0, held: 0 });
    }

    /// A queue of `by` has taken a frame in.
    pub(crate) fn enter(&self, by: Owner, frame: &Frame) {
        self.count(frame, |entry, units| {
            if entry.from == by {
                entry.entered += units;
            }
        });
    }

    /// So much has left by a queue of `by`.
    pub(crate) fn leave(&self, by: Owner, share: Share) {
        if let Some(entry) = self.0.borrow_mut().get_mut(usize::from(share.flow)) {
            if entry.to == by {
                entry.left += share.units;
            }
        }
    }

    /// A frame is in an engine: it was taken in and not forwarded, or is for a queue of `to`.
    pub(crate) fn hold(&self, from: Option<Owner>, to: Option<Owner>, frame: &Frame) {
        self.count(frame, |entry, units| {
            if Some(entry.from) == from || Some(entry.to) == to {
                entry.held += units;
            }
        });
    }

    /// The engines are counted again.
    pub(crate) fn forget_held(&self) {
        self.0.borrow_mut().iter_mut().for_each(|entry| entry.held = 0);
    }

    /// Nothing is under way.
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
