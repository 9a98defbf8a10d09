//! Recognises a guest whose memory is not shared with us.
//!
//! QEMU passes the file of a guest's memory also with `share=off`, where the guest writes to
//! private copies of the pages. It kicks, and its rings stay as they were in the file: zeros.

use std::sync::atomic::{AtomicU32, Ordering};

/// Kicks of a pair from which on its driver has made chains available. QEMU itself kicks each of
/// the two queues when the device starts.
const KICKS_MIN: u32 = 3;

/// What other threads know of it.
#[derive(Debug, Default)]
pub(crate) struct BlankKicks(AtomicU32);

impl BlankKicks {
    /// How often the guest has kicked, if nothing has ever come of it.
    pub(crate) fn get(&self) -> Option<u32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|kicks| *kicks > 0)
    }
}

/// The kicks of one pair.
#[derive(Debug, Default)]
pub(crate) struct Kicks {
    count: u32,
    has_seen_chains: bool,
}

impl Kicks {
    /// Counts a kick; `is_blank` says whether the driver has never made a chain available.
    pub(crate) fn count(&mut self, shown: &BlankKicks, is_blank: impl FnOnce() -> bool) {
        if self.has_seen_chains {
            return;
        }
        self.count = self.count.saturating_add(1);
        self.has_seen_chains = self.count >= KICKS_MIN && !is_blank();
        let is_suspect = self.count >= KICKS_MIN && !self.has_seen_chains;
        shown.0.store(if is_suspect { self.count } else { 0 }, Ordering::Relaxed);
    }
}
