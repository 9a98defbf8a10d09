//! Network namespaces without names: each is held by a child process and goes with it.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use ringway_net::{LinkSetting, Netlink};

use super::{ADDRESSES, PREFIX_LEN};
use crate::child::{Child, ourselves};

/// The verb of the process that holds a namespace.
pub(crate) const HOLD_VERB: &str = "hold-namespace";
const PATIENCE: Duration = Duration::from_secs(10);
const READY: &str = "ready";

/// One namespace.
pub(crate) struct Namespace {
    holder: Child,
}

impl Namespace {
    /// A new one in which only `lo` is up.
    pub(crate) fn new() -> Result<Namespace> {
        let mut holder = Child::start("namespace", ourselves(HOLD_VERB)?)?;
        holder.wait_for(PATIENCE, |line| (line == READY).then_some(()))?;
        let namespace = Namespace { holder };
        namespace.configure(|net| net.set("lo", &[LinkSetting::Up]))?;
        Ok(namespace)
    }

    /// A process in it.
    pub(crate) fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// Does something with its links.
    pub(crate) fn configure<T: Send>(
        &self,
        change: impl FnOnce(&mut Netlink) -> std::io::Result<T> + Send,
    ) -> Result<T> {
        let pid = self.pid();
        let change = || {
            ringway_sys::namespace::enter(pid)?;
            change(&mut Netlink::open()?)
        };
        // In a thread of its own, since it cannot come back.
        let changed = thread::scope(|scope| scope.spawn(change).join());
        changed.ok().context("configuring a namespace panicked")?.context("configure a namespace")
    }

    /// Gives a link the address of an end and sets it up.
    pub(crate) fn address(&self, link: &str, end: usize) -> Result<()> {
        self.configure(|net| {
            net.add_address(link, ADDRESSES[end].into(), PREFIX_LEN)?;
            net.set(link, &[LinkSetting::Up])
        })
    }
}

/// The process that holds a namespace, until it is killed.
pub(crate) fn hold() -> Result<()> {
    ringway_sys::namespace::unshare_network()?;
    println!("{READY}");
    // It ends with its input, should nobody kill it.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
