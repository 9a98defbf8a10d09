//! Which pages of the guest were written, while it is migrated (`VHOST_F_LOG_ALL`).
//!
//! A page is marked after it is written: a reader of the log in between sends the page once more,
//! and none too few.

use std::sync::Arc;

use ringway_sys::guest_memory::DirtyLog;
use ringway_virtio::{Format, area_lens};

/// Where what is written for one queue is logged.
#[derive(Debug, Clone)]
pub struct LogPlace {
    /// The log, of all queues.
    pub log: Arc<DirtyLog>,
    /// The guest's address of what we write of the queue itself (`log_guest_addr`), where the
    /// front-end wants it logged: the used ring, or all of a packed queue.
    pub ring_address: Option<u64>,
}

/// The log of one queue.
#[derive(Debug)]
pub(crate) struct RingLog {
    log: Arc<DirtyLog>,
    /// The guest's address and bytes of what we write of the queue itself.
    ring: Option<(u64, u64)>,
}

impl RingLog {
    pub(crate) fn new(place: LogPlace, format: Format, size: u16) -> RingLog {
        let [descriptors, _, device] = area_lens(format, size);
        let len = match format {
            Format::Split => device,
            Format::Packed => descriptors,
        };
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        RingLog { log: place.log, ring: place.ring_address.map(|address| (address, len)) }
    }

    /// Bytes of a buffer were written.
    pub(crate) fn mark(&self, address: u64, len: usize) {
        self.log.mark(address, u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// Something of the queue itself was written. Which part is not worth knowing: all of a queue
    /// of 1024 entries is three pages.
    pub(crate) fn mark_ring(&self) {
        if let Some((address, len)) = self.ring {
            self.log.mark(address, len);
        }
    }
}
