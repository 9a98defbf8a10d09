//! What a backend has open before it is confined: it makes no socket afterwards, and connects none.

use std::io;

use ringway_control::{ControlSocket, RunDir};
use ringway_net::Netlink;

/// Sockets of a backend, beside those of XenStore, of the hypervisor and of
/// [`Service`](crate::Service).
#[derive(Debug)]
pub struct Sockets {
    pub(crate) control: ControlSocket,
    pub(crate) netlink: Netlink,
}

impl Sockets {
    /// Opens them: the control socket in `dir`, and the way to the links of this network namespace.
    ///
    /// # Errors
    /// What the system reports.
    pub fn open(dir: &RunDir) -> io::Result<Sockets> {
        Ok(Sockets { control: ControlSocket::bind(&dir.backend())?, netlink: Netlink::open()? })
    }
}
