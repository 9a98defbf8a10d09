//! Logs which pages of the guest were written, while it is migrated (`VHOST_F_LOG_ALL`).
//!
//! A page is marked after it is written. If the log is read in between, the page is sent once too
//! often, and never too seldom.

use std::sync::Arc;

use ringway_sys::guest_memory::{DirtyLog, GuestMemory, OutsideMemory};
use ringway_virtio::{Format, QueuePlace, area_lens};

use crate::PairFault;

/// Where the writes of one queue are logged.
#[derive(Debug, Clone)]
pub struct LogPlace {
    /// The log, shared by all queues.
    pub log: Arc<DirtyLog>,
    /// The guest's address of the used ring (`log_guest_addr`), if the front-end wants our writes
    /// to the queue itself logged.
    pub ring_address: Option<u64>,
}

/// The log of one queue.
#[derive(Debug)]
pub(crate) struct RingLog {
    log: Arc<DirtyLog>,
    /// The guest's addresses and lengths of the areas that we write.
    ring: [(u64, u64); 2],
}

impl RingLog {
    /// In a split queue we write the used ring, for which the front-end gives the log address. In a
    /// packed queue we write the descriptors and our event suppression area; the protocol has only
    /// one address, which QEMU sets to that of the event suppression area, so both are looked up.
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

    /// Whether every mark so far is in the memory of the front-end.
    ///
    /// # Errors
    /// [`PairFault::LogLost`], [`PairFault::OutsideLog`].
    pub(crate) fn check(&self) -> Result<(), PairFault> {
        let len = self.log.size();
        match self.log.outside() {
            _ if self.log.is_lost() => Err(PairFault::LogLost { len }),
            Some(page) => Err(PairFault::OutsideLog { page, len, pages: self.log.pages_max() }),
            None => Ok(()),
        }
    }

    /// Bytes of a buffer were written.
    pub(crate) fn mark(&self, address: u64, len: usize) {
        self.log.mark(address, widen(len));
    }

    /// Marks the whole queue as written. Marking only a part would save little: a queue of 1024
    /// entries is three pages.
    pub(crate) fn mark_ring(&self) {
        for (address, len) in self.ring {
            self.log.mark(address, len);
        }
    }
}

fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
