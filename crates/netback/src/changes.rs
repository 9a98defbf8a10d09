//! What a guest changes of its vif by requests: which multicast frames it gets, and how frames to
//! it are steered.
//!
//! A queue carries out a change at once. It responds when the control plane has noted that for the
//! next process of the backend: one that finds a request without a response carries it out again,
//! so a change is either noted or repeated. Until then the queue takes no more from that ring, and
//! a guest can cause no more notes than the control plane writes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// How often the queues of a vif have changed something, and how much of that is noted.
#[derive(Debug)]
pub struct Changes {
    /// Changes that were carried out.
    done: AtomicU64,
    /// Of these, how many are noted.
    noted: AtomicU64,
    /// Wakes the control plane.
    waker: Waker,
}

/// The number of a change, counted over all queues of a vif.
pub(crate) type ChangeNumber = u64;

impl Changes {
    /// None yet. `waker` is woken when [`note`](Self::note) has something to do.
    pub fn new(waker: Waker) -> Changes {
        Changes { done: AtomicU64::new(0), noted: AtomicU64::new(0), waker }
    }

    /// Whether there are changes that are not noted.
    pub fn has_unnoted(&self) -> bool {
        self.noted.load(Ordering::Acquire) != self.done.load(Ordering::Acquire)
    }

    /// Has all changes so far noted at once: `write` writes what they result in. The queues that
    /// wait for it respond when they are polled again.
    pub fn note(&self, write: impl FnOnce()) {
        // Before what is written, which has at least what was changed until then.
        let done = self.done.load(Ordering::Acquire);
        write();
        self.noted.store(done, Ordering::Release);
    }

    /// Asks for a note of what the calling queue has changed.
    pub fn add(&self) -> u64 {
        // After what was changed, which is noted as it is then.
        let before = self.done.fetch_add(1, Ordering::AcqRel);
        self.waker.wake_by_ref();
        before.wrapping_add(1)
    }

    /// Whether a change is noted.
    pub(crate) fn is_noted(&self, change: ChangeNumber) -> bool {
        self.noted.load(Ordering::Acquire) >= change
    }
}
