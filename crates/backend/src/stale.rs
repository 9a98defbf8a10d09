//! Removes network devices that nothing needs any more.

use std::io;

use ringway_hypervisor::Hypervisor;
use ringway_net::{Link, Netlink};

use crate::Backend;
use crate::applied::AppliedNotes;
use crate::device::VifDevice;
use crate::keeper::{Devices, Keeper};
use crate::purpose::{Purpose, is_tap};

impl<H: Hypervisor> Backend<H> {
    /// Deletes network devices of vifs that were removed while no backend ran, or that the
    /// description no longer names. A failure does not affect other vifs.
    pub(crate) fn delete_stale_devices(&mut self) {
        let Backend { host, machinery, vhosts, uplink, .. } = self;
        // The supervisor removes those that it keeps.
        let Devices::Kept(Keeper { net, notes }) = &mut machinery.devices else { return };
        // A vif that failed may have been repaired.
        let is_of = |device: Option<&VifDevice>, link: &Link| {
            let kept = device.and_then(VifDevice::kept);
            kept.is_none_or(|device| device.index == link.index)
        };
        let is_kept = |purpose: &Purpose, link: &Link| match purpose {
            Purpose::Xen(vif) => {
                host.vif(*vif).is_some_and(|vif| is_of(vif.state.device.as_ref(), link))
            }
            Purpose::Virtio(name) => {
                let vhost = vhosts.iter().find(|vhost| vhost.state.name == *name);
                vhost.is_some_and(|it| {
                    it.config.bridge.is_some() && is_of(it.state.device.as_ref(), link)
                })
            }
            Purpose::Uplink => uplink.is_some(),
        };
        notes.delete_devices(net, is_kept);
    }
}

impl AppliedNotes {
    /// Deletes network devices of this host, unless `is_kept` is true for their purpose and link,
    /// and forgets them.
    pub(crate) fn delete_devices(
        &mut self,
        net: &mut Netlink,
        is_kept: impl Fn(&Purpose, &Link) -> bool,
    ) {
        let deleted = delete_devices(net, &self.owner, is_kept);
        deleted.iter().for_each(|purpose| self.forget(purpose));
    }
}

/// Deletes network devices of `owner`, unless `is_kept` is true for their purpose and link. Returns
/// the purposes of those that it has deleted.
pub fn delete_devices(
    netlink: &mut Netlink,
    owner: &str,
    is_kept: impl Fn(&Purpose, &Link) -> bool,
) -> Vec<Purpose> {
    match delete_stale(netlink, owner, is_kept) {
        Ok(deleted) => {
            let (names, purposes): (Vec<_>, Vec<_>) = deleted.into_iter().unzip();
            if !names.is_empty() {
                tracing::info!(?names, "removed network devices that are not needed any more");
            }
            purposes
        }
        Err(error) => {
            tracing::warn!("cannot remove network devices that are not needed any more: {error}");
            Vec::new()
        }
    }
}

/// Deletes the devices of this owner that are no longer wanted, and returns their names. Devices
/// for which `is_kept` is true stay.
pub(crate) fn delete_stale(
    net: &mut Netlink,
    owner: &str,
    is_kept: impl Fn(&Purpose, &Link) -> bool,
) -> io::Result<Vec<(String, Purpose)>> {
    let mut deleted = Vec::new();
    for link in net.links()? {
        let purpose = link.alias.as_deref().and_then(|note| Purpose::of_note(owner, note));
        let Some(purpose) = purpose.filter(|_| is_tap(&link)) else { continue };
        if !is_kept(&purpose, &link) {
            net.delete(&link.name)?;
            deleted.push((link.name, purpose));
        }
    }
    Ok(deleted)
}
