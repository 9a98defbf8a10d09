//! Event channels as pairs of connected sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_hypervisor::EventChannel;
use ringway_wire::EvtchnPort;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::connection::Connection;
use crate::protocol::Ask;

/// Events taken at once. Those of an honest peer that came meanwhile are far fewer; of any other's
/// the rest are taken with the next one.
const EVENTS_MAX: usize = 256;

/// One end of an event channel. Dropping it closes the port; its peer may then be bound again.
///
/// Each end is a socket with a state of its own, and no call on it waits, whatever the peer has
/// done to the other: cleared `O_NONBLOCK` there, filled the way here, or shut it.
#[derive(Debug)]
pub struct EmuEvent {
    port: EvtchnPort,
    socket: OwnedFd,
    broker: Arc<Connection>,
}

impl EmuEvent {
    /// A port from the broker, by the request for one.
    pub(crate) fn open(broker: &Arc<Connection>, ask: &Ask) -> io::Result<EmuEvent> {
        let (reply, socket) = broker.ask_for_one(ask)?;
        Ok(EmuEvent { port: reply.event_port(), socket, broker: Arc::clone(broker) })
    }
}

impl EventChannel for EmuEvent {
    fn port(&self) -> EvtchnPort {
        self.port
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    /// Never reports `NotConnected`: when there is no one at the other end, the event waits there
    /// for the next who binds it.
    fn notify(&self) -> io::Result<()> {
        signal(&self.socket)
    }

    fn ack(&self) -> io::Result<bool> {
        let mut events = [0; EVENTS_MAX];
        match retry_on_intr(|| recv(&self.socket, &mut events, RecvFlags::DONTWAIT)) {
            Ok((taken, _)) => Ok(taken > 0),
            // A peer that has shut its end, or closed it with events in it, sends no more.
            Err(Errno::AGAIN | Errno::CONNRESET) => Ok(false),
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

/// Makes the other end of a channel pending.
///
/// # Errors
/// What send(2) reports, but not that the other end is as pending as can be, or has been shut.
pub(crate) fn signal(socket: impl AsFd) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match retry_on_intr(|| send(&socket, &[1], flags)) {
        Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
