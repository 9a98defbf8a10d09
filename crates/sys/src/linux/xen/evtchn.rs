//! Event channels: `/dev/xen/evtchn`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_wire::{DomId, EvtchnPort};
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{IoctlOutput, Opcode};

use super::{opcode, open, request};
use crate::linux::explain;

/// One bound port, with its own file, so that the file's readiness is that of the port alone.
/// Dropping it closes the port.
#[derive(Debug)]
pub struct Evtchn {
    fd: OwnedFd,
    port: EvtchnPort,
}

/// Whether the device exists and may be used.
///
/// # Errors
/// If not, with the remedy.
pub fn check() -> io::Result<()> {
    open_device().map(drop)
}

impl Evtchn {
    /// Creates a port that `remote` may bind to.
    ///
    /// # Errors
    /// If the device cannot be opened, or the domain has no port left.
    pub fn unbound(remote: DomId) -> io::Result<Evtchn> {
        let mut argument = BindUnbound { remote_domain: remote.0.into() };
        let fd = open_device()?;
        // SAFETY: it is the event channel device, which takes this structure for this opcode.
        let port = unsafe { request::<BIND_UNBOUND_PORT, _>(&fd, &mut argument) };
        let port = port.map_err(|error| {
            explain(error, format_args!("event channel for domain {remote}: allocate"))
        })?;
        Ok(Evtchn { fd, port: number(port) })
    }

    /// Binds to a port that `remote` has created for us.
    ///
    /// # Errors
    /// If the device cannot be opened; of kind `NotFound` if there is no such domain,
    /// `InvalidInput` if there is no such port, or if the port is bound already or meant for
    /// another domain.
    pub fn interdomain(remote: DomId, port: EvtchnPort) -> io::Result<Evtchn> {
        let mut argument = BindInterdomain { remote_domain: remote.0.into(), remote_port: port.0 };
        let fd = open_device()?;
        // SAFETY: it is the event channel device, which takes this structure for this opcode.
        let bound = unsafe { request::<BIND_INTERDOMAIN, _>(&fd, &mut argument) };
        let bound = bound.map_err(|error| match error {
            Errno::SRCH => io::Error::new(io::ErrorKind::NotFound, format!("no domain {remote}")),
            _ => explain(error, format_args!("bind to port {port} of domain {remote}")),
        })?;
        Ok(Evtchn { fd, port: number(bound) })
    }

    /// Our own port.
    pub fn port(&self) -> EvtchnPort {
        self.port
    }

    /// Makes the other end pending.
    ///
    /// # Errors
    /// What the kernel reports; it does not treat a port without another end as an error.
    pub fn notify(&self) -> io::Result<()> {
        let mut argument = Notify { port: self.port.0 };
        // SAFETY: it is the event channel device, which takes this structure for this opcode.
        unsafe { request::<NOTIFY, _>(&self.fd, &mut argument) }?;
        Ok(())
    }

    /// Takes a pending event, if there is one, and lets the next one arrive.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn take(&self) -> io::Result<bool> {
        let mut ports = [0; size_of::<u32>()];
        match retry_on_intr(|| rustix::io::read(&self.fd, &mut ports)) {
            Ok(0) | Err(Errno::AGAIN) => Ok(false),
            Ok(_) => {
                // Writing the port unmasks it.
                retry_on_intr(|| rustix::io::write(&self.fd, &ports))?;
                Ok(true)
            }
            Err(error) => Err(explain(error, "event channel: read")),
        }
    }
}

impl AsFd for Evtchn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const BIND_INTERDOMAIN: Opcode = opcode::<BindInterdomain>(b'E', 1);
const BIND_UNBOUND_PORT: Opcode = opcode::<BindUnbound>(b'E', 2);
const NOTIFY: Opcode = opcode::<Notify>(b'E', 4);

/// `struct ioctl_evtchn_bind_interdomain`.
#[repr(C)]
struct BindInterdomain {
    remote_domain: u32,
    remote_port: u32,
}

/// `struct ioctl_evtchn_bind_unbound_port`.
#[repr(C)]
struct BindUnbound {
    remote_domain: u32,
}

/// `struct ioctl_evtchn_notify`.
#[repr(C)]
struct Notify {
    port: u32,
}

/// Negative numbers are errors and do not come here.
fn number(port: IoctlOutput) -> EvtchnPort {
    EvtchnPort(port.unsigned_abs())
}

fn open_device() -> io::Result<OwnedFd> {
    open("/dev/xen/evtchn", "xen-evtchn", OFlags::NONBLOCK)
}
