//! Carries out the supervisor's orders about the vifs of a tenant's process.

use std::io;

use ringway_host::{Event, Purpose};
use ringway_hypervisor::Hypervisor;

use crate::scope::Order;
use crate::uplink::set_carried;
use crate::{Backend, EVENTS_MAX};

impl<H: Hypervisor> Backend<H> {
    /// Takes the supervisor's orders about the vifs of this process.
    pub(crate) fn take_orders(&mut self) -> io::Result<()> {
        let backend = self.machinery.hypervisor.domid();
        for _ in 0..EVENTS_MAX {
            let Some(orders) = &mut self.orders else { return Ok(()) };
            let order = orders.next(backend)?;
            let Some(order) = order else { return Ok(()) };
            match order {
                Order::Trunk(carried) => {
                    if let Some(port) = self.uplink.as_ref().map(|trunk| trunk.port) {
                        set_carried(port, &carried, &mut self.hosting());
                    }
                }
                Order::Serve(vif, passed) => {
                    self.machinery.devices.pass(Purpose::Xen(vif), passed);
                    self.on(Event::Serve(vif))?;
                }
                Order::Renew(vif, passed) => {
                    self.machinery.devices.pass(vif.clone(), passed);
                    self.on(Event::DevicePassed(vif))?;
                }
                Order::Mtu(vif, mtu) => self.on(Event::DeviceMtu(vif, mtu))?,
                Order::Forget(vif) => {
                    self.machinery.devices.forget(&vif);
                    // The opener says when a virtio vif ends.
                    let Purpose::Xen(vif) = vif else { continue };
                    self.on(Event::Forget(vif))?;
                }
            }
        }
        Ok(())
    }
}
