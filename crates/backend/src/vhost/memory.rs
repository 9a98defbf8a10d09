//! The guest's memory, as the front-end describes it.

use std::sync::Arc;

use ringway_sys::guest_memory::{GuestMemory, Region};
use ringway_vhost::RegionKey;

use super::Parts;

impl Parts {
    /// Replaces all regions.
    pub(super) fn set_memory(&mut self, regions: Vec<ringway_vhost::Region>) -> Result<(), String> {
        self.memory = None;
        let memory = self.none().with_all(regions.into_iter().map(region).collect());
        self.memory = Some(Arc::new(memory.map_err(|error| error.to_string())?));
        Ok(())
    }

    pub(super) fn add_region(&mut self, added: ringway_vhost::Region) -> Result<(), String> {
        let none = || Arc::new(self.none());
        let memory = self.memory.clone().unwrap_or_else(none).with(region(added));
        self.memory = Some(Arc::new(memory.map_err(|error| error.to_string())?));
        Ok(())
    }

    pub(super) fn remove_region(&mut self, removed: &RegionKey) -> Result<(), String> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let RegionKey { guest_address, size, user_address, .. } = *removed;
        let memory = memory.without(guest_address, user_address, size);
        self.memory = Some(Arc::new(memory.map_err(|error| error.to_string())?));
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
