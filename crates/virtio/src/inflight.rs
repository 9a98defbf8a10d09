//! What of a split queue is under way, in memory that outlives a device: the part of one queue in
//! the area of `VHOST_USER_SET_INFLIGHT_FD`.
//!
//! Our device uses chains in the order in which they came, so the used index alone says where it
//! goes on, and it marks no chain. Others may have used them in another order before they ended:
//! what they marked is taken again, in the order in which they took it. What is used is noted as
//! the vhost-user specification has it, so that any device can go on.
//!
//! The peer can write the area at any moment. It is read once, when a queue is taken over; a peer
//! that has it say something impossible loses the queue.

use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_wire::vhost_user::inflight_split as at;

use crate::QueueMemory;

/// What no honest front-end or device leaves in an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InflightFault {
    /// An area of another layout.
    #[error("the area of what is under way has version {found}, expected 1")]
    Version {
        /// Its version.
        found: u16,
    },
    /// An area for another number of descriptors.
    #[error("the area of what is under way is for {found} descriptors, expected {expected}")]
    Size {
        /// As it says itself.
        found: u16,
        /// As the front-end said.
        expected: u16,
    },
    /// A descriptor that the queue does not have.
    #[error("descriptor {index} is under way, the queue has {size}")]
    Descriptor {
        /// The descriptor.
        index: u16,
        /// Descriptors of the queue.
        size: u16,
    },
    /// More chains than the driver has made available.
    #[error("{found} chains are under way, and {available} are available")]
    TooMany {
        /// Chains that are marked.
        found: usize,
        /// Chains between the used index and the available one.
        available: u16,
    },
    /// More descriptors than a packed queue has.
    #[error("chains of {found} descriptors are under way, the queue has {size}")]
    TooLong {
        /// Descriptors of chains that are marked.
        found: usize,
        /// Descriptors of the queue.
        size: u16,
    },
}

/// The part of one queue.
#[derive(Debug)]
pub(crate) struct Inflight<M = SharedPages> {
    area: M,
    /// Descriptors of the queue.
    size: u16,
    /// What was used and is not published.
    batch: Vec<u16>,
}

impl<M: QueueMemory> Inflight<M> {
    /// Takes it over, with the chains that were under way, in the order in which they were taken.
    /// The area is for `descriptors`, of which the queue has `size`; used and available are the
    /// indices of the queue.
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

    /// The last batch may have been published and still be marked: the device that published it
    /// ended between the two.
    fn clear_last_batch(&self, used: u16) -> Result<(), InflightFault> {
        let noted = self.area.load(at::USED_IDX, Ordering::Relaxed);
        let mut index = self.area.load(at::LAST_BATCH_HEAD, Ordering::Relaxed);
        // No batch is longer than the queue: of more, nothing is left to tell.
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

    /// A chain was used and is in the next batch.
    pub(crate) fn used(&mut self, head: u16) {
        let last = self.area.load(at::LAST_BATCH_HEAD, Ordering::Relaxed);
        self.area.store(desc_at(head) + at::NEXT, last, Ordering::Relaxed);
        self.area.store(at::LAST_BATCH_HEAD, head, Ordering::Relaxed);
        self.batch.push(head);
    }

    /// The batch is published, which a fence has ordered before this.
    pub(crate) fn published(&mut self, used: u16) {
        for head in self.batch.drain(..) {
            self.area.write(mark_at(head), 0_u8);
        }
        self.area.store(at::USED_IDX, used, Ordering::Release);
    }
}

/// The only version that there is.
const VERSION: u16 = 1;

fn desc_at(index: u16) -> usize {
    at::DESC + usize::from(index) * at::DESC_LEN
}

fn mark_at(index: u16) -> usize {
    desc_at(index) + at::INFLIGHT
}
