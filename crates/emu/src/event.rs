//! Event channels as pairs of eventfds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_hypervisor::EventChannel;
use ringway_wire::EvtchnPort;
use rustix::io::{Errno, read, retry_on_intr, write};

use crate::connection::Connection;
use crate::protocol::Ask;

/// One end of an event channel. Dropping it closes the port; its peer may then be bound again.
#[derive(Debug)]
pub struct EmuEvent {
    port: EvtchnPort,
    wakes_us: OwnedFd,
    wakes_peer: OwnedFd,
    broker: Arc<Connection>,
}

impl EmuEvent {
    /// A port from the broker, by the request for one.
    pub(crate) fn open(broker: &Arc<Connection>, ask: &Ask) -> io::Result<EmuEvent> {
        let (reply, [wakes_us, wakes_peer]) = broker.ask_for_pair(ask)?;
        Ok(EmuEvent { port: reply.event_port(), wakes_us, wakes_peer, broker: Arc::clone(broker) })
    }
}

impl EventChannel for EmuEvent {
    fn port(&self) -> EvtchnPort {
        self.port
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakes_us.as_fd())
    }

    /// Never reports `NotConnected`: when nobody is at the other end, the event waits there for
    /// the next who binds it.
    fn notify(&self) -> io::Result<()> {
        match retry_on_intr(|| write(&self.wakes_peer, &1u64.to_ne_bytes())) {
            // A counter that is full is as pending as can be.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn ack(&self) -> io::Result<bool> {
        match retry_on_intr(|| read(&self.wakes_us, &mut [0u8; size_of::<u64>()])) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for EmuEvent {
    fn drop(&mut self) {
        // It fails when the broker is gone, and the port with it.
        let _ = self.broker.ask(&Ask::ClosePort(self.port));
    }
}
