//! A process's connection to the broker, shared by all its handles.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;
use ringway_wire::DomId;

use crate::protocol::{Call, FDS_MAX, Reply};
use crate::socket;

/// While it is open, the process is the domain. The lock pairs requests with replies.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Mutex<OwnedFd>,
}

impl Connection {
    pub(crate) fn open(dir: &Path, domid: DomId) -> io::Result<Connection> {
        let socket = Mutex::new(socket::connect_to(&socket::path(dir, domid))?);
        Ok(Connection { socket })
    }

    /// # Errors
    /// The broker's refusal, or of kind `BrokenPipe` or `ConnectionReset` if it is gone.
    pub(crate) fn call(&self, call: &Call) -> io::Result<(Reply, ArrayVec<OwnedFd, FDS_MAX>)> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket::send_call(&*socket, call)?;
        socket::receive_reply(&*socket)
    }

    /// As [`ask`](Connection::call), for a reply with one descriptor.
    pub(crate) fn call_for_fd(&self, call: &Call) -> io::Result<(Reply, OwnedFd)> {
        let (reply, mut fds) = self.call(call)?;
        let fd = fds.pop().ok_or_else(no_descriptor)?;
        Ok((reply, fd))
    }

    /// As [`ask`](Connection::call), for a reply with two descriptors.
    pub(crate) fn call_for_fd_pair(&self, call: &Call) -> io::Result<(Reply, [OwnedFd; FDS_MAX])> {
        let (reply, fds) = self.call(call)?;
        // Fewer than two arrive if this process may open no more: the kernel drops the rest.
        let fds = fds.into_inner().map_err(|_| no_descriptor())?;
        Ok((reply, fds))
    }
}

fn no_descriptor() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "no more descriptors for the broker's reply")
}
