//! The sockets that a guest process opens before it is confined: it creates none afterwards.

use std::io;
use std::path::Path;

use ringway_control::ControlSocket;
use ringway_net::Netlink;
use ringway_net::ethtool::Ethtool;

use crate::gro::Gro;

/// Sockets of a guest process, apart from those of XenStore and of the hypervisor.
#[derive(Debug)]
pub struct Sockets {
    pub(crate) control: ControlSocket,
    pub(crate) netlink: Netlink,
    /// `None` if this kernel has none.
    pub(crate) ethtool: Option<Ethtool>,
    pub(crate) gro: Gro,
}

impl Sockets {
    /// Opens them: the control socket at `control`, and netlink for this network namespace.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(control: &Path) -> io::Result<Sockets> {
        let control = ControlSocket::bind(control)?;
        let ethtool = Ethtool::open().ok();
        Ok(Sockets { control, netlink: Netlink::open()?, ethtool, gro: Gro::open()? })
    }
}
