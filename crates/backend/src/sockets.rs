//! The sockets that a backend opens before it is confined: afterwards it neither creates nor
//! connects any.

use std::io;
use std::sync::Arc;

use ringway_control::{ControlSocket, Link, RunDir};
use ringway_host_shell::HostKernel;
use ringway_net::LinkWatch;
use ringway_sys::hangup::Hangup;

/// Sockets of a backend, apart from those of XenStore, of the hypervisor and of
/// [`Recipient`](ringway_control::Recipient).
#[derive(Debug)]
pub struct Sockets {
    pub(crate) control: ControlSocket,
    /// For a process that keeps network devices.
    pub(crate) net: Option<(HostKernel, LinkWatch)>,
    /// The link to the process that opens the sockets of virtio vifs.
    pub(crate) opener: Option<Arc<Link>>,
    /// The link to the process that adds and removes ports of Open vSwitch.
    pub(crate) plugger: Option<Arc<Link>>,
    /// Has it read the description again, if it came from a file.
    pub(crate) hangup: Option<Hangup>,
}

impl Sockets {
    /// Opens them: the control socket in `dir`, and netlink for this network namespace.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(dir: &RunDir) -> io::Result<Sockets> {
        let net = Some((HostKernel::open()?, LinkWatch::open()?));
        Ok(Sockets { net, ..Sockets::without_netlink(dir)? })
    }

    /// Opens them for a process to which its supervisor passes devices.
    ///
    /// # Errors
    /// The system's error.
    pub fn without_netlink(dir: &RunDir) -> io::Result<Sockets> {
        ringway_sys::guest_memory::prepare();
        let control = ControlSocket::bind(&dir.backend())?;
        Ok(Sockets { control, net: None, opener: None, plugger: None, hangup: None })
    }

    /// Adds what has the opener read the description again.
    pub fn with_hangup(self, hangup: Option<Hangup>) -> Sockets {
        Sockets { hangup, ..self }
    }

    /// Adds virtio vifs, whose sockets another process opens.
    pub fn with_opener(self, opener: Link) -> Sockets {
        Sockets { opener: Some(Arc::new(opener)), ..self }
    }

    /// Adds ports of Open vSwitch, which another process adds and removes, if there is one.
    pub fn with_plugger(self, plugger: Option<Link>) -> Sockets {
        Sockets { plugger: plugger.map(Arc::new), ..self }
    }
}
