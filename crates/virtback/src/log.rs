//! Which pages of the guest were written, while it is migrated (`VHOST_F_LOG_ALL`).
//!
//! A page is marked after it is written: a reader of the log in between sends the page once more,
//! and none too few.

use std::sync::Arc;

use ringway_sys::guest_memory::{DirtyLog, GuestMemory, OutsideMemory};
use ringway_virtio::{Format, QueuePlace, area_lens};

/// Where what is written for one queue is logged.
#[derive(Debug, Clone)]
pub struct LogPlace {
    /// The log, of all queues.
    pub log: Arc<DirtyLog>,
    /// The guest's address of the used ring (`log_guest_addr`), where the front-end wants what we
    /// write of the queue itself logged.
    pub ring_address: Option<u64>,
}

/// The log of one queue.
#[derive(Debug)]
pub(crate) struct RingLog {
    log: Arc<DirtyLog>,
    /// The guest's addresses and bytes of what we write of the queue itself.
    ring: [(u64, u64); 2],
}

impl RingLog {
    /// Of a split queue we write the used ring, which the front-end says where to log. Of a packed
    /// one these are the descriptors and our wish for events: the protocol has one address only,
    /// which is that of the wish in QEMU, so both are looked up.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub(crate) fn new(
        memory: &GuestMemory,
        format: Format,
        place: QueuePlace,
        log: LogPlace,
    ) -> Result<RingLog, OutsideMemory> {
        const NOTHING: (u64, u64) = (0, 0);
        let [descriptors, _, device] = area_lens(format, place.size).map(widen);
        let found = |address, len| Ok((memory.guest_of_user(address, len)?, len));
        let ring = match (log.ring_address, format) {
            (None, _) => [NOTHING; 2],
            (Some(address), Format::Split) => [(address, device), NOTHING],
            (Some(_), Format::Packed) => {
                [found(place.descriptors, descriptors)?, found(place.device, device)?]
            }
        };
        Ok(RingLog { log: log.log, ring })
    }

    /// Bytes of a buffer were written.
    pub(crate) fn mark(&self, address: u64, len: usize) {
        self.log.mark(address, widen(len));
    }

    /// Something of the queue itself was written. Which part is not worth knowing: all of a queue
    /// of 1024 entries is three pages.
    pub(crate) fn mark_ring(&self) {
        for (address, len) in self.ring {
            self.log.mark(address, len);
        }
    }
}

fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
