//! What happens to a device after it was made: it is followed by what the kernel says of it.
//!
//! A device that was deleted is made again as it was last seen, and one whose bridge was deleted is
//! put on the next bridge of that name. Whatever else an administrator does to it stays: another
//! bridge, none while the old one exists (which may be a quarantine), or down.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use ringway_datapath::OffloadCaps;

use super::applied::Applied;
use super::keeper::Keeper;
use super::kernel::{Kernel, Link, LinkSetting, Tap};
use super::{GSO_MAX, HOST_ADDRESS, HostDevice, in_use, is_bridge};
use crate::comparison::Followed;
use crate::notes::Notes;

/// All links of the host at one time.
pub struct HostLinks<K: Kernel> {
    links: BTreeMap<u32, Link>,
    ports: BTreeMap<u32, K::Port>,
    addresses: Vec<(u32, IpAddr, u8)>,
}

/// A bridge, by its name and the kernel's number of it.
pub(crate) type BridgeId = (String, u32);

/// A device as it was last seen.
pub(super) struct Seen<P> {
    link: Link,
    /// Its settings as a port, also if its bridge has been deleted since.
    port: Option<P>,
    addresses: Vec<(IpAddr, u8)>,
}

impl<K: Kernel> HostLinks<K> {
    /// Reads them.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn read(net: &mut K) -> io::Result<HostLinks<K>> {
        // The ports first: one that has lost its bridge since is then seen again with the links.
        let (ports, addresses) = (net.bridge_ports()?, net.addresses()?);
        let links = net.links()?.into_iter().map(|link| (link.index, link)).collect();
        Ok(HostLinks { links, ports, addresses })
    }

    fn named(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|link| link.name == name)
    }

    /// The bridge that a device was on: that very one, otherwise one of its name.
    fn bridge(&self, (name, index): &BridgeId) -> Option<&Link> {
        let same = self.links.get(index).or_else(|| self.named(name));
        same.filter(|link| is_bridge(link))
    }
}

impl<K: Kernel> Keeper<K> {
    /// What the kernel has now.
    pub fn read_links(&mut self) -> Option<HostLinks<K>> {
        let read = HostLinks::read(&mut self.net);
        read.inspect_err(|error| tracing::debug!("{error}: trying again")).ok()
    }
}

impl<P> Seen<P> {
    /// A new device.
    pub(super) fn new(link: Link) -> Seen<P> {
        Seen { link, port: None, addresses: Vec::new() }
    }
}

impl<K: Kernel> HostDevice<K> {
    /// Follows what has become of the device. If it was deleted, it is made again as it was last
    /// seen, and its queues have to be attached again: see
    /// [`is_detached`](super::Device::is_detached).
    ///
    /// # Errors
    /// Why it does not work as it should; that may change later.
    pub fn follow(
        &mut self,
        now: &HostLinks<K>,
        keeper: &mut Keeper<K>,
        notes: &mut impl Notes,
    ) -> io::Result<()> {
        let Some(link) = now.links.get(&self.index) else {
            let returned = self.make_again(now, keeper, notes).map_err(|error| {
                let what = format!("its network device was deleted: {error}");
                io::Error::new(error.kind(), what)
            });
            return returned?;
        };
        let mut fault = None;
        let mut port = now.ports.get(&self.index).cloned().filter(|_| link.master.is_some());
        let name = &link.name;
        let master = link.master.and_then(|index| now.links.get(&index));
        // Open vSwitch alone knows on which of its bridges a device is.
        let master = master.filter(|_| self.ovs.is_none());
        match (master, self.home.take()) {
            (Some(master), home) => {
                if home.is_some_and(|(_, index)| index != master.index) {
                    tracing::info!(name, "is on {} now, and stays where it was put", master.name);
                }
                self.home = Some((master.name.clone(), master.index));
            }
            (None, Some(home)) if !now.links.contains_key(&home.1) => {
                port = self.seen.port.take();
                fault = self.return_to((name, &home), now, (keeper, notes), port.as_ref()).err();
            }
            (None, Some((bridge, _))) => {
                tracing::info!(name, "is not on bridge {bridge}, and stays where it was put");
            }
            (None, None) => {}
        }
        match (self.seen.link.is_up, link.is_up) {
            (true, false) => tracing::info!(name, "was set down, and stays so"),
            (false, true) => tracing::info!(name, "is up again"),
            _ => {}
        }
        let of_it = now.addresses.iter().filter(|(index, ..)| *index == self.index);
        let addresses = of_it.map(|(_, address, len)| (*address, *len)).collect();
        self.seen = Seen { link: link.clone(), port, addresses };
        self.note(keeper, notes);
        fault.map_or(Ok(()), Err)
    }

    /// Puts it on the bridge again that it was on, if there is one by now.
    fn return_to(
        &mut self,
        (name, home): (&str, &BridgeId),
        now: &HostLinks<K>,
        (keeper, notes): (&mut Keeper<K>, &mut impl Notes),
        port: Option<&K::Port>,
    ) -> io::Result<()> {
        self.home = Some(home.clone());
        let Some(bridge) = self.bridge_for(home, now, keeper) else {
            let what = format!("the bridge {} was deleted: waiting for one of that name", home.0);
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        };
        self.join(name, bridge, &mut keeper.net, port)?;
        let change = |applied: &mut Applied| {
            if let Some(name) = applied.configured(home.1) {
                applied.bridge = Some((name.to_owned(), bridge.index));
            }
        };
        keeper.applied.update(&self.purpose, change, notes);
        tracing::info!(name, bridge = bridge.name, "is put on its bridge again");
        Ok(())
    }

    /// The bridge that it belongs on: the one that it was on, one of its last name, or, if it was
    /// put on that or its notes were lost, one of the configured name, which may have been another.
    fn bridge_for<'a>(
        &self,
        home: &BridgeId,
        now: &'a HostLinks<K>,
        keeper: &Keeper<K>,
    ) -> Option<&'a Link> {
        let applied = keeper.applied.of(&self.purpose);
        let configured = applied.and_then(|applied| applied.configured(home.1));
        now.bridge(home).or_else(|| now.named(configured?).filter(|link| is_bridge(link)))
    }

    fn join(
        &mut self,
        name: &str,
        bridge: &Link,
        net: &mut K,
        port: Option<&K::Port>,
    ) -> io::Result<()> {
        if let Some(wanted) = &self.placed {
            // Not less than before: the bridge may not have all its ports yet, and would get the
            // least MTU of them.
            self.mtu = self.seen.link.mtu.max(wanted.mtu_on(bridge)?);
            net.set(name, &[LinkSetting::Mtu(self.mtu)])?;
        }
        net.set(name, &[LinkSetting::Master(&bridge.name)])?;
        self.home = Some((bridge.name.clone(), bridge.index));
        port.map_or(Ok(()), |port| net.set_bridge_port(name, port))
    }

    /// Makes it again, and returns whether it is back on its bridge.
    fn make_again(
        &mut self,
        now: &HostLinks<K>,
        keeper: &mut Keeper<K>,
        notes: &mut impl Notes,
    ) -> io::Result<io::Result<()>> {
        let name = self.seen.link.name.clone();
        if now.named(&name).is_some() {
            return Err(in_use(&name));
        }
        let note = keeper.note_for(&self.purpose);
        let net = &mut keeper.net;
        let tap = net.open_tap(&name, self.queues_made)?;
        let address = self.seen.link.address.unwrap_or(HOST_ADDRESS.0);
        let length = LinkSetting::TxQueueLen(self.seen.link.tx_queue_len);
        let mtu = LinkSetting::Mtu(self.seen.link.mtu);
        let settings = [LinkSetting::Alias(&note), GSO_MAX, length, mtu];
        let address = LinkSetting::Address(address);
        let own = self.placed.as_ref().map(|_| LinkSetting::NoLinkLocalAddress);
        let settings: Vec<_> = settings.into_iter().chain([address]).chain(own).collect();
        net.set(&name, &settings)?;
        tap.set_offloads(OffloadCaps::ALL)?;
        let index = net.link(&name)?.index;
        let (home, port) = (self.home.clone(), self.seen.port.clone());
        let must_wait =
            home.as_ref().is_some_and(|home| self.bridge_for(home, now, keeper).is_none());
        let returned = home.map_or(Ok(()), |home| {
            self.return_to((&name, &home), now, (keeper, notes), port.as_ref())
        });
        let net = &mut keeper.net;
        let returned = match must_wait {
            true => returned,
            false => returned.map(Ok)?,
        };
        if self.seen.link.is_up {
            net.set(&name, &[LinkSetting::Up])?;
        }
        for (address, len) in &self.seen.addresses {
            // The kernel gives it a link-local address itself, and another link may have this one.
            let is_taken = now.addresses.iter().any(|(_, other, _)| other == address);
            let is_local = matches!(address, IpAddr::V6(it) if it.is_unicast_link_local());
            if !is_taken && !is_local {
                let added = net.add_address(&name, *address, *len);
                added.unwrap_or_else(|error| tracing::warn!("{error}"));
            }
        }
        // Last: what fails before leaves nothing, and is tried again.
        tap.set_persistent(true)?;
        (self.index, self.tap) = (index, tap);
        self.is_detached = true;
        self.note(keeper, notes);
        tracing::warn!(
            name,
            "the network device was deleted: it is made again as it was, without the routes, \
             queueing disciplines and filters that it had"
        );
        Ok(returned)
    }

    /// Shows users why it does not work as it should, if so, and logs that once.
    pub fn show(&mut self, outcome: io::Result<()>) -> Followed {
        self.device.show(&self.seen.link.name, outcome)
    }

    /// Its name when it was last seen.
    pub(crate) fn seen_name(&self) -> &str {
        &self.seen.link.name
    }

    /// Notes where it is for the next process.
    fn note(&self, keeper: &mut Keeper<K>, notes: &mut impl Notes) {
        let change = |applied: &mut Applied| {
            applied.index = self.index;
            applied.home.clone_from(&self.home);
        };
        keeper.applied.update(&self.purpose, change, notes);
    }
}
