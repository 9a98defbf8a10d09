//! Network namespaces without names: each is held by a child process and ends with it.
//!
//! A namespace is named by the id of a process in it, its holder or any other.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use ringway_net::{LinkSetting, Netlink};

use crate::child::{Child, PartError};
use crate::launcher::Launcher;

/// The part that holds a network namespace.
pub(crate) const HOLD: &str = "hold-namespace";
const PATIENCE: Duration = Duration::from_secs(60);
const READY: &str = "ready";

/// A network namespace. Dropping it ends its holder; what else runs in it keeps it alive.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    /// A new namespace in which only `lo` is up.
    ///
    /// # Errors
    /// If the system allows no network namespace, or its holder does not start.
    pub fn new(launcher: &Launcher) -> Result<Namespace, PartError> {
        let mut holder = launcher.start("namespace", launcher.part(HOLD))?;
        holder.wait_for(PATIENCE, |line| (line == READY).then_some(()))?;
        let namespace = Namespace { holder };
        configure(namespace.pid(), |net| net.set("lo", &[LinkSetting::Up]))?;
        Ok(namespace)
    }

    /// The process that holds it.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }
}

/// Reads or changes the links, addresses and routes of the network namespace of a process.
///
/// # Errors
/// If the namespace cannot be entered; what `change` returns.
pub fn configure<T: Send>(
    pid: u32,
    change: impl FnOnce(&mut Netlink) -> io::Result<T> + Send,
) -> Result<T, PartError> {
    inside(pid, || change(&mut Netlink::open()?))
        .map_err(PartError::at(format!("configure the namespace of process {pid}")))
}

/// Runs `work` in the network namespace of a process, on a thread of its own. Sockets and devices
/// that it opens stay in that namespace.
///
/// # Errors
/// If the namespace cannot be entered; what `work` returns.
pub fn inside<T: Send>(pid: u32, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let work = || {
        ringway_sys::namespace::enter(pid)?;
        work()
    };
    // The thread does not return to its own namespace, so it cannot be the calling one.
    let done = thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|_| Err(io::Error::other("the work in a namespace panicked")))
}

/// Gives a link of the namespace of a process an address with a prefix, and sets the link up.
///
/// # Errors
/// If there is no such link, or the kernel rejects the address.
pub fn add_address(
    pid: u32,
    link: &str,
    address: Ipv4Addr,
    prefix_len: u8,
) -> Result<(), PartError> {
    configure(pid, |net| {
        net.add_address(link, address.into(), prefix_len)?;
        net.set(link, &[LinkSetting::Up])
    })
}

/// Sets kernel settings of the namespace of a process, such as `net.ipv4.ip_forward`.
///
/// # Errors
/// Names the first setting that does not exist there or takes no such value.
pub fn set_sysctls(pid: u32, settings: &[(&str, &str)]) -> Result<(), PartError> {
    settings.iter().try_for_each(|(name, value)| {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        inside(pid, || fs::write(file, value))
            .map_err(PartError::at(format!("set {name} to {value}")))
    })
}

/// The part that holds a namespace: returns when its standard input ends.
pub(crate) fn hold() -> io::Result<()> {
    ringway_sys::namespace::unshare_network()?;
    println!("{READY}");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
