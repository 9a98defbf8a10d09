//! A device that is itself a port of the switch: that of the uplink, or of a network namespace.

use std::io;
use std::net::IpAddr;

use ringway_datapath::{MacAddr, OffloadCaps};

use super::applied::Applied;
use super::keeper::Keeper;
use super::kernel::{Kernel, Link, LinkSetting, Tap};
use super::purpose::Purpose;
use super::{GSO_MAX, HostDevice, find, home, log_deleted, take_over, wait_for_name};
use crate::notes::Notes;

/// A TAP device by which a network namespace is a station of the switch.
#[derive(Debug, Clone)]
pub struct PortDevice {
    /// Its name.
    pub name: String,
    /// The Ethernet address of the station.
    pub mac: MacAddr,
    /// The addresses of the station, with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Its queues.
    pub queues: u16,
    /// Its MTU in bytes.
    pub mtu: u32,
}

/// Makes a device that is a port, or takes it over.
///
/// # Errors
/// Why it cannot be made, with the remedy.
pub fn open_port_device<K: Kernel>(
    keeper: &mut Keeper<K>,
    purpose: Purpose,
    wanted: &PortDevice,
    notes: &mut impl Notes,
) -> io::Result<HostDevice<K>> {
    let note = keeper.note_for(&purpose);
    let Keeper { net, applied: all, .. } = keeper;
    let before = all.of(&purpose).cloned();
    let mut found = find(net, &wanted.name, &note)?;
    let known = |link: &Link| before.clone().filter(|before| before.index == link.index);
    if let Some(link) = found.take_if(|link| known(link).is_some_and(|it| it.name != wanted.name)) {
        // The description names another device.
        net.delete(&link.name)?;
    }
    let (tap, applied) = match found {
        Some(found) => {
            let before = known(&found);
            let (tap, found) = take_over(net, &note, found, wanted.queues)?;
            net.set(&found.name, &[GSO_MAX])?;
            (tap, update(net, &found, wanted, before)?)
        }
        None => {
            log_deleted(&wanted.name, before.as_ref());
            wait_for_name(net, &wanted.name)?;
            let tap = net.open_tap(&wanted.name, wanted.queues)?;
            let address = LinkSetting::Address(wanted.mac.0);
            let settings =
                [LinkSetting::Alias(&note), GSO_MAX, address, LinkSetting::Mtu(wanted.mtu)];
            net.set(&wanted.name, &settings)?;
            net.set(&wanted.name, &[LinkSetting::Up])?;
            for (address, prefix_len) in &wanted.addresses {
                net.add_address(&wanted.name, *address, *prefix_len)?;
            }
            let index = net.link(&wanted.name)?.index;
            (tap, applied_of(index, wanted))
        }
    };
    tap.set_offloads(OffloadCaps::ALL)?;
    let link = net.link(tap.name())?;
    let home = home(net, &link, Some(&applied))?;
    // Last: a device that persists has its notes.
    tap.set_persistent(true)?;
    all.keep(&purpose, Applied { home: home.clone(), ..applied }, notes);
    Ok(HostDevice { home, ..HostDevice::new(tap, purpose, link, wanted.queues) })
}

/// Applies to a device that was taken over what has changed in the description.
fn update(
    net: &mut impl Kernel,
    found: &Link,
    wanted: &PortDevice,
    before: Option<Applied>,
) -> io::Result<Applied> {
    let now = applied_of(found.index, wanted);
    // Without notes, the device counts as made from this description.
    let before = before.unwrap_or_else(|| now.clone());
    let now = Applied { home: before.home.clone(), ..now };
    if before.mac != now.mac {
        net.set(&found.name, &[LinkSetting::Address(wanted.mac.0)])?;
    }
    if before.mtu != now.mtu {
        net.set(&found.name, &[LinkSetting::Mtu(wanted.mtu)])?;
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

fn applied_of(index: u32, wanted: &PortDevice) -> Applied {
    Applied {
        index,
        name: wanted.name.clone(),
        mac: Some(wanted.mac),
        mtu: Some(wanted.mtu),
        bridge: None,
        home: None,
        addresses: wanted.addresses.clone(),
    }
}
