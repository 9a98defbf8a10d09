//! Records which chains of a split queue are in flight, in memory that outlives the device: one
//! queue's part of the area of `VHOST_USER_SET_INFLIGHT_FD`.
//!
//! Our device uses chains in the order in which they arrive, so the used index alone says where to
//! continue, and it marks no chain. Another device may have used chains in a different order before
//! it ended: the chains that it marked are taken again, in the order in which it took them. Used
//! chains are recorded as the vhost-user specification requires, so that any device can continue.
//!
//! The peer can write the area at any moment. It is read once, on attach; a peer that puts invalid
//! contents there loses the queue.

use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_wire::vhost_user::inflight_split as at;

use crate::QueueMemory;

/// An invalid inflight area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InflightFault {
    /// The area has an unknown version.
    #[error("the inflight area has version {found}, expected 1")]
    Version {
        /// Its version.
        found: u16,
    },
    /// The area is for another number of descriptors.
    #[error("the inflight area is for {found} descriptors, expected {expected}")]
    Size {
        /// The number in the area.
        found: u16,
        /// The number that the front-end announced.
        expected: u16,
    },
    /// A descriptor is outside the queue.
    #[error("descriptor {index} is in flight, the queue has {size}")]
    Descriptor {
        /// The descriptor.
        index: u16,
        /// Descriptors of the queue.
        size: u16,
    },
    /// More chains are marked than the driver has made available.
    #[error("{found} chains are in flight, and {available} are available")]
    TooMany {
        /// Marked chains.
        found: usize,
        /// Chains between the used index and the available index.
        available: u16,
    },
    /// More descriptors are in flight than the packed queue has.
    #[error("chains of {found} descriptors are in flight, the queue has {size}")]
    TooLong {
        /// Descriptors of the marked chains.
        found: usize,
        /// Descriptors of the queue.
        size: u16,
    },
}

/// One queue's part of the area.
#[derive(Debug)]
pub(crate) struct Inflight<M = SharedPages> {
    area: M,
    /// Descriptors of the queue.
    size: u16,
    /// Chains that were used and are not published yet.
    batch: Vec<u16>,
}

impl<M: QueueMemory> Inflight<M> {
    /// Attaches to the area, and returns the chains in flight in the order in which they were
    /// taken. The area has room for `descriptors`, and the queue has `size`; `used` and `available`
    /// are the indices of the queue.
    ///
    /// # Errors
    /// [`InflightFault`].
    pub(crate) fn open(
        area: M,
        descriptors: u16,
        size: u16,
        [used, available]: [u16; 2],
    ) -> Result<(Inflight<M>, Vec<u16>), InflightFault> {
        if descriptors < size {
            return Err(InflightFault::Size { found: descriptors, expected: size });
        }
        let inflight = Inflight { area, size, batch: Vec::with_capacity(usize::from(size)) };
        match inflight.area.load(at::VERSION, Ordering::Relaxed) {
            0 => {
                inflight.area.store(at::DESC_NUM, descriptors, Ordering::Relaxed);
                inflight.area.store(at::USED_IDX, used, Ordering::Relaxed);
                inflight.area.store(at::VERSION, VERSION, Ordering::Release);
                return Ok((inflight, Vec::new()));
            }
            VERSION => {}
            found => return Err(InflightFault::Version { found }),
        }
        let found = inflight.area.load(at::DESC_NUM, Ordering::Relaxed);
        if found != descriptors {
            return Err(InflightFault::Size { found, expected: descriptors });
        }
        inflight.clear_last_batch(used)?;
        let mut marked = Vec::new();
        for index in 0..descriptors {
            if inflight.area.read::<u8>(mark_at(index)) == 1 {
                if index >= size {
                    return Err(InflightFault::Descriptor { index, size });
                }
                marked.push((inflight.area.read::<u64>(desc_at(index) + at::COUNTER), index));
            }
        }
        let ahead = available.wrapping_sub(used);
        if marked.len() > usize::from(ahead) {
            return Err(InflightFault::TooMany { found: marked.len(), available: ahead });
        }
        marked.sort_unstable();
        Ok((inflight, marked.into_iter().map(|(_, index)| index).collect()))
    }

    /// The last batch may be published and still marked, if the device ended between the two steps.
    fn clear_last_batch(&self, used: u16) -> Result<(), InflightFault> {
        let noted = self.area.load(at::USED_IDX, Ordering::Relaxed);
        let mut index = self.area.load(at::LAST_BATCH_HEAD, Ordering::Relaxed);
        // No batch is longer than the queue; marks beyond that cannot belong to it.
        for _ in 0..used.wrapping_sub(noted).min(self.size) {
            if index >= self.size {
                return Err(InflightFault::Descriptor { index, size: self.size });
            }
            self.area.write(mark_at(index), 0_u8);
            index = self.area.load(desc_at(index) + at::NEXT, Ordering::Relaxed);
        }
        self.area.store(at::USED_IDX, used, Ordering::Release);
        Ok(())
    }

    /// Adds a used chain to the next batch.
    pub(crate) fn used(&mut self, head: u16) {
        let last = self.area.load(at::LAST_BATCH_HEAD, Ordering::Relaxed);
        self.area.store(desc_at(head) + at::NEXT, last, Ordering::Relaxed);
        self.area.store(at::LAST_BATCH_HEAD, head, Ordering::Relaxed);
        self.batch.push(head);
    }

    /// Records that the batch is published. The caller has ordered that before this by a fence.
    pub(crate) fn record_published(&mut self, used: u16) {
        for head in self.batch.drain(..) {
            self.area.write(mark_at(head), 0_u8);
        }
        self.area.store(at::USED_IDX, used, Ordering::Release);
    }
}

/// The only version.
const VERSION: u16 = 1;

fn desc_at(index: u16) -> usize {
    at::DESC + usize::from(index) * at::DESC_LEN
}

fn mark_at(index: u16) -> usize {
    desc_at(index) + at::INFLIGHT
}
