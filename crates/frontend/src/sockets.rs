//! What a guest process has open before it is confined: it makes no socket afterwards.

use std::io;
use std::path::Path;

use ringway_control::ControlSocket;
use ringway_net::Netlink;

/// Sockets of a guest process, beside those of XenStore and of the hypervisor.
#[derive(Debug)]
pub struct Sockets {
    pub(crate) control: ControlSocket,
    pub(crate) netlink: Netlink,
}

impl Sockets {
    /// Opens them: the control socket at `control`, and the way to the links of this network
    /// namespace.
    ///
    /// # Errors
    /// What the system reports.
    pub fn open(control: &Path) -> io::Result<Sockets> {
        Ok(Sockets { control: ControlSocket::bind(control)?, netlink: Netlink::open()? })
    }
}
