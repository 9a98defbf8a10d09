//! One end of an event channel.

use std::io;
use std::os::fd::BorrowedFd;

use ringway_hypervisor::EventChannel;
use ringway_wire::EvtchnPort;

use crate::Loopback;
use crate::domain::DomainIndex;

/// A port, closed when this is dropped. Its other end may then be bound to again.
#[derive(Debug)]
pub struct LoopbackEvent {
    machine: Loopback,
    owner: DomainIndex,
    port: EvtchnPort,
}

impl LoopbackEvent {
    pub(crate) fn new(machine: Loopback, owner: DomainIndex, port: EvtchnPort) -> LoopbackEvent {
        LoopbackEvent { machine, owner, port }
    }
}

impl EventChannel for LoopbackEvent {
    fn port(&self) -> EvtchnPort {
        self.port
    }

    /// None: [`Loopback::pending_ports`] returns the pending events.
    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Of kind `NotConnected` only if this domain is dead. An event without another end is dropped
    /// silently, as on Xen.
    fn notify(&self) -> io::Result<()> {
        self.machine.state().notify(self.owner, self.port)
    }

    /// Never fails.
    fn ack(&self) -> io::Result<bool> {
        Ok(self.machine.state().ack(self.owner, self.port))
    }
}

impl Drop for LoopbackEvent {
    fn drop(&mut self) {
        self.machine.state().close(self.owner, self.port);
    }
}
