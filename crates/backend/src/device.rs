//! The network devices of this process on the host: TAP devices of vifs and of the uplink.
//!
//! All outlive the process. Its successor finds a device by its note (`ifalias`), whatever its
//! current name is, and takes it over as it is: an administrator or a toolstack's script may have
//! given it a name, a bridge, flags of a bridge's port, addresses, routes, queueing disciplines and
//! filters. If the toolstack has a hotplug script, the script places a vif's device. Otherwise we
//! put it on its bridge, and the uplink gets what the description says.

mod follow;
mod vif_device;

use std::io;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::Duration;

use ringway_datapath::OffloadCaps;
use ringway_host::{HOST_ADDRESS, vif_name};
use ringway_net::{Link, LinkSetting, Netlink};
use ringway_tap::{Lifetime, Tap};
use ringway_xenbus::{Hotplug, Keys, Vif};

use crate::applied::{Applied, AppliedNotes};
use crate::config::{Uplink, VhostVif};
use crate::purpose::{Purpose, is_ours, is_tap};

pub(crate) use follow::HostLinks;
use follow::{BridgeId, Seen};
pub(crate) use vif_device::{Device, VifDevice};

/// The longest frame that netif can describe (`XEN_NETIF_MAX_TX_SIZE`).
const GSO_MAX: LinkSetting<'static> = LinkSetting::GsoMaxSize(65535); // not a limit: the kernel's

/// How often to check whether the name of a new device is free, and the pause after each: a device
/// that was removed may exist for another moment.
const NAME_CHECKS: u32 = 20;
const NAME_CHECK_PAUSE: Duration = Duration::from_millis(10);
/// How often a device may be renamed while it is looked up and opened.
const RENAMES_MAX: usize = 4; // not a limit: the host's administrator

/// The network device of a vif or of the uplink, which this process keeps: it makes, follows and
/// removes it.
pub(crate) struct HostDevice {
    device: Device,
    purpose: Purpose,
    /// The kernel's number for it. Its name may change.
    pub(crate) index: u32,
    /// What was configured, if we have put it on its bridge.
    placed: Option<Bridged>,
    /// The bridge that it belongs on: the last one that it was on, unless it was taken off.
    home: Option<BridgeId>,
    seen: Seen,
}

/// What to do about a configured MTU that is less than that of the bridge: Linux would lower the
/// bridge's, and with it that of the host and of all other guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LowMtu {
    Refuse,
    /// The device gets that of the bridge.
    Warn,
}

/// A device that we put on a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bridged {
    pub(crate) purpose: Purpose,
    pub(crate) name: String,
    pub(crate) bridge: String,
    pub(crate) queues: u16,
    /// The configured MTU.
    pub(crate) mtu: Option<u16>,
    /// What its guest uses since an earlier session.
    pub(crate) mtu_min: u16,
    pub(crate) low_mtu: LowMtu,
}

impl HostDevice {
    /// Makes the device that the toolstack wants, if it wants one, or takes it over.
    pub(crate) fn make(
        net: &mut Netlink,
        notes: &mut AppliedNotes,
        vif: Vif,
        keys: &Keys,
        queues: u16,
    ) -> io::Result<Option<HostDevice>> {
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
            return HostDevice::make_bridged(net, notes, &bridged).map(Some);
        }
        let hotplug = Hotplug::read(keys);
        let wanted = Wanted { name, renamed, hotplug };
        let note = purpose.note(&notes.owner);
        let (tap, origin) = open_for_script(net, &wanted, &note, queues, mtu)?;
        if origin == Origin::New && wanted.hotplug == Hotplug::Connected {
            // The toolstack does not run it twice, and only the script knows what it did.
            tracing::warn!(
                name = wanted.name,
                "this is a new network device, and no hotplug script runs for it: no interface has \
                 the ifalias {note:?}"
            );
        }
        tap.set_offloads(OffloadCaps::ALL)?;
        let link = net.link(tap.name())?;
        let attached_to = keys.bridge().or(renamed).unwrap_or(tap.name()).to_owned();
        let mut device = HostDevice::new(tap, purpose, link, queues);
        device.attached_to = attached_to;
        Ok(Some(device))
    }

    /// Makes a device on a bridge, or takes it over.
    pub(crate) fn make_bridged(
        net: &mut Netlink,
        notes: &mut AppliedNotes,
        wanted: &Bridged,
    ) -> io::Result<HostDevice> {
        wanted.open(net, notes).map_err(|error| {
            let Bridged { name, bridge, .. } = wanted;
            let what = format!("network device {name} on bridge {bridge}: {error}");
            io::Error::new(error.kind(), what)
        })
    }

    fn new(tap: Tap, purpose: Purpose, link: Link, queues_made: u16) -> HostDevice {
        HostDevice {
            device: Device::new(tap, link.mtu, queues_made, String::new()),
            purpose,
            index: link.index,
            placed: None,
            home: None,
            seen: Seen::new(link),
        }
    }

    /// Where the device is, its bridge, or if it is on none, its own name; and whether it was set
    /// down.
    pub(crate) fn place(&self, links: &[Link]) -> (String, bool) {
        let Some(link) = links.iter().find(|link| link.index == self.index) else {
            return (format!("{} (deleted)", self.tap.name()), false);
        };
        let master = link.master.and_then(|index| links.iter().find(|it| it.index == index));
        (master.map_or(&link.name, |master| &master.name).clone(), !link.is_up)
    }

    /// Deletes the device with its last queue: now, unless workers still have some.
    pub(crate) fn remove(self, notes: &mut AppliedNotes) -> io::Result<()> {
        notes.forget(&self.purpose);
        self.tap.set_lifetime(Lifetime::LastFile)
    }

    /// Deletes the device at once, whichever process still has queues of it.
    pub(crate) fn delete(self, net: &mut Netlink, notes: &mut AppliedNotes) -> io::Result<()> {
        let note = self.purpose.note(&notes.owner);
        notes.forget(&self.purpose);
        let mut links = net.links()?.into_iter();
        let link = links.find(|link| link.index == self.index && is_ours(link, &note));
        link.map_or(Ok(()), |link| net.delete(&link.name))
    }
}

impl Deref for HostDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl DerefMut for HostDevice {
    fn deref_mut(&mut self) -> &mut Device {
        &mut self.device
    }
}

impl Bridged {
    /// The device of a virtio vif, if it is to have one.
    pub(crate) fn of_virtio(config: &VhostVif, low_mtu: LowMtu) -> Option<Bridged> {
        Some(Bridged {
            purpose: Purpose::Virtio(config.name.clone()),
            name: config.name.clone(),
            bridge: config.bridge.clone()?,
            queues: config.queues,
            mtu: config.limits.mtu,
            mtu_min: 0,
            low_mtu,
        })
    }

    fn open(&self, net: &mut Netlink, notes: &mut AppliedNotes) -> io::Result<HostDevice> {
        let note = self.purpose.note(&notes.owner);
        let before = notes.of(&self.purpose).cloned();
        let (tap, applied) = match find(net, &self.name, &note)? {
            Some(found) => {
                let before = before.filter(|before| before.index == found.index);
                let (tap, found) = take_over(net, &note, found, self.queues)?;
                let applied = self.update(net, &found, before)?;
                (tap, applied)
            }
            None => {
                log_deleted(&self.name, before.as_ref());
                self.make(net, notes)?
            }
        };
        tap.set_offloads(OffloadCaps::ALL)?;
        tap.set_lifetime(Lifetime::Persistent)?;
        let link = net.link(tap.name())?;
        let home = home(net, &link, applied.as_ref())?;
        if let Some(applied) = applied {
            notes.keep(&self.purpose, Applied { home: home.clone(), ..applied });
        }
        let mut device = HostDevice::new(tap, self.purpose.clone(), link, self.queues);
        device.attached_to.clone_from(&self.bridge);
        // It is served by now, so nothing refuses it any more.
        let placed = Some(Bridged { low_mtu: LowMtu::Warn, ..self.clone() });
        Ok(HostDevice { placed, home, ..device })
    }

    fn make(
        &self,
        net: &mut Netlink,
        notes: &mut AppliedNotes,
    ) -> io::Result<(Tap, Option<Applied>)> {
        let bridge = self.bridge_link(net)?;
        let mtu = self.mtu_on(&bridge)?;
        wait_for_name(net, &self.name)?;
        let tap = Tap::create_multi_queue(&self.name, self.queues)?;
        let note = self.purpose.note(&notes.owner);
        let address = LinkSetting::Address(HOST_ADDRESS.0);
        // No frames of the host's own IPv6 reach the guest: its link has no address.
        let settings =
            [LinkSetting::Alias(&note), GSO_MAX, address, LinkSetting::NoLinkLocalAddress];
        net.set(&self.name, &settings)?;
        // The MTU first: that of a bridge is the least of its ports.
        net.set(&self.name, &[LinkSetting::Mtu(mtu)])?;
        net.set(&self.name, &[LinkSetting::Master(&self.bridge), LinkSetting::Up])?;
        let index = net.link(&self.name)?.index;
        Ok((tap, Some(self.applied(index, &bridge))))
    }

    /// Applies to a device that was taken over what has changed in the description.
    fn update(
        &self,
        net: &mut Netlink,
        found: &Link,
        before: Option<Applied>,
    ) -> io::Result<Option<Applied>> {
        net.set(&found.name, &[GSO_MAX])?;
        let Some(before) = before else {
            self.log_place(net, found);
            return Ok(None);
        };
        let is_other = before.bridge.as_ref().is_none_or(|put_on| put_on.0 != self.bridge);
        // If its bridge exists, an administrator has taken it off.
        let is_lost = home(net, found, Some(&before))?
            .is_some_and(|home| found.master.is_none() && home.0 == self.bridge);
        if is_other || is_lost {
            let bridge = self.bridge_link(net)?;
            let mtu = self.mtu_on(&bridge)?;
            net.set(&found.name, &[LinkSetting::Mtu(mtu)])?;
            net.set(&found.name, &[LinkSetting::Master(&self.bridge)])?;
            tracing::info!(name = found.name, bridge = self.bridge, "is put on its bridge again");
            return Ok(Some(self.applied(found.index, &bridge)));
        }
        if before.mtu != self.mtu.map(u32::from) {
            let bridge = self.bridge_link(net)?;
            net.set(&found.name, &[LinkSetting::Mtu(self.mtu_on(&bridge)?)])?;
        }
        self.log_place(net, found);
        Ok(Some(Applied { mtu: self.mtu.map(u32::from), ..before }))
    }

    /// Says so if an administrator has taken the device from its bridge.
    fn log_place(&self, net: &mut Netlink, found: &Link) {
        let bridge = net.link(&self.bridge).ok().map(|bridge| bridge.index);
        if bridge.is_none() || found.master != bridge {
            let (name, bridge) = (&found.name, &self.bridge);
            tracing::info!(name, "is not on bridge {bridge}, and stays where it was put");
        }
    }

    fn bridge_link(&self, net: &mut Netlink) -> io::Result<Link> {
        let bridge = net.link(&self.bridge)?;
        if !is_bridge(&bridge) {
            let what = format!("{} is not a bridge", self.bridge);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(bridge)
    }

    /// The MTU of the device: the configured one, otherwise that of the bridge.
    fn mtu_on(&self, bridge: &Link) -> io::Result<u32> {
        let configured = self.mtu.map(u32::from).unwrap_or(bridge.mtu);
        if configured < bridge.mtu {
            let what = format!(
                "mtu is {configured}, less than the {} of bridge {}, which would be lowered for \
                 all on it: expected at least {0}, or lower that of the bridge first",
                bridge.mtu, bridge.name
            );
            if self.low_mtu == LowMtu::Refuse {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            tracing::warn!(name = self.name, "{what}: the device gets {}", bridge.mtu);
        }
        Ok(configured.max(bridge.mtu).max(self.mtu_min.into()))
    }

    fn applied(&self, index: u32, bridge: &Link) -> Applied {
        Applied {
            index,
            name: self.name.clone(),
            mtu: self.mtu.map(u32::from),
            bridge: Some((bridge.name.clone(), bridge.index)),
            ..Applied::default()
        }
    }
}

/// Makes the device of the uplink, or takes it over.
pub(crate) fn open_uplink(
    net: &mut Netlink,
    notes: &mut AppliedNotes,
    uplink: &Uplink,
) -> io::Result<HostDevice> {
    let purpose = Purpose::Uplink;
    let note = purpose.note(&notes.owner);
    let before = notes.of(&purpose).cloned();
    let mut found = find(net, &uplink.name, &note)?;
    let known = |link: &Link| before.clone().filter(|before| before.index == link.index);
    if let Some(link) = found.take_if(|link| known(link).is_some_and(|it| it.name != uplink.name)) {
        // The description names another device.
        net.delete(&link.name)?;
    }
    let (tap, applied) = match found {
        Some(found) => {
            let before = known(&found);
            let (tap, found) = take_over(net, &note, found, uplink.queues)?;
            net.set(&found.name, &[GSO_MAX])?;
            (tap, update_uplink(net, &found, uplink, before)?)
        }
        None => {
            log_deleted(&uplink.name, before.as_ref());
            wait_for_name(net, &uplink.name)?;
            let tap = Tap::create_multi_queue(&uplink.name, uplink.queues)?;
            let address = LinkSetting::Address(uplink.mac.0);
            let settings =
                [LinkSetting::Alias(&note), GSO_MAX, address, LinkSetting::Mtu(uplink.mtu)];
            net.set(&uplink.name, &settings)?;
            net.set(&uplink.name, &[LinkSetting::Up])?;
            for (address, prefix_len) in &uplink.addresses {
                net.add_address(&uplink.name, *address, *prefix_len)?;
            }
            let index = net.link(&uplink.name)?.index;
            (tap, applied_uplink(index, uplink))
        }
    };
    tap.set_offloads(OffloadCaps::ALL)?;
    tap.set_lifetime(Lifetime::Persistent)?;
    let link = net.link(tap.name())?;
    let home = home(net, &link, Some(&applied))?;
    notes.keep(&purpose, Applied { home: home.clone(), ..applied });
    Ok(HostDevice { home, ..HostDevice::new(tap, purpose, link, uplink.queues) })
}

/// The bridge that a device belongs on: its bridge, or the one that it was on and that has been
/// deleted since. One that exists without it is not its bridge any more: an administrator has
/// taken the device off.
fn home(net: &mut Netlink, found: &Link, before: Option<&Applied>) -> io::Result<Option<BridgeId>> {
    let links = net.links()?;
    let bridge = |index| links.iter().find(|link| link.index == index);
    if let Some(master) = found.master.and_then(bridge) {
        return Ok(Some((master.name.clone(), master.index)));
    }
    let before = before.and_then(|before| before.home.clone());
    Ok(before.filter(|(_, index)| bridge(*index).is_none()))
}

/// Applies to an uplink that was taken over what has changed in the description.
fn update_uplink(
    net: &mut Netlink,
    found: &Link,
    uplink: &Uplink,
    before: Option<Applied>,
) -> io::Result<Applied> {
    let now = applied_uplink(found.index, uplink);
    // Without notes, the device counts as made from this description.
    let before = before.unwrap_or_else(|| now.clone());
    let now = Applied { home: before.home.clone(), ..now };
    if before.mac != now.mac {
        net.set(&found.name, &[LinkSetting::Address(uplink.mac.0)])?;
    }
    if before.mtu != now.mtu {
        net.set(&found.name, &[LinkSetting::Mtu(uplink.mtu)])?;
    }
    let is_in = |addresses: &[(IpAddr, u8)], one: &&(IpAddr, u8)| addresses.contains(one);
    for (address, len) in before.addresses.iter().filter(|it| !is_in(&now.addresses, it)) {
        // An administrator may have moved it.
        if let Err(error) = net.remove_address(&found.name, *address, *len) {
            tracing::debug!("{error}");
        }
    }
    for (address, len) in now.addresses.iter().filter(|it| !is_in(&before.addresses, it)) {
        match net.add_address(&found.name, *address, *len) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(now)
}

fn applied_uplink(index: u32, uplink: &Uplink) -> Applied {
    Applied {
        index,
        name: uplink.name.clone(),
        mac: Some(uplink.mac),
        mtu: Some(uplink.mtu),
        bridge: None,
        home: None,
        addresses: uplink.addresses.clone(),
    }
}

/// Why the uplink of a host cannot have this name, if so: another interface has it. `owner` is that
/// of the host's devices.
///
/// # Errors
/// What the kernel reports.
pub fn uplink_obstacle(net: &mut Netlink, name: &str, owner: &str) -> io::Result<Option<String>> {
    match net.link(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(link) if Purpose::Uplink.is_of(&link, owner) => Ok(None),
        // It may go with a process that ends at this moment.
        Ok(link) if is_tap(&link) => match wait_for_name(net, name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(Some(error.to_string()))
            }
            outcome => outcome.map(|()| None),
        },
        Ok(_) => Ok(Some(in_use(name).to_string())),
    }
}

/// A device that waits for a script: down, and on no bridge. A device left by an earlier process of
/// ours is taken as it is, whatever its current name.
fn open_for_script(
    net: &mut Netlink,
    wanted: &Wanted<'_>,
    note: &str,
    queues: u16,
    mtu: Option<u16>,
) -> io::Result<(Tap, Origin)> {
    let mtu = mtu.map(|mtu| LinkSetting::Mtu(mtu.into()));
    if let Some(found) = wanted.find(net, note)? {
        let (tap, found) = take_over(net, note, found, queues)?;
        net.set(&found.name, &[GSO_MAX])?;
        return Ok((tap, Origin::TakenOver));
    }
    let name = &wanted.name;
    let tap = Tap::create_multi_queue(name, queues)?;
    // Write the note before the device becomes persistent: none may persist without one.
    let settings = [LinkSetting::Alias(note), GSO_MAX, LinkSetting::Address(HOST_ADDRESS.0)];
    net.set(name, &settings.into_iter().chain(mtu).collect::<Vec<_>>())?;
    tap.set_lifetime(Lifetime::Persistent)?;
    Ok((tap, Origin::New))
}

/// The device of a vif with a script.
struct Wanted<'a> {
    /// The name that the script expects.
    name: String,
    /// The name that it then gives the device, if the toolstack wants one (`vifname`).
    renamed: Option<&'a str>,
    /// The state that the script has reported.
    hotplug: Hotplug,
}

impl Wanted<'_> {
    /// The device left by an earlier process, found by its note, because it may have been renamed.
    fn find(&self, net: &mut Netlink, note: &str) -> io::Result<Option<Link>> {
        for name in [Some(self.name.as_str()), self.renamed].into_iter().flatten() {
            let found = match net.link(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            if is_ours(&found, note) {
                return Ok(Some(found));
            }
            // Once its script is done, a vif is served under its current name: it may have been
            // renamed again.
            if name == self.name || self.hotplug != Hotplug::Connected {
                return Err(name_is_taken(name, note));
            }
        }
        match self.hotplug {
            // Its device may have been renamed.
            Hotplug::Connected => Ok(net.links()?.into_iter().find(|link| is_ours(link, note))),
            _ => Ok(None),
        }
    }
}

fn name_is_taken(name: &str, note: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!(
            "the name {name} is taken by another network interface (its ifalias is not \
             \"{note}\"): rename or remove it"
        ),
    )
}

/// The origin of a device.
#[derive(PartialEq, Eq)]
enum Origin {
    New,
    TakenOver,
}

/// The device left by an earlier process, found by its note, because it may have been renamed.
fn find(net: &mut Netlink, name: &str, note: &str) -> io::Result<Option<Link>> {
    match net.link(name) {
        Ok(found) if is_ours(&found, note) => return Ok(Some(found)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    Ok(net.links()?.into_iter().find(|link| is_ours(link, note)))
}

/// Opens a device that was found, whatever name it has by now.
fn take_over(
    net: &mut Netlink,
    note: &str,
    mut found: Link,
    queues: u16,
) -> io::Result<(Tap, Link)> {
    for _ in 0..RENAMES_MAX {
        let tap = Tap::create_multi_queue(&found.name, queues)?;
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
fn wait_for_name(net: &mut Netlink, name: &str) -> io::Result<()> {
    for _ in 0..NAME_CHECKS {
        match net.link(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => thread::sleep(NAME_CHECK_PAUSE),
        }
    }
    Err(in_use(name))
}

/// The error if an interface has the name of a new device.
pub(crate) fn in_use(name: &str) -> io::Error {
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
    link.kind.as_deref() == Some("bridge")
}

#[cfg(test)]
pub(crate) mod tests;
