//! The device of the uplink: a port of the switch, by which the host reaches guests.

use std::io;
use std::net::IpAddr;

use ringway_datapath::{MacAddr, MulticastRouter, OffloadCaps, VlanRules};
use ringway_switch::StormLimits;

use super::applied::Applied;
use super::keeper::Keeper;
use super::kernel::{Kernel, Link, LinkSetting, Tap};
use super::purpose::{Purpose, is_tap};
use super::{GSO_MAX, HostDevice, find, home, in_use, log_deleted, take_over, wait_for_name};
use crate::notes::Notes;

/// A TAP device on the host, which is a port of the switch.
#[derive(Debug, Clone)]
pub struct Uplink {
    /// Its name.
    pub name: String,
    /// The host's Ethernet address on it.
    pub mac: MacAddr,
    /// The host's addresses on it, with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Its queues.
    pub queues: u16,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// What may change while it serves.
    pub rules: UplinkRules,
}

/// What goes through an uplink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UplinkRules {
    /// The VLANs that it is in.
    pub vlan: VlanRules,
    /// Whether multicast routers are behind it.
    pub multicast_router: MulticastRouter,
    /// Limits of each kind of flood that enters by it, per second.
    pub storm: StormLimits,
}

impl UplinkRules {
    /// Those of an uplink that is in these VLANs and behind which all routers are. What is there
    /// has its own limits.
    pub fn without_limits(vlan: VlanRules) -> UplinkRules {
        let (multicast_router, storm) = (MulticastRouter::Always, StormLimits::NONE);
        UplinkRules { vlan, multicast_router, storm }
    }
}

/// Makes the device of the uplink, or takes it over.
///
/// # Errors
/// Why it cannot be made, with the remedy.
pub fn open_uplink<K: Kernel>(
    keeper: &mut Keeper<K>,
    uplink: &Uplink,
    notes: &mut impl Notes,
) -> io::Result<HostDevice<K>> {
    let purpose = Purpose::Uplink;
    let note = keeper.note_for(&purpose);
    let Keeper { net, applied: all, .. } = keeper;
    let before = all.of(&purpose).cloned();
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
            let tap = net.open_tap(&uplink.name, uplink.queues)?;
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
    let link = net.link(tap.name())?;
    let home = home(net, &link, Some(&applied))?;
    // Last: a device that persists has its notes.
    tap.set_persistent(true)?;
    all.keep(&purpose, Applied { home: home.clone(), ..applied }, notes);
    Ok(HostDevice { home, ..HostDevice::new(tap, purpose, link, uplink.queues) })
}

/// Applies to an uplink that was taken over what has changed in the description.
fn update_uplink(
    net: &mut impl Kernel,
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
pub fn uplink_obstacle(
    net: &mut impl Kernel,
    name: &str,
    owner: &str,
) -> io::Result<Option<String>> {
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
