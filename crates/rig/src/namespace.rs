//! Network namespaces without names: each is held by a child process and goes with it.

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
const PATIENCE: Duration = Duration::from_secs(10);
const READY: &str = "ready";

/// One namespace.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    /// A new one in which only `lo` is up.
    pub fn new(launcher: &Launcher) -> Result<Namespace, PartError> {
        let mut holder = launcher.start("namespace", launcher.part(HOLD))?;
        holder.wait_for(PATIENCE, |line| (line == READY).then_some(()))?;
        let namespace = Namespace { holder };
        configure(namespace.pid(), |net| net.set("lo", &[LinkSetting::Up]))?;
        Ok(namespace)
    }

    /// A process in it.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }
}

/// Does something with the links of a process' namespace.
pub fn configure<T: Send>(
    pid: u32,
    change: impl FnOnce(&mut Netlink) -> io::Result<T> + Send,
) -> Result<T, PartError> {
    inside(pid, || change(&mut Netlink::open()?))
        .map_err(PartError::at(format!("configure the namespace of process {pid}")))
}

/// Does something in the network namespace of a process.
pub fn inside<T: Send>(
    pid: u32,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let work = || {
        ringway_sys::namespace::enter(pid)?;
        work()
    };
    // In a thread of its own, since it cannot come back.
    let done = thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|_| Err(io::Error::other("the work in a namespace panicked")))
}

/// Gives a link an address of a network with a prefix of so many bits, and sets it up.
pub fn address_in(
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

/// Sets kernel settings of a namespace, such as `net.ipv4.ip_forward`.
pub fn set_sysctls(pid: u32, settings: &[(&str, &str)]) -> Result<(), PartError> {
    settings.iter().try_for_each(|(name, value)| {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        inside(pid, || fs::write(file, value))
            .map_err(PartError::at(format!("set {name} to {value}")))
    })
}

/// The process that holds a namespace, until it is killed.
pub(crate) fn hold() -> io::Result<()> {
    ringway_sys::namespace::unshare_network()?;
    println!("{READY}");
    // It ends with its input, if it is not killed before.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
