//! What a backend has open before it is confined: it makes no socket afterwards, and connects none.

use std::io;
use std::time::Instant;

use ringway_control::{ControlSocket, RunDir};
use ringway_net::Netlink;
use ringway_vhost_shell::Meeting;

use crate::config::VhostVif;

/// Sockets of a backend, beside those of XenStore, of the hypervisor and of
/// [`Service`](crate::Service).
#[derive(Debug)]
pub struct Sockets {
    pub(crate) control: ControlSocket,
    pub(crate) netlink: Netlink,
    /// Where the front-ends of virtio's vifs are met, in the order of their configuration.
    pub(crate) meetings: Vec<Meeting>,
}

impl Sockets {
    /// Opens them: the control socket in `dir`, and the way to the links of this network namespace.
    ///
    /// # Errors
    /// What the system reports.
    pub fn open(dir: &RunDir) -> io::Result<Sockets> {
        ringway_sys::guest_memory::prepare();
        let control = ControlSocket::bind(&dir.backend())?;
        Ok(Sockets { control, netlink: Netlink::open()?, meetings: Vec::new() })
    }

    /// Opens those of vifs of virtio as well.
    ///
    /// # Errors
    /// Why one of them cannot be made, with its path.
    pub fn with_vhosts(mut self, vhosts: &[VhostVif]) -> io::Result<Sockets> {
        let now = Instant::now();
        let meet = |vhost: &VhostVif| Meeting::new(&vhost.socket, vhost.mode, now);
        self.meetings = vhosts.iter().map(meet).collect::<io::Result<Vec<Meeting>>>()?;
        Ok(self)
    }
}
