//! One domain's view of the machine.

use std::io;

use ringway_hypervisor::Hypervisor;
use ringway_wire::{DomId, EvtchnPort};

use crate::domain::DomainIndex;
use crate::{Loopback, LoopbackEvent, LoopbackGrants, LoopbackMemory};

/// A domain. Clones are handles on the same one; dropping them does not end it.
#[derive(Debug, Clone)]
pub struct LoopbackDomain {
    machine: Loopback,
    domid: DomId,
    index: DomainIndex,
}

impl LoopbackDomain {
    pub(crate) fn new(machine: Loopback, domid: DomId, index: DomainIndex) -> LoopbackDomain {
        LoopbackDomain { machine, domid, index }
    }
}

impl Hypervisor for LoopbackDomain {
    type Memory = LoopbackMemory;
    type Grants = LoopbackGrants;
    type Event = LoopbackEvent;

    fn domid(&self) -> DomId {
        self.domid
    }

    /// Never fails.
    fn memory(&self) -> io::Result<LoopbackMemory> {
        Ok(LoopbackMemory::new(self.machine.clone(), self.domid, self.index))
    }

    /// Never fails.
    fn grants(&self) -> io::Result<LoopbackGrants> {
        Ok(LoopbackGrants::new(self.machine.clone(), self.index))
    }

    /// Of kind `QuotaExceeded` when this domain has no port left.
    fn alloc_unbound(&self, remote: DomId) -> io::Result<LoopbackEvent> {
        let port = self.machine.state().offer(self.index, remote)?;
        Ok(LoopbackEvent::new(self.machine.clone(), self.index, port))
    }

    fn bind_interdomain(&self, remote: DomId, port: EvtchnPort) -> io::Result<LoopbackEvent> {
        let port = self.machine.state().bind(self.index, remote, port)?;
        Ok(LoopbackEvent::new(self.machine.clone(), self.index, port))
    }
}
