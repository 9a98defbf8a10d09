//! The network devices of tenants' vifs: kept here, and passed to the processes that serve them.
//!
//! What the toolstack writes, or the description says, decides which device a vif has. A tenant's
//! process asks for nothing.

use std::sync::Arc;

use ringway_control::{FDS_MAX, PassedDevice, TenantOrder};
use ringway_description::TenantName;
use ringway_host::{DeviceChange, Purpose};
use ringway_host_shell::for_tenant;
use ringway_sys::tun::TunFile;
use ringway_vif_shell::device::read_keys;
use ringway_xenbus::{KeySet, Keys, Vif};
use ringway_xenstore::{Client, Lost, unless_refused};

use super::{Isolation, Tenant};

impl Isolation {
    /// Has a tenant's process serve a vif, with the vif's network device if it has one.
    pub(super) fn serve(&mut self, name: &TenantName, vif: &Purpose) {
        let tenant = self.tenants.get_mut(name);
        let (Some(tenant), Some(named)) = (tenant, for_tenant(vif)) else { return };
        let (device, files) = self.devices.passed(vif);
        tenant.pass(&files);
        tenant.child.order(&TenantOrder::Serve { vif: named, device }, Vec::new());
    }

    /// Removes the network device of a vif, if it has one, and has its tenant's process forget the
    /// vif.
    pub(super) fn forget(&mut self, name: &TenantName, vif: &Purpose) {
        self.devices.remove(vif);
        let tenant = self.tenants.get_mut(name);
        if let (Some(tenant), Some(named)) = (tenant, for_tenant(vif)) {
            tenant.child.order(&TenantOrder::Forget(named), Vec::new());
        }
    }

    /// The vifs that a tenant's process has to be given: those of Xen, and those of virtio with
    /// network devices. Its opener gives it the others.
    pub(super) fn given_to(&self, name: &TenantName) -> Vec<Purpose> {
        let of_virtio = self.roster.vhosts_of(name).map(|name| Purpose::Virtio(name.to_owned()));
        let of_virtio = of_virtio.filter(|vif| self.devices.wants_device(vif));
        self.roster.of_tenant(name).map(Purpose::Xen).chain(of_virtio).collect()
    }

    /// Handles a change of a vif's keys: the toolstack may be removing the vif, or have made it
    /// again.
    pub(super) fn update_device(&mut self, name: &TenantName, vif: Vif, keys: &Keys) {
        let purpose = Purpose::Xen(vif);
        if !keys.is_online() && keys.state().is_gone() {
            if self.devices.has(&purpose) {
                // Until the toolstack makes it again.
                self.forget(name, &purpose);
            }
        } else if self.tenants.contains_key(name) && self.devices.make(vif, keys) {
            self.serve(name, &purpose);
        }
    }

    /// Makes devices again, before the next process of a tenant gets them, if they could not be
    /// made or are not what the toolstack wants by now.
    pub(super) fn retry_devices(
        &mut self,
        vifs: &[Purpose],
        store: &mut Client,
    ) -> Result<(), Lost> {
        for purpose in vifs {
            let Purpose::Xen(vif) = purpose else { continue };
            if !self.devices.wants_device(purpose) {
                continue;
            }
            let read = read_keys(store, &vif.backend_dir(), KeySet::BackendDevice);
            if let Some(keys) = unless_refused(read, None)? {
                self.devices.retry(*vif, &keys);
            }
        }
        Ok(())
    }

    /// Follows what has become of the devices.
    pub(super) fn follow_devices(&mut self) {
        for (purpose, change) in self.devices.follow() {
            let Some(name) = self.roster.tenant(&purpose).cloned() else { continue };
            if change == DeviceChange::Tried {
                self.serve(&name, &purpose);
                continue;
            }
            let tenant = self.tenants.get_mut(&name);
            let (Some(tenant), Some(vif)) = (tenant, for_tenant(&purpose)) else { continue };
            match (change, self.devices.passed(&purpose)) {
                (DeviceChange::Renewed, (Some(PassedDevice::Made(device)), files)) => {
                    tenant.pass(&files);
                    tenant.child.order(&TenantOrder::Renew { vif, device }, Vec::new());
                }
                (DeviceChange::Renewed | DeviceChange::Tried, _) => {}
                (DeviceChange::Mtu(mtu), _) => {
                    tenant.child.order(&TenantOrder::Mtu { vif, mtu }, Vec::new());
                }
            }
        }
    }
}

impl Tenant {
    /// Passes open files, which belong to the next order with a network device.
    fn pass(&mut self, files: &[Arc<TunFile>]) {
        for part in files.chunks(FDS_MAX) {
            self.child.order(&TenantOrder::Queues, part.to_vec());
        }
    }
}
