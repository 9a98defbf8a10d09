//! The regions of a guest's memory, as far as a session has to know them.

use std::os::fd::OwnedFd;

use ringway_wire::vhost_user::MemoryRegion;

use crate::Fault;

/// A region of a guest's memory with its file.
#[derive(Debug)]
pub struct Region {
    /// Where it is.
    pub key: RegionKey,
    /// The file it is in.
    pub file: OwnedFd,
}

/// Where a region is, for the guest, for the front-end and in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionKey {
    /// Its first address as the guest sees it.
    pub guest_address: u64,
    /// Its bytes.
    pub size: u64,
    /// Its first address in the front-end, in which rings are given.
    pub user_address: u64,
    /// Where in its file it begins.
    pub file_offset: u64,
}

impl RegionKey {
    /// Reads it from the wire.
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

    fn overlaps(&self, other: &RegionKey) -> bool {
        let apart = |one: u64, two: u64| one + self.size <= two || two + other.size <= one;
        !apart(self.guest_address, other.guest_address)
            || !apart(self.user_address, other.user_address)
    }
}

/// The regions that there are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table(Vec<RegionKey>);

/// What became of a region that was to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// It is new.
    New,
    /// It was there: QEMU adds each region once for each pair of rings.
    Known,
}

impl Table {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn regions(&self) -> &[RegionKey] {
        &self.0
    }

    pub(crate) fn add(&mut self, key: RegionKey, max: usize) -> Result<Added, Fault> {
        if self.0.contains(&key) {
            return Ok(Added::Known);
        }
        if let Some(other) = self.0.iter().find(|other| other.overlaps(&key)) {
            return Err(Fault::Overlap { one: key.guest_address, other: other.guest_address });
        }
        if self.0.len() >= max {
            return Err(Fault::TooManyRegions { found: self.0.len() + 1, max });
        }
        self.0.push(key);
        Ok(Added::New)
    }

    /// Removes a region; `None` if it is not there. Its place in a file does not count.
    pub(crate) fn remove(&mut self, key: &RegionKey) -> Option<RegionKey> {
        let is_it = |known: &RegionKey| {
            (known.guest_address, known.size, known.user_address)
                == (key.guest_address, key.size, key.user_address)
        };
        self.0.iter().position(is_it).map(|place| self.0.remove(place))
    }
}
