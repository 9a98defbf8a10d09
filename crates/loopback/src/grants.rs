//! A domain's own pages and grants.

use std::io;

use ringway_hypervisor::{Access, GrantTable, GrantedPages, StillInUse};
use ringway_wire::DomId;

use crate::Loopback;
use crate::domain::DomainIndex;
use crate::fault::FaultPoint;

/// A handle on the domain's memory and grant table.
#[derive(Debug, Clone)]
pub struct LoopbackGrants {
    machine: Loopback,
    owner: DomainIndex,
}

impl LoopbackGrants {
    pub(crate) fn new(machine: Loopback, owner: DomainIndex) -> LoopbackGrants {
        LoopbackGrants { machine, owner }
    }
}

impl GrantTable for LoopbackGrants {
    fn share(&mut self, peer: DomId, count: usize, access: Access) -> io::Result<GrantedPages> {
        let mut state = self.machine.state();
        state.caller(self.owner)?;
        if state.fails(self.owner, FaultPoint::Share) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        state.domain_mut(self.owner).share(peer, count, access)
    }

    /// A run with a page in use is never reused; its pages that are not in use are no longer
    /// granted.
    fn end(&mut self, granted: GrantedPages) -> Result<(), StillInUse> {
        self.machine.state().domain_mut(self.owner).end(&granted)
    }
}
