//! One end of an event channel, as one end of a pair of sockets.
//!
//! An eventfd would be cheaper, but all its holders share one set of flags and one counter: a
//! tenant's process could turn `O_NONBLOCK` off, fill the counter, and block a worker of the switch
//! process forever. Each end of a socket pair has its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_hypervisor::EventChannel;
use ringway_wire::EvtchnPort;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Events that one call clears. Each end sends few before the other checks.
const EVENTS_MAX: usize = 256; // not a limit: a batch, the rest follows

/// One end of an event channel of a trunk.
#[derive(Debug)]
pub struct TrunkEvent {
    port: EvtchnPort,
    socket: OwnedFd,
}

impl TrunkEvent {
    pub(crate) fn new(port: EvtchnPort, socket: OwnedFd) -> TrunkEvent {
        TrunkEvent { port, socket }
    }
}

impl EventChannel for TrunkEvent {
    fn port(&self) -> EvtchnPort {
        self.port
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn notify(&self) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match retry_on_intr(|| send(&self.socket, &[0], flags)) {
            // A full socket already has pending events.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(io::ErrorKind::NotConnected.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Never reports that the other end is gone: the supervisor detects that.
    fn ack(&self) -> io::Result<bool> {
        let mut events = [0; EVENTS_MAX];
        match retry_on_intr(|| recv(&self.socket, &mut events[..], RecvFlags::DONTWAIT)) {
            Ok((count, _)) => Ok(count > 0),
            Err(Errno::AGAIN | Errno::CONNRESET) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
