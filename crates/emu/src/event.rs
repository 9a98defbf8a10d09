//! Event channels as pairs of connected sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_hypervisor::EventChannel;
use ringway_wire::EvtchnPort;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::connection::Connection;
use crate::protocol::Call;

/// Events taken at once. An honest peer sends far fewer in the meantime; any surplus of another
/// peer is taken with the next event.
const EVENTS_MAX: usize = 256; // not a limit: a batch, the rest follows

/// One end of an event channel. Dropping it closes the port; its peer may then be bound again.
///
/// Each end is a socket with its own state. No call on it blocks, whatever the peer has done to its
/// end: cleared `O_NONBLOCK`, filled the socket, or shut it down.
#[derive(Debug)]
pub struct EmuEvent {
    port: EvtchnPort,
    socket: OwnedFd,
    broker: Arc<Connection>,
}

impl EmuEvent {
    /// Requests a port from the broker.
    pub(crate) fn open(broker: &Arc<Connection>, call: &Call) -> io::Result<EmuEvent> {
        let (reply, socket) = broker.call_for_fd(call)?;
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

    /// Never reports `NotConnected`: without another end, the event waits for the next process that
    /// binds it.
    fn notify(&self) -> io::Result<()> {
        signal(&self.socket)
    }

    /// Reads the socket. An edge-triggered eventfd would need no read, but its two ends share one
    /// state: a peer that cleared `O_NONBLOCK` could block us. A socket has to be read, because one
    /// that is full has no further edges.
    fn ack(&self) -> io::Result<bool> {
        let mut events = [0; EVENTS_MAX];
        match retry_on_intr(|| recv(&self.socket, &mut events, RecvFlags::DONTWAIT)) {
            Ok((taken, _)) => Ok(taken > 0),
            // A peer that has shut down its end, or closed it with unread events, sends no more.
            Err(Errno::AGAIN | Errno::CONNRESET) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for EmuEvent {
    fn drop(&mut self) {
        // It fails only if the broker is gone, and the port with it.
        let _ = self.broker.call(&Call::ClosePort(self.port));
    }
}

/// Makes the other end of a channel pending.
///
/// # Errors
/// What send(2) reports. Not an error: the other end is already as pending as can be, or has been
/// shut down.
pub(crate) fn signal(socket: impl AsFd) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match retry_on_intr(|| send(&socket, &[1], flags)) {
        Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
