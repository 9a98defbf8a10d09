//! Room for the queues that are still to come.
//!
//! A vif works only if it has a queue, and slabs serve only speed. But backends connect in any
//! order and at any time: when one vif is ready for its slabs, others may not have made their
//! queues. So slabs are made only if a queue of each of these would have room beside them. That is
//! tried, with pages that are granted to no other domain, because not every hypervisor says how
//! many pages are left. A vif whose backend never comes costs others their slabs only where memory
//! is short.

use std::collections::BTreeSet;
use std::io;

use ringway_hypervisor::{Access, GrantTable as _, Hypervisor};
use ringway_netfront::QUEUE_RUNS;

/// The vifs of a guest that have no queue, by handle.
#[derive(Debug, Default)]
pub(crate) struct Reserve(BTreeSet<u32>);

impl Reserve {
    /// A vif has no queue.
    pub(crate) fn add(&mut self, handle: u32) {
        self.0.insert(handle);
    }

    /// A vif has its queues, or is gone.
    pub(crate) fn remove(&mut self, handle: u32) {
        self.0.remove(&handle);
    }

    /// Makes something of pages, if a queue of each vif that has none would have room beside it.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when pages or grants run out.
    pub(crate) fn make_beside<H: Hypervisor, T>(
        &self,
        hypervisor: &H,
        make: impl FnOnce(&mut H::Grants) -> io::Result<T>,
    ) -> io::Result<T> {
        let (mut grants, own) = (hypervisor.grants()?, hypervisor.domid());
        let mut runs = self.0.iter().flat_map(|_| QUEUE_RUNS);
        let mut reserved = Vec::new();
        let has_room: io::Result<()> = runs.try_for_each(|pages| {
            reserved.push(grants.share(own, pages, Access::ReadOnly)?);
            Ok(())
        });
        let made = has_room.and_then(|()| make(&mut grants));
        for pages in reserved {
            // No other domain may use them, so this cannot fail.
            let _ = grants.end(pages);
        }
        made
    }
}
