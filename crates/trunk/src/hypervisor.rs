//! What the switch process has in place of a hypervisor.

use std::io;

use ringway_hypervisor::Hypervisor;
use ringway_wire::{DomId, EvtchnPort};

use crate::{PEER, TrunkEvent, TrunkGrants, TrunkMemory};

/// Replaces the hypervisor of the switch process: it gets complete trunks, and asks for nothing.
#[derive(Debug)]
pub struct Trunks;

impl Hypervisor for Trunks {
    type Memory = TrunkMemory;
    type Grants = TrunkGrants;
    type Event = TrunkEvent;

    fn domid(&self) -> DomId {
        PEER
    }

    fn memory(&self) -> io::Result<TrunkMemory> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn grants(&self) -> io::Result<TrunkGrants> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn alloc_unbound(&self, _remote: DomId) -> io::Result<TrunkEvent> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bind_interdomain(&self, _remote: DomId, _port: EvtchnPort) -> io::Result<TrunkEvent> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
