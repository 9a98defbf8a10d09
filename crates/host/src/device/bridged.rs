//! A device that we put on a bridge.

use std::io;

use ringway_datapath::OffloadCaps;

use super::applied::Applied;
use super::keeper::Keeper;
use super::kernel::{Kernel, Link, LinkSetting, Tap};
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
    /// The bridge.
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

impl Bridged {
    pub(super) fn open<K: Kernel>(
        &self,
        keeper: &mut Keeper<K>,
        notes: &mut impl Notes,
    ) -> io::Result<HostDevice<K>> {
        let note = keeper.note_for(&self.purpose);
        let Keeper { net, applied: all } = keeper;
        let before = all.of(&self.purpose).cloned();
        let (tap, applied) = match find(net, &self.name, &note)? {
            Some(found) => {
                let before = before.filter(|before| before.index == found.index);
                let (tap, found) = take_over(net, &note, found, self.queues)?;
                let applied = self.update(net, &found, before)?;
                (tap, applied)
            }
            None => {
                log_deleted(&self.name, before.as_ref());
                self.make(net, &note)?
            }
        };
        tap.set_offloads(OffloadCaps::ALL)?;
        let link = net.link(tap.name())?;
        let home = home(net, &link, applied.as_ref())?;
        // Last: a device that persists has its notes.
        tap.set_persistent(true)?;
        if let Some(applied) = applied {
            all.keep(&self.purpose, Applied { home: home.clone(), ..applied }, notes);
        }
        let mut device = HostDevice::new(tap, self.purpose.clone(), link, self.queues);
        device.attached_to.clone_from(&self.bridge);
        // It is served by now, so nothing refuses it any more.
        let placed = Some(Bridged { low_mtu: LowMtu::Warn, ..self.clone() });
        Ok(HostDevice { placed, home, ..device })
    }

    fn make<K: Kernel>(&self, net: &mut K, note: &str) -> io::Result<(K::Tap, Option<Applied>)> {
        let bridge = self.bridge_link(net)?;
        let mtu = self.mtu_on(&bridge)?;
        wait_for_name(net, &self.name)?;
        let tap = net.open_tap(&self.name, self.queues)?;
        let address = LinkSetting::Address(HOST_ADDRESS.0);
        // No frames of the host's own IPv6 reach the guest: its link has no address.
        let settings =
            [LinkSetting::Alias(note), GSO_MAX, address, LinkSetting::NoLinkLocalAddress];
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
        net: &mut impl Kernel,
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
    fn log_place(&self, net: &mut impl Kernel, found: &Link) {
        let bridge = net.link(&self.bridge).ok().map(|bridge| bridge.index);
        if bridge.is_none() || found.master != bridge {
            let (name, bridge) = (&found.name, &self.bridge);
            tracing::info!(name, "is not on bridge {bridge}, and stays where it was put");
        }
    }

    fn bridge_link(&self, net: &mut impl Kernel) -> io::Result<Link> {
        let bridge = net.link(&self.bridge)?;
        if !is_bridge(&bridge) {
            let what = format!("{} is not a bridge", self.bridge);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(bridge)
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
