//! The network devices of tenants' vifs: kept here, and passed to the processes that serve them.
//!
//! What the toolstack writes decides which device a vif has. A tenant's process asks for nothing.

use std::sync::Arc;

use ringway_backend::DeviceChange;
use ringway_control::{FDS_MAX, PassedDevice, TenantOrder};
use ringway_description::TenantName;
use ringway_sys::tun::TunFile;
use ringway_vif_shell::device::read_keys;
use ringway_xenbus::{KeySet, Keys, Vif};
use ringway_xenstore::{Client, Lost, unless_refused};

use super::roster::number;
use super::{Isolation, Tenant};

impl Isolation {
    /// Has a tenant's process serve a vif, with the vif's network device if it has one.
    pub(super) fn serve(&mut self, name: &TenantName, vif: Vif) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let (device, files) = self.devices.passed(vif);
        tenant.pass(&files);
        tenant.child.order(&TenantOrder::Serve { vif: number(vif), device }, Vec::new());
    }

    /// Handles a change of a vif's keys: the toolstack may be removing the vif, or have made it
    /// again.
    pub(super) fn update_device(&mut self, name: &TenantName, vif: Vif, keys: &Keys) {
        if !keys.is_online() && keys.state().is_gone() {
            let tenant = self.tenants.get_mut(name).filter(|_| self.devices.remove(vif));
            if let Some(tenant) = tenant {
                // Until the toolstack makes it again.
                tenant.child.order(&TenantOrder::Forget(number(vif)), Vec::new());
            }
        } else if self.tenants.contains_key(name) && self.devices.make(vif, keys) {
            self.serve(name, vif);
        }
    }

    /// Makes devices again, before the next process of a tenant gets them, if they could not be
    /// made or are not what the toolstack wants by now.
    pub(super) fn retry_devices(&mut self, vifs: &[Vif], store: &mut Client) -> Result<(), Lost> {
        for vif in vifs {
            if !self.devices.wants_device(*vif) {
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
        for (vif, change) in self.devices.follow() {
            let tenant = self.roster.tenant(vif).and_then(|name| self.tenants.get_mut(name));
            let Some(tenant) = tenant else { continue };
            let number = number(vif);
            match (change, self.devices.passed(vif)) {
                (DeviceChange::Renewed, (Some(PassedDevice::Made(device)), files)) => {
                    tenant.pass(&files);
                    let order = TenantOrder::Renew { vif: number, device };
                    tenant.child.order(&order, Vec::new());
                }
                (DeviceChange::Renewed, _) => {}
                (DeviceChange::Mtu(mtu), _) => {
                    tenant.child.order(&TenantOrder::Mtu { vif: number, mtu }, Vec::new());
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
