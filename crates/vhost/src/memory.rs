//! The regions of a guest's memory, as far as a session has to know them.

use std::fmt;
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

/// All memory of a guest, which its front-end took back while rings ran in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenBack {
    /// Regions that there were.
    pub regions: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Pairs of rings that ran.
    pub pairs: usize,
}

impl fmt::Display for TakenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TakenBack { regions, bytes, pairs } = self;
        write!(
            f,
            "the front-end took back all memory of its guest ({bytes:#x} bytes, regions: \
             {regions}) while rings ran in it (pairs: {pairs}): it has to share memory again"
        )
    }
}

/// The regions that there are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    regions: Vec<RegionKey>,
    taken_back: Option<TakenBack>,
}

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
        self.regions.is_empty()
    }

    pub(crate) fn regions(&self) -> &[RegionKey] {
        &self.regions
    }

    /// What there was before it became empty, if rings ran then.
    pub(crate) fn taken_back(&self) -> Option<TakenBack> {
        self.taken_back.filter(|_| self.is_empty())
    }

    pub(crate) fn add(&mut self, key: RegionKey, max: usize) -> Result<Added, Fault> {
        if self.regions.contains(&key) {
            return Ok(Added::Known);
        }
        if let Some(other) = self.regions.iter().find(|other| other.overlaps(&key)) {
            return Err(Fault::Overlap { one: key.guest_address, other: other.guest_address });
        }
        if self.regions.len() >= max {
            return Err(Fault::TooManyRegions { found: self.regions.len() + 1, max });
        }
        self.regions.push(key);
        Ok(Added::New)
    }

    /// Removes a region while so many pairs of rings run; `None` if it is not there. Its place in a
    /// file does not count.
    pub(crate) fn remove(&mut self, key: &RegionKey, pairs: usize) -> Option<RegionKey> {
        let is_it = |known: &RegionKey| {
            (known.guest_address, known.size, known.user_address)
                == (key.guest_address, key.size, key.user_address)
        };
        let place = self.regions.iter().position(is_it)?;
        self.note(pairs);
        Some(self.regions.remove(place))
    }

    /// Has other regions, while so many pairs of rings run.
    pub(crate) fn become_other(&mut self, other: Table, pairs: usize) {
        self.note(pairs);
        self.regions = other.regions;
    }

    /// Keeps in mind what there is, if rings run in it.
    fn note(&mut self, pairs: usize) {
        if pairs > 0 {
            let bytes = self.regions.iter().fold(0_u64, |sum, it| sum.saturating_add(it.size));
            self.taken_back = Some(TakenBack { regions: self.regions.len(), bytes, pairs });
        } else if !self.is_empty() {
            self.taken_back = None;
        }
    }
}
