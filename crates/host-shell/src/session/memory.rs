//! The guest's memory, as the front-end describes it, and how much of it there may be.
//!
//! Frames are written to pages that the guest may never have touched. The kernel then allocates
//! them, and counts them as memory of this process.

use std::sync::Arc;

use ringway_sys::guest_memory::{GuestMemory, Region, host_memory};
use ringway_vhost::RegionKey;

use super::Parts;

/// How many times the memory that a front-end shares first it may share later, unless the
/// description says otherwise: memory is plugged in while a guest runs.
const GROWTH_MAX: u64 = 16;

/// The most memory that a front-end may share.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    /// What the description says, in bytes.
    configured: Option<u64>,
    /// What this front-end has shared first, in bytes.
    first: Option<u64>,
}

impl MemoryLimit {
    pub(super) fn new(configured: Option<u64>) -> MemoryLimit {
        MemoryLimit { configured, first: None }
    }

    /// Another front-end may come.
    pub(super) fn forget_first(&mut self) {
        self.first = None;
    }

    /// Checks a table of regions before it is used.
    fn check(&mut self, memory: &GuestMemory, host: u64) -> Result<(), String> {
        let bytes = memory.regions().fold(0_u64, |sum, region| sum.saturating_add(region.len));
        let first = *self.first.get_or_insert(bytes);
        let usual = first.saturating_mul(GROWTH_MAX).max(host);
        let max = self.configured.unwrap_or(usual);
        if bytes <= max {
            return Ok(());
        }
        let mib = |bytes: u64| bytes >> 20;
        Err(format!(
            "the front-end shares {} MiB of memory, and max-memory is {} MiB{}: raise it if the \
             guest may have that much",
            mib(bytes),
            mib(max),
            if self.configured.is_none() { ", its default" } else { "" }
        ))
    }
}

impl<Q> Parts<Q> {
    /// Replaces all regions.
    pub(super) fn set_memory(&mut self, regions: Vec<ringway_vhost::Region>) -> Result<(), String> {
        self.memory = None;
        let memory = self.none().with_all(regions.into_iter().map(region).collect());
        self.take(memory.map_err(|error| error.to_string())?)
    }

    pub(super) fn add_region(&mut self, added: ringway_vhost::Region) -> Result<(), String> {
        let none = || Arc::new(self.none());
        let memory = self.memory.clone().unwrap_or_else(none).with(region(added));
        self.take(memory.map_err(|error| error.to_string())?)
    }

    pub(super) fn remove_region(&mut self, removed: &RegionKey) -> Result<(), String> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let RegionKey { guest_address, size, user_address, .. } = *removed;
        let memory = memory.without(guest_address, user_address, size);
        self.memory = Some(Arc::new(memory.map_err(|error| error.to_string())?));
        Ok(())
    }

    fn take(&mut self, memory: GuestMemory) -> Result<(), String> {
        self.memory_limit.check(&memory, host_memory())?;
        self.memory = Some(Arc::new(memory));
        Ok(())
    }

    fn none(&self) -> GuestMemory {
        GuestMemory::empty(Arc::clone(&self.share))
    }
}

fn region(region: ringway_vhost::Region) -> Region {
    let RegionKey { guest_address, size, user_address, file_offset } = region.key;
    Region { guest_address, user_address, len: size, file_offset, fd: region.file }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regions of these numbers of MiB, in one file.
    fn memory(mib: &[u64]) -> GuestMemory {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(mib.iter().sum::<u64>() << 20).expect("there is room");
        let mut start = 0;
        let regions = mib.iter().map(|mib| {
            let at = start;
            start += mib << 20;
            let fd = file.try_clone().expect("a descriptor").into();
            Region { guest_address: at, user_address: at, len: mib << 20, file_offset: at, fd }
        });
        GuestMemory::map(regions.collect()).expect("the regions are sound")
    }

    #[test]
    fn memory_that_is_plugged_in_is_taken_and_more_than_the_limit_refused_with_both_numbers() {
        let host = 40 << 20;
        let mut usual = MemoryLimit::new(None);
        assert_eq!(usual.check(&memory(&[2]), host), Ok(()));
        // Modules that are plugged in one after the other, up to all that the host has.
        assert_eq!(usual.check(&memory(&[2, 30]), host), Ok(()));
        assert_eq!(usual.check(&memory(&[2, 30, 8]), host), Ok(()));
        let refused = usual.check(&memory(&[2, 30, 8, 1]), host).expect_err("too much");
        assert!(refused.contains("41 MiB") && refused.contains("40 MiB, its default"), "{refused}");
        // A guest with more memory than the host has may grow, too.
        usual.forget_first();
        assert_eq!(usual.check(&memory(&[64]), host), Ok(()));
        assert_eq!(usual.check(&memory(&[64, 64 * 15]), host), Ok(()));
        let mut configured = MemoryLimit::new(Some(8 << 20));
        assert_eq!(configured.check(&memory(&[4, 4]), host), Ok(()));
        let refused = configured.check(&memory(&[9]), host).expect_err("too much");
        assert!(refused.contains("9 MiB") && refused.contains("max-memory is 8 MiB:"), "{refused}");
    }
}
