//! A device that we put on a bridge.

use std::io;

use ringway_datapath::OffloadCaps;
use ringway_ovs::OvsBridge;

use super::applied::{Applied, NO_INDEX};
use super::keeper::{Joining, Keeper};
use super::kernel::{Kernel, Link, LinkKind, LinkSetting, Tap};
use super::purpose::Purpose;
use super::{
    GSO_MAX, HOST_ADDRESS, HostDevice, find, home, is_bridge, log_deleted, take_over, wait_for_name,
};
use crate::notes::Notes;

/// What to do about a configured MTU that is less than that of the bridge: Linux would lower the
/// bridge's, and with it that of the host and of all other guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LowMtu {
    /// The vif is not served.
    Refuse,
    /// The device gets that of the bridge.
    Warn,
}

/// A device that we put on a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridged {
    /// The vif that it is for.
    pub purpose: Purpose,
    /// Its name.
    pub name: String,
    /// The bridge: one of Linux, or one of Open vSwitch, perhaps with VLANs.
    pub bridge: String,
    /// Its queues.
    pub queues: u16,
    /// The configured MTU.
    pub mtu: Option<u16>,
    /// What its guest uses since an earlier session.
    pub mtu_min: u16,
    /// What to do if that is less than the bridge's.
    pub low_mtu: LowMtu,
}

/// What has to change of a device that is taken over.
#[derive(Clone, Copy)]
enum Update {
    Nothing,
    /// It gets this MTU.
    Mtu(u32),
    /// It is put on the bridge with this index, with this MTU.
    Join(u32, u32),
}

impl Bridged {
    pub(super) fn open<K: Kernel>(
        &self,
        keeper: &mut Keeper<K>,
        notes: &mut impl Notes,
    ) -> io::Result<HostDevice<K>> {
        let note = keeper.note_for(&self.purpose);
        let Keeper { net, joining, applied: all } = keeper;
        let before = all.of(&self.purpose).cloned();
        let found = find(net, &self.name, &note)?;
        let index = found.as_ref().map(|found| found.index);
        let noted = before.clone().filter(|before| Some(before.index) == index);
        let ovs = on_ovs(net, &self.bridge, *joining, noted.as_ref())?;
        let was_on_linux = noted.as_ref().is_some_and(|noted| noted.bridge.is_some());
        let (tap, applied) = match (found, &ovs) {
            (Some(found), Some(_)) if !was_on_linux => {
                let (tap, found) = take_over(net, &note, found, self.queues)?;
                (tap, self.update_for_ovs(net, &found, noted)?)
            }
            (found, Some((_, Some(bridge)))) => {
                // A port of a Linux bridge cannot be one of Open vSwitch.
                found.map_or(Ok(()), |found| net.delete(&found.name))?;
                self.make_for_ovs(net, &note, bridge)?
            }
            (Some(found), _) => {
                // First: an attempt that fails is repeated, and must not disturb the device.
                let update = self.plan(net, &found, noted.as_ref())?;
                let (tap, found) = take_over(net, &note, found, self.queues)?;
                (tap, self.update(net, &found, noted, update)?)
            }
            (None, _) => {
                log_deleted(&self.name, before.as_ref());
                self.make(net, &note)?
            }
        };
        tap.set_offloads(OffloadCaps::ALL)?;
        let link = net.link(tap.name())?;
        let home = match ovs {
            Some(_) => None,
            None => home(net, &link, Some(&applied))?,
        };
        // Last: a device that persists has its notes.
        tap.set_persistent(true)?;
        all.keep(&self.purpose, Applied { home: home.clone(), ..applied }, notes);
        let mut device = HostDevice::new(tap, self.purpose.clone(), link, self.queues);
        device.attached_to.clone_from(&self.bridge);
        // It is served by now, so nothing refuses it any more.
        let placed = Some(Bridged { low_mtu: LowMtu::Warn, ..self.clone() });
        let ovs = ovs.map(|(bridge, _)| bridge);
        Ok(HostDevice { placed, ovs, home, ..device })
    }

    fn make<K: Kernel>(&self, net: &mut K, note: &str) -> io::Result<(K::Tap, Applied)> {
        let bridge = bridge_link(net, &self.bridge)?;
        let tap = self.make_unattached(net, note, self.mtu_on(&bridge)?)?;
        net.set(&self.name, &[LinkSetting::Master(&self.bridge), LinkSetting::Up])?;
        let index = net.link(&self.name)?.index;
        Ok((tap, self.applied(index, bridge.index)))
    }

    /// A device that Open vSwitch gets as a port once its guest has connected. Its MTU changes
    /// that of no other port.
    fn make_for_ovs<K: Kernel>(
        &self,
        net: &mut K,
        note: &str,
        bridge: &Link,
    ) -> io::Result<(K::Tap, Applied)> {
        let mtu = self.mtu.map_or(bridge.mtu, u32::from).max(self.mtu_min.into());
        let tap = self.make_unattached(net, note, mtu)?;
        net.set(&self.name, &[LinkSetting::Up])?;
        let index = net.link(&self.name)?.index;
        Ok((tap, self.applied_for_ovs(index)))
    }

    fn make_unattached<K: Kernel>(&self, net: &mut K, note: &str, mtu: u32) -> io::Result<K::Tap> {
        wait_for_name(net, &self.name)?;
        let tap = net.open_tap(&self.name, self.queues)?;
        let address = LinkSetting::Address(HOST_ADDRESS.0);
        // No frames of the host's own IPv6 reach the guest: its link has no address.
        let settings =
            [LinkSetting::Alias(note), GSO_MAX, address, LinkSetting::NoLinkLocalAddress];
        net.set(&self.name, &settings)?;
        // Before it is on a bridge, whose MTU is the least of its ports.
        net.set(&self.name, &[LinkSetting::Mtu(mtu)])?;
        Ok(tap)
    }

    /// Applies to such a device what has changed in the description.
    fn update_for_ovs(
        &self,
        net: &mut impl Kernel,
        found: &Link,
        noted: Option<Applied>,
    ) -> io::Result<Applied> {
        net.set(&found.name, &[GSO_MAX])?;
        let Some(noted) = noted else { return Ok(self.applied_for_ovs(found.index)) };
        let mtu = self.mtu.map(u32::from);
        if let Some(mtu) = mtu.filter(|_| noted.mtu != mtu) {
            net.set(&found.name, &[LinkSetting::Mtu(mtu.max(self.mtu_min.into()))])?;
        }
        Ok(Applied { mtu, ..noted })
    }

    /// What has to change of a device that is found, with what was applied to it before.
    fn plan(
        &self,
        net: &mut impl Kernel,
        found: &Link,
        before: Option<&Applied>,
    ) -> io::Result<Update> {
        let Some(before) = before else { return Ok(Update::Nothing) };
        let is_other = before.bridge.as_ref().is_none_or(|put_on| put_on.0 != self.bridge);
        // If its bridge exists, an administrator has taken it off.
        let is_lost = home(net, found, Some(before))?
            .is_some_and(|home| found.master.is_none() && home.0 == self.bridge);
        if !is_other && !is_lost && before.mtu == self.mtu.map(u32::from) {
            return Ok(Update::Nothing);
        }
        let bridge = bridge_link(net, &self.bridge)?;
        let mtu = self.mtu_on(&bridge)?;
        Ok(if is_other || is_lost { Update::Join(bridge.index, mtu) } else { Update::Mtu(mtu) })
    }

    /// Applies to a device that was taken over what has changed in the description. Without notes,
    /// it counts as made from this description.
    fn update(
        &self,
        net: &mut impl Kernel,
        found: &Link,
        before: Option<Applied>,
        update: Update,
    ) -> io::Result<Applied> {
        net.set(&found.name, &[GSO_MAX])?;
        match update {
            Update::Nothing => {}
            Update::Mtu(mtu) => net.set(&found.name, &[LinkSetting::Mtu(mtu)])?,
            Update::Join(bridge, mtu) => {
                net.set(&found.name, &[LinkSetting::Mtu(mtu)])?;
                net.set(&found.name, &[LinkSetting::Master(&self.bridge)])?;
                let (name, bridge_name) = (&found.name, &self.bridge);
                tracing::info!(name, bridge = bridge_name, "is put on its bridge again");
                return Ok(self.applied(found.index, bridge));
            }
        }
        // Says so if an administrator has taken the device from its bridge.
        let bridge = net.link(&self.bridge).ok().map(|bridge| bridge.index);
        if bridge.is_none() || found.master != bridge {
            let (name, bridge) = (&found.name, &self.bridge);
            tracing::info!(name, "is not on bridge {bridge}, and stays where it was put");
        }
        let before =
            before.unwrap_or_else(|| self.applied(found.index, bridge.unwrap_or(NO_INDEX)));
        Ok(Applied { mtu: self.mtu.map(u32::from), ..before })
    }

    /// The MTU of the device: the configured one, otherwise that of the bridge.
    pub(super) fn mtu_on(&self, bridge: &Link) -> io::Result<u32> {
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

    /// What was applied to the device with this index by making it for Open vSwitch.
    fn applied_for_ovs(&self, index: u32) -> Applied {
        let mtu = self.mtu.map(u32::from);
        Applied { index, name: self.name.clone(), mtu, ..Applied::default() }
    }

    /// What was applied to the device with this index by putting it on the bridge with that one.
    fn applied(&self, index: u32, bridge: u32) -> Applied {
        Applied { bridge: Some((self.bridge.clone(), bridge)), ..self.applied_for_ovs(index) }
    }
}

/// Checks that vifs can be on a bridge of this name.
///
/// # Errors
/// Why not, with the remedy; `NotFound` if there is no interface of that name.
pub fn check_bridge(net: &mut impl Kernel, name: &str, joining: Joining) -> io::Result<()> {
    match on_ovs(net, name, joining, None)? {
        Some(_) => Ok(()),
        None => bridge_link(net, name).map(drop),
    }
}

/// The bridge of Open vSwitch that a name means, with its link, if that is not the name of a Linux
/// bridge. Whether Open vSwitch has such a bridge is known only when a port joins it, and one that
/// it has may be missing while it is restarted: a device that was made for it stays in use.
fn on_ovs(
    net: &mut impl Kernel,
    name: &str,
    joining: Joining,
    noted: Option<&Applied>,
) -> io::Result<Option<(OvsBridge, Option<Link>)>> {
    let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    if net.link(name).is_ok_and(|link| is_bridge(&link)) {
        return Ok(None);
    }
    let bridge = match name.parse::<OvsBridge>() {
        Ok(bridge) => bridge,
        Err(refusal) if is_meant_for_ovs(net, name) => {
            return refused(format!("correct `bridge`: {refusal}"));
        }
        Err(_) => return Ok(None),
    };
    let has_vlans = bridge.name != name;
    let link = match net.link(&bridge.name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let was_for_ovs = noted.is_some_and(|noted| noted.bridge.is_none());
            if joining == Joining::Possible && was_for_ovs {
                return Ok(Some((bridge, None)));
            }
            return if has_vlans { Err(missing(error, &bridge.name)) } else { Ok(None) };
        }
        link => link?,
    };
    let name = &bridge.name;
    let what = match link.kind {
        LinkKind::OpenVswitch => "is a bridge of Open vSwitch",
        LinkKind::Tap => "is not a bridge of Linux",
        _ if has_vlans => {
            return refused(format!(
                "{name} is not a bridge of Open vSwitch, and only such a one has VLANs beside its \
                 name"
            ));
        }
        _ => return Ok(None),
    };
    match joining {
        Joining::Possible => Ok(Some((bridge, Some(link)))),
        Joining::WithoutVsctl => refused(format!(
            "{name} {what}, and there is no ovs-vsctl that could add a port to one of Open \
             vSwitch: install Open vSwitch, and start ringway again"
        )),
        Joining::Isolated => refused(format!(
            "{name} {what}, and a port of Open vSwitch comes and goes with its guest, by orders of \
             the process that serves it; a tenant's may give none, because its guest may have \
             taken it over: start the host without --isolate, or, on Xen, use a hotplug script"
        )),
    }
}

/// Whether a name that no bridge of Open vSwitch has was to be one: no interface has a colon in its
/// name, and what is before a dot may be such a bridge.
fn is_meant_for_ovs(net: &mut impl Kernel, name: &str) -> bool {
    let first = name.split('.').next().unwrap_or_default();
    let may_be_ovs = |link: Link| matches!(link.kind, LinkKind::OpenVswitch | LinkKind::Tap);
    name.contains(':') || (first != name && net.link(first).is_ok_and(may_be_ovs))
}

fn bridge_link(net: &mut impl Kernel, name: &str) -> io::Result<Link> {
    let bridge = net.link(name).map_err(|error| missing(error, name))?;
    if !is_bridge(&bridge) {
        let what = format!("{name} is not a bridge of Linux (as `ip link` makes it)");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(bridge)
}

/// The error if there is no link of a bridge's name, with the remedy; any other as it is.
fn missing(error: io::Error, name: &str) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    let what = format!("there is no interface {name}: make that bridge, or correct `bridge`");
    io::Error::new(io::ErrorKind::NotFound, what)
}
