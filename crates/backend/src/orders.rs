//! Orders of the supervisor, in the process of a tenant.

use std::io;

use ringway_control::{PassedDevice, TenantOrder};
use ringway_host::{Event, Purpose};
use ringway_hypervisor::Hypervisor;

use crate::trunk::rules_of;
use crate::{Backend, EVENTS_MAX};

impl<H: Hypervisor> Backend<H> {
    /// Takes the supervisor's orders about the vifs of this process.
    pub(crate) fn take_orders(&mut self) -> io::Result<()> {
        for _ in 0..EVENTS_MAX {
            let Some(orders) = &mut self.orders else { return Ok(()) };
            let Some(order) = orders.next_order()? else { return Ok(()) };
            let devices = &mut self.process.machinery.devices;
            let event = match order {
                TenantOrder::Trunk(carried) => {
                    let Backend { host, process, .. } = self;
                    let hosting = &mut process.machinery.hosting(&mut host.shared);
                    let trunk = host.uplink.as_mut();
                    let set = trunk.map(|trunk| trunk.set_rules(&rules_of(&carried), hosting));
                    if let Some(Err(error)) = set {
                        tracing::warn!("{error}: the trunk is unchanged");
                    }
                    continue;
                }
                TenantOrder::Serve { vif, device } => {
                    let (vif, passed) = (orders.purpose(vif), orders.passed(device));
                    devices.pass(vif.clone(), passed);
                    match vif {
                        Purpose::Xen(vif) => Event::Serve(vif),
                        vif => Event::DevicePassed(vif),
                    }
                }
                TenantOrder::Renew { vif, device } => {
                    let passed = orders.passed(Some(PassedDevice::Made(device)));
                    let vif = orders.purpose(vif);
                    devices.pass(vif.clone(), passed);
                    Event::DevicePassed(vif)
                }
                TenantOrder::Mtu { vif, mtu } => Event::DeviceMtu(orders.purpose(vif), mtu),
                TenantOrder::Forget(vif) => {
                    let vif = orders.purpose(vif);
                    devices.forget(&vif);
                    // The opener says when a virtio vif ends.
                    let Purpose::Xen(vif) = vif else { continue };
                    Event::Forget(vif)
                }
                TenantOrder::Start { .. } | TenantOrder::Queues => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            };
            self.on(event)?;
        }
        Ok(())
    }
}
