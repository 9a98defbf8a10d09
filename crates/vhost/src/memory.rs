//! The regions of a guest's memory, as far as a session needs them.

use std::fmt;
use std::os::fd::OwnedFd;

use ringway_wire::vhost_user::MemoryRegion;

use crate::Fault;
use crate::fault::Space;

/// A region of a guest's memory with its file.
#[derive(Debug)]
pub struct Region {
    /// Its location.
    pub key: RegionKey,
    /// The file that holds it.
    pub file: OwnedFd,
}

/// The location of a region in the guest's and front-end's address spaces and in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionKey {
    /// Its first address as the guest sees it.
    pub guest_address: u64,
    /// Its bytes.
    pub size: u64,
    /// Its first address in the front-end's address space, which ring addresses refer to.
    pub user_address: u64,
    /// Its byte offset in the file.
    pub file_offset: u64,
}

impl RegionKey {
    /// Reads a region from the wire.
    ///
    /// # Errors
    /// If it is empty, or reaches beyond the last address of any of the three.
    pub(crate) fn read(region: &MemoryRegion) -> Result<RegionKey, Fault> {
        let MemoryRegion { guest_address, size, user_address, mmap_offset: file_offset } = *region;
        let starts = [guest_address, user_address, file_offset];
        if size == 0 || starts.iter().any(|start| start.checked_add(size).is_none()) {
            return Err(Fault::RegionRange { guest_address, size });
        }
        Ok(RegionKey { guest_address, size, user_address, file_offset })
    }

    pub(crate) fn wire(self) -> MemoryRegion {
        let RegionKey { guest_address, size, user_address, file_offset } = self;
        MemoryRegion { guest_address, size, user_address, mmap_offset: file_offset }
    }

    /// The fault of two regions with addresses in common.
    fn check_apart(&self, other: &RegionKey) -> Result<(), Fault> {
        let starts = |key: &RegionKey| {
            [(Space::Guest, key.guest_address), (Space::FrontEnd, key.user_address)]
        };
        for ((space, one), (_, two)) in starts(self).into_iter().zip(starts(other)) {
            // Neither sum wraps around; that was checked.
            if one < two + other.size && two < one + self.size {
                return Err(Fault::Overlap { space, one, other: two });
            }
        }
        Ok(())
    }
}

/// The memory that a front-end removed while rings ran in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedMemory {
    /// The number of regions.
    pub regions: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Pairs of rings that ran.
    pub pairs: usize,
}

impl fmt::Display for RemovedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RemovedMemory { regions, bytes, pairs } = self;
        write!(
            f,
            "the front-end withdrew all memory of its guest ({bytes:#x} bytes, regions: \
             {regions}) while rings in it were running (pairs: {pairs}): it must share memory again"
        )
    }
}

/// The current regions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    regions: Vec<RegionKey>,
    removed_memory: Option<RemovedMemory>,
}

/// The outcome of adding a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// It is new.
    New,
    /// It is already there: QEMU adds each region once for each pair of rings.
    Known,
}

impl Table {
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    pub(crate) fn regions(&self) -> &[RegionKey] {
        &self.regions
    }

    /// What the table held before it became empty, if rings ran then.
    pub(crate) fn removed_memory(&self) -> Option<RemovedMemory> {
        self.removed_memory.filter(|_| self.is_empty())
    }

    pub(crate) fn add(&mut self, key: RegionKey, max: usize) -> Result<Added, Fault> {
        if self.regions.contains(&key) {
            return Ok(Added::Known);
        }
        self.regions.iter().try_for_each(|other| key.check_apart(other))?;
        if self.regions.len() >= max {
            return Err(Fault::TooManyRegions { found: self.regions.len() + 1, max });
        }
        self.regions.push(key);
        Ok(Added::New)
    }

    /// Removes a region while `pairs` pairs of rings run; `None` if there is no such region. The
    /// file offset does not count in the comparison.
    pub(crate) fn remove(&mut self, key: &RegionKey, pairs: usize) -> Option<RegionKey> {
        let is_it = |known: &RegionKey| {
            (known.guest_address, known.size, known.user_address)
                == (key.guest_address, key.size, key.user_address)
        };
        let place = self.regions.iter().position(is_it)?;
        self.record_removed(pairs);
        Some(self.regions.remove(place))
    }

    /// Replaces all regions while `pairs` pairs of rings run.
    pub(crate) fn replace(&mut self, other: Table, pairs: usize) {
        self.record_removed(pairs);
        self.regions = other.regions;
    }

    /// Remembers the current regions if rings run in them.
    fn record_removed(&mut self, pairs: usize) {
        if pairs > 0 {
            let bytes = self.regions.iter().fold(0_u64, |sum, it| sum.saturating_add(it.size));
            self.removed_memory = Some(RemovedMemory { regions: self.regions.len(), bytes, pairs });
        } else if !self.is_empty() {
            self.removed_memory = None;
        }
    }
}
