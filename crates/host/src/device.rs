//! The network devices of a process: TAP devices of vifs, of the uplink, and of network namespaces.
//!
//! All outlive the process. Its successor finds a device by its note (`ifalias`), whatever its
//! current name is, and takes it over as it is: an administrator or a toolstack's script may have
//! given it a name, a bridge, flags of a bridge's port, addresses, routes, queueing disciplines and
//! filters. If the toolstack has a hotplug script, the script places a vif's device. Otherwise we
//! put it on its bridge, and the uplink gets what the description says.

mod applied;
mod bridged;
mod device_keeper;
mod devices;
mod follow;
mod keeper;
mod kernel;
mod port_device;
mod purpose;
mod script;
mod stale;
mod uplink;
mod vif_device;

use std::io;
use std::ops::{Deref, DerefMut};

use ringway_datapath::MacAddr;
use ringway_ovs::OvsBridge;
use ringway_xenbus::{Hotplug, Keys, Vif};

pub use bridged::{Bridged, LowMtu, check_bridge};
pub use device_keeper::{DeviceChange, DeviceKeeper, DeviceState};
pub use devices::{Devices, Made, Passed};
pub use follow::HostLinks;
pub use keeper::{Joining, Keeper};
pub use kernel::{Kernel, Link, LinkKind, LinkSetting, Tap};
pub use port_device::{PortDevice, open_port_device};
pub use purpose::Purpose;
pub use stale::delete_devices;
pub use uplink::{Uplink, UplinkRules, uplink_obstacle};
pub use vif_device::{Device, VifDevice};

use applied::Applied;
use follow::{BridgeId, Seen};
use purpose::is_ours;
use script::Wanted;

use crate::notes::Notes;
use crate::quarantine::vif_name;

/// Address of the host's end of a network device: the largest that is not a group's, so that no
/// bridge chooses it for its own. A guest with the same one would not receive its replies.
pub const HOST_ADDRESS: MacAddr = MacAddr([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);

/// The longest frame that netif can describe (`XEN_NETIF_MAX_TX_SIZE`).
const GSO_MAX: LinkSetting<'static> = LinkSetting::GsoMaxSize(65535); // not a limit: the kernel's

/// How often to check whether the name of a new device is free, with a pause after each: a device
/// that was removed may exist for another moment.
const NAME_CHECKS: u32 = 20;
/// How often a device may be renamed while it is looked up and opened.
const RENAMES_MAX: usize = 4; // not a limit: the host's administrator

/// The network device of a vif or of the uplink, which this process keeps: it makes, follows and
/// removes it.
pub struct HostDevice<K: Kernel> {
    device: Device<K::Tap>,
    purpose: Purpose,
    /// The kernel's number for it. Its name may change.
    pub index: u32,
    /// What was configured, if we have put it on its bridge, or have it put there.
    placed: Option<Bridged>,
    /// The bridge of Open vSwitch that it is for. It is a port there while its guest is connected.
    ovs: Option<OvsBridge>,
    /// The bridge that it belongs on: the last one that it was on, unless it was taken off.
    home: Option<BridgeId>,
    seen: Seen<K::Port>,
}

/// Where a device is.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// Its bridge, or if it is on none, its own name. Of one that was deleted, its bridge as
    /// configured, where it will be again.
    pub attached_to: String,
    /// Whether it was set down.
    pub is_down: bool,
    /// Whether it was deleted.
    pub is_gone: bool,
}

impl Place {
    /// Why nothing passes there, if so.
    pub fn fault(&self) -> Option<String> {
        self.is_gone.then(|| "its network device was deleted".to_owned())
    }
}

impl<K: Kernel> HostDevice<K> {
    /// Makes the device that the toolstack wants, if it wants one, or takes it over.
    pub(crate) fn make(
        keeper: &mut Keeper<K>,
        vif: Vif,
        keys: &Keys,
        queues: u16,
        notes: &mut impl Notes,
    ) -> io::Result<Option<HostDevice<K>>> {
        let renamed = keys.device_name().map_err(io::Error::other)?;
        let mtu = keys.mtu_configured().map_err(io::Error::other)?;
        let purpose = Purpose::Xen(vif);
        let name = vif_name(vif);
        if keys.script().is_none() {
            let Some(bridge) = keys.bridge() else { return Ok(None) };
            let bridged = Bridged {
                purpose,
                name,
                bridge: bridge.to_owned(),
                queues,
                mtu,
                mtu_min: 0,
                low_mtu: LowMtu::Warn,
            };
            return HostDevice::make_bridged(keeper, &bridged, notes).map(Some);
        }
        let wanted = Wanted { name, renamed, hotplug: Hotplug::read(keys), queues, mtu };
        let note = keeper.note_for(&purpose);
        let tap = wanted.open(&mut keeper.net, &note)?;
        let link = keeper.net.link(tap.name())?;
        let attached_to = keys.bridge().or(renamed).unwrap_or(tap.name()).to_owned();
        let mut device = HostDevice::new(tap, purpose, link, queues);
        device.attached_to = attached_to;
        Ok(Some(device))
    }

    /// Makes a device on a bridge, or takes it over.
    ///
    /// # Errors
    /// Why it cannot be made, with the remedy.
    pub fn make_bridged(
        keeper: &mut Keeper<K>,
        wanted: &Bridged,
        notes: &mut impl Notes,
    ) -> io::Result<HostDevice<K>> {
        wanted.open(keeper, notes).map_err(|error| {
            let Bridged { name, bridge, .. } = wanted;
            let what = format!("network device {name} on bridge {bridge}: {error}");
            io::Error::new(error.kind(), what)
        })
    }

    fn new(tap: K::Tap, purpose: Purpose, link: Link, queues_made: u16) -> HostDevice<K> {
        HostDevice {
            device: Device::new(tap, link.mtu, queues_made, String::new()),
            purpose,
            index: link.index,
            placed: None,
            ovs: None,
            home: None,
            seen: Seen::new(link),
        }
    }

    /// Where the device is, by the links of the host, or where it should be if these could not be
    /// read.
    pub fn place(&self, links: Option<&[Link]>) -> Place {
        let Some(links) = links else { return self.configured(self.tap.is_deleted()) };
        let Some(link) = links.iter().find(|link| link.index == self.index) else {
            return self.configured(true);
        };
        if self.ovs.is_some() {
            return Place { is_down: !link.is_up, ..self.configured(false) };
        }
        let master = link.master.and_then(|index| links.iter().find(|it| it.index == index));
        let attached_to = master.map_or(&link.name, |master| &master.name).clone();
        Place { attached_to, is_down: !link.is_up, is_gone: false }
    }

    /// Deletes the device with its last queue: now, unless workers still have some.
    ///
    /// # Errors
    /// It is gone already.
    pub fn remove(self, keeper: &mut Keeper<K>, notes: &mut impl Notes) -> io::Result<()> {
        keeper.applied.forget(&self.purpose, notes);
        self.tap.set_persistent(false)
    }

    /// Deletes the device at once, whichever process still has queues of it.
    ///
    /// # Errors
    /// What the kernel reports. It is forgotten nevertheless.
    pub fn delete(self, keeper: &mut Keeper<K>, notes: &mut impl Notes) -> io::Result<()> {
        let note = keeper.note_for(&self.purpose);
        keeper.applied.forget(&self.purpose, notes);
        let mut links = keeper.net.links()?.into_iter();
        let link = links.find(|link| link.index == self.index && is_ours(link, &note));
        link.map_or(Ok(()), |link| keeper.net.delete(&link.name))
    }
}

impl<K: Kernel> Deref for HostDevice<K> {
    type Target = Device<K::Tap>;

    fn deref(&self) -> &Device<K::Tap> {
        &self.device
    }
}

impl<K: Kernel> DerefMut for HostDevice<K> {
    fn deref_mut(&mut self) -> &mut Device<K::Tap> {
        &mut self.device
    }
}

/// The bridge that a device belongs on: its bridge, or the one that it was on and that has been
/// deleted since. One that exists without it is not its bridge any more: an administrator has
/// taken the device off.
fn home(
    net: &mut impl Kernel,
    found: &Link,
    before: Option<&Applied>,
) -> io::Result<Option<BridgeId>> {
    let links = net.links()?;
    let bridge = |index| links.iter().find(|link| link.index == index);
    if let Some(master) = found.master.and_then(bridge) {
        return Ok(Some((master.name.clone(), master.index)));
    }
    let before = before.and_then(|before| before.home.clone());
    Ok(before.filter(|(_, index)| bridge(*index).is_none()))
}

/// The device left by an earlier process, found by its note, because it may have been renamed.
fn find(net: &mut impl Kernel, name: &str, note: &str) -> io::Result<Option<Link>> {
    match net.link(name) {
        Ok(found) if is_ours(&found, note) => return Ok(Some(found)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    Ok(net.links()?.into_iter().find(|link| is_ours(link, note)))
}

/// Opens a device that was found, whatever name it has by now.
fn take_over<K: Kernel>(
    net: &mut K,
    note: &str,
    mut found: Link,
    queues: u16,
) -> io::Result<(K::Tap, Link)> {
    for _ in 0..RENAMES_MAX {
        let tap = net.open_tap(&found.name, queues)?;
        // If the device was renamed meanwhile, opening the old name has made a new device.
        if net.link(&found.name).is_ok_and(|link| link.index == found.index) {
            return Ok((tap, found));
        }
        drop(tap);
        let renamed = net.links()?.into_iter().find(|link| is_ours(link, note));
        found = renamed.ok_or_else(|| io::Error::other("the network device was removed"))?;
    }
    Err(io::Error::other(format!("the network device {} is renamed again and again", found.name)))
}

/// Waits until a new device can have this name.
fn wait_for_name(net: &mut impl Kernel, name: &str) -> io::Result<()> {
    for _ in 0..NAME_CHECKS {
        match net.link(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => net.pause(),
        }
    }
    Err(in_use(name))
}

/// The error if an interface has the name of a new device.
fn in_use(name: &str) -> io::Error {
    let what = format!("an interface {name} exists already: remove it, or choose another name");
    io::Error::new(io::ErrorKind::AlreadyExists, what)
}

/// Says so if a device that existed is gone: what an administrator had set on it is lost.
fn log_deleted(name: &str, before: Option<&Applied>) {
    if before.is_some() {
        tracing::warn!(name, "the network device was deleted: it is made again");
    }
}

fn is_bridge(link: &Link) -> bool {
    link.kind == LinkKind::Bridge
}
