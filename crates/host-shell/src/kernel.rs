//! The kernel of this host, for its network devices: rtnetlink, and the files of TAP devices.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_host::{Kernel, Link, LinkKind, LinkSetting};
use ringway_net::{LinkSetting as Setting, Netlink, PortSettings};
use ringway_tap::{Lifetime, Side, Tap, TapFile, TapQueue};

/// The pause after each check whether the name of a new device is free.
const PAUSE: Duration = Duration::from_millis(10);

/// The links of a network namespace.
#[derive(Debug)]
pub struct HostKernel(pub(crate) Netlink);

/// A TAP device of it.
#[derive(Debug)]
pub struct HostTap(pub(crate) Tap);

impl HostKernel {
    /// Those of the calling thread's namespace.
    ///
    /// # Errors
    /// What socket(2) reports.
    pub fn open() -> io::Result<HostKernel> {
        Netlink::open().map(HostKernel)
    }
}

impl Kernel for HostKernel {
    type Tap = HostTap;
    type Port = PortSettings;

    fn links(&mut self) -> io::Result<Vec<Link>> {
        Ok(self.0.links()?.into_iter().map(link).collect())
    }

    fn link(&mut self, name: &str) -> io::Result<Link> {
        self.0.link(name).map(link)
    }

    fn addresses(&mut self) -> io::Result<Vec<(u32, IpAddr, u8)>> {
        self.0.addresses()
    }

    fn bridge_ports(&mut self) -> io::Result<BTreeMap<u32, PortSettings>> {
        self.0.bridge_ports()
    }

    fn set(&mut self, name: &str, settings: &[LinkSetting<'_>]) -> io::Result<()> {
        let settings: Vec<Setting<'_>> = settings.iter().map(setting).collect();
        self.0.set(name, &settings)
    }

    fn set_bridge_port(&mut self, name: &str, settings: &PortSettings) -> io::Result<()> {
        self.0.set_bridge_port(name, settings)
    }

    fn add_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> io::Result<()> {
        self.0.add_address(name, address, prefix_len)
    }

    fn remove_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> io::Result<()> {
        self.0.remove_address(name, address, prefix_len)
    }

    fn delete(&mut self, name: &str) -> io::Result<()> {
        self.0.delete(name)
    }

    fn open_tap(&mut self, name: &str, queues: u16) -> io::Result<HostTap> {
        Tap::create_multi_queue(name, queues).map(HostTap)
    }

    fn pause(&mut self) {
        thread::sleep(PAUSE);
    }
}

impl ringway_host::Tap for HostTap {
    type Queue = TapQueue;
    type Files = Vec<Arc<TapFile>>;

    fn from_files(files: &Vec<Arc<TapFile>>) -> io::Result<HostTap> {
        Tap::from_files(files.clone()).map(HostTap)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn is_deleted(&self) -> bool {
        self.0.is_deleted()
    }

    fn set_persistent(&self, is_persistent: bool) -> io::Result<()> {
        let lifetime = if is_persistent { Lifetime::Persistent } else { Lifetime::LastFile };
        self.0.set_lifetime(lifetime)
    }

    fn set_offloads(&self, caps: OffloadCaps) -> io::Result<()> {
        self.0.set_offloads(caps)
    }

    fn set_plain(&self, is_plain: bool) {
        self.0.set_plain(is_plain);
    }

    fn merge_read(&self, caps: OffloadCaps) {
        self.0.merge_read(caps);
    }

    fn set_enabled(&mut self, count: u16) -> io::Result<()> {
        self.0.set_enabled(count)
    }

    fn queues(&self, side: Side, counters: &[Arc<QueueCounters>]) -> Vec<TapQueue> {
        self.0.queues(side, |queue| Arc::clone(&counters[queue]))
    }
}

fn link(link: ringway_net::Link) -> Link {
    let ringway_net::Link { index, name, is_up, address, mtu, master, tx_queue_len, alias, .. } =
        link;
    let kind = match link.kind.as_deref() {
        Some("tun") => LinkKind::Tap,
        Some("bridge") => LinkKind::Bridge,
        Some("openvswitch") => LinkKind::OpenVswitch,
        _ => LinkKind::Other,
    };
    Link { index, name, kind, is_up, address, mtu, master, tx_queue_len, alias }
}

fn setting<'a>(setting: &LinkSetting<'a>) -> Setting<'a> {
    match *setting {
        LinkSetting::Up => Setting::Up,
        LinkSetting::Mtu(mtu) => Setting::Mtu(mtu),
        LinkSetting::Address(address) => Setting::Address(address),
        LinkSetting::Master(bridge) => Setting::Master(bridge),
        LinkSetting::GsoMaxSize(size) => Setting::GsoMaxSize(size),
        LinkSetting::TxQueueLen(len) => Setting::TxQueueLen(len),
        LinkSetting::Alias(alias) => Setting::Alias(alias),
        LinkSetting::NoLinkLocalAddress => Setting::NoLinkLocalAddress,
    }
}

#[cfg(test)]
pub(crate) mod tests;
