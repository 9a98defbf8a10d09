//! The memory that a driver shares with its device: one file with the queues and buffers of all
//! pairs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::Region;
use ringway_virtio::{Format, QueueAreas, QueuePlace, area_lens};
use ringway_wire::virtio::used;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Bytes of a buffer: a 1500-byte frame with its headers, with room to spare.
pub(crate) const BUFFER_LEN: usize = 2048;
const PAGE: usize = 4096;
/// The address of the memory, both for our own "guest" and for the front-end. Not 0, which some
/// devices treat as missing.
const START: u64 = 1 << 32;

/// The memory that a driver needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryShape {
    /// Pairs of queues.
    pub pairs: usize,
    /// The layout of the queues.
    pub format: Format,
    /// Entries of each queue; a power of two.
    pub size: u16,
    /// The longest frame that may arrive, without the virtio-net header. Irrelevant with mergeable
    /// buffers.
    pub frame_len_max: usize,
}

/// A file with the queues and buffers of a driver, sealed against changes of its length.
#[derive(Debug)]
pub struct FrontMemory {
    shape: MemoryShape,
    fd: OwnedFd,
    pages: SharedPages,
}

/// One pair's part of it.
#[derive(Debug)]
pub(crate) struct PairMemory {
    pub(crate) tx: QueueAreas,
    pub(crate) tx_place: QueuePlace,
    pub(crate) rx: QueueAreas,
    pub(crate) rx_place: QueuePlace,
    pub(crate) tx_buffers: SharedPages,
    pub(crate) tx_address: u64,
    pub(crate) rx_buffers: SharedPages,
    pub(crate) rx_address: u64,
}

impl FrontMemory {
    /// Makes the file.
    ///
    /// # Errors
    /// If there is no memory or no descriptor left; of kind `InvalidInput` for a size that is no
    /// power of two.
    pub fn new(shape: MemoryShape) -> io::Result<FrontMemory> {
        if !shape.size.is_power_of_two() {
            let what = format!("{} entries, expected a power of two", shape.size);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let len = shape.pairs * pair_len(shape);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("ringway-virtio", flags)?;
        ftruncate(&fd, address(len))?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(FrontMemory { shape, pages: SharedPages::map(&fd, 0, len)?, fd })
    }

    /// The shape that it was made for.
    pub fn shape(&self) -> MemoryShape {
        self.shape
    }

    /// The region to pass to the device.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn region(&self) -> io::Result<Region> {
        Ok(Region {
            guest_address: START,
            user_address: START,
            len: address(self.pages.len()),
            file_offset: 0,
            fd: self.fd.try_clone()?,
        })
    }

    /// The position for the next device of a split queue: everything before it was used.
    ///
    /// # Panics
    /// If the queue is not in this memory.
    pub fn used_index(&self, place: QueuePlace) -> u16 {
        let offset = usize::try_from(place.device - START).expect("it is in this memory");
        self.pages.load_u16(offset + used::IDX, Ordering::Acquire)
    }

    /// The part of one pair.
    pub(crate) fn pair(&self, number: usize) -> PairMemory {
        assert!(number < self.shape.pairs, "the memory has {} pairs", self.shape.pairs);
        let mut next = number * pair_len(self.shape);
        let (tx, tx_place) = self.queue(&mut next);
        let (rx, rx_place) = self.queue(&mut next);
        let (tx_buffers, tx_address) = self.buffers(&mut next);
        let (rx_buffers, rx_address) = self.buffers(&mut next);
        PairMemory { tx, tx_place, rx, rx_place, tx_buffers, tx_address, rx_buffers, rx_address }
    }

    fn queue(&self, next: &mut usize) -> (QueueAreas, QueuePlace) {
        let size = self.shape.size;
        let [descriptors, driver, device] =
            area_lens(self.shape.format, size).map(|len| self.part(next, len));
        let place =
            QueuePlace { size, descriptors: descriptors.1, driver: driver.1, device: device.1 };
        let areas =
            QueueAreas { size, descriptors: descriptors.0, driver: driver.0, device: device.0 };
        (areas, place)
    }

    fn buffers(&self, next: &mut usize) -> (SharedPages, u64) {
        self.part(next, usize::from(self.shape.size) * BUFFER_LEN)
    }

    fn part(&self, next: &mut usize, len: usize) -> (SharedPages, u64) {
        let start = *next;
        *next += len.next_multiple_of(PAGE);
        (self.pages.slice(start..start + len), START + address(start))
    }
}

/// Bytes of one pair: whole pages for each area, so that no two areas share a cache line.
fn pair_len(shape: MemoryShape) -> usize {
    let areas = area_lens(shape.format, shape.size).map(|len| len.next_multiple_of(PAGE));
    let buffers = (usize::from(shape.size) * BUFFER_LEN).next_multiple_of(PAGE);
    2 * (areas.iter().sum::<usize>() + buffers)
}

fn address(offset: usize) -> u64 {
    u64::try_from(offset).expect("memory is addressed by 64 bits")
}
