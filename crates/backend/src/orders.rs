//! Carries out the supervisor's orders about the vifs of a tenant's process.

use std::io;
use std::time::Instant;

use ringway_host::{Devices, Event, Purpose, VifDevice, VifState};
use ringway_hypervisor::Hypervisor;
use ringway_xenstore::Lost;

use crate::machinery::Machinery;
use crate::passed::Passed;
use crate::scope::Order;
use crate::uplink::set_carried;
use crate::vhost::VhostVif;
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
                    self.keep_passed(Purpose::Xen(vif), passed);
                    self.on(Event::Serve(vif))?;
                }
                Order::Renew(vif, passed) => self.renew_device(vif, passed)?,
                Order::Mtu(vif, mtu) => self.set_device_mtu(&vif, mtu),
                Order::Forget(vif) => {
                    if let Devices::Passed(all) = &mut self.machinery.devices {
                        all.remove(&vif);
                    }
                    // The opener says when a virtio vif ends.
                    let Purpose::Xen(vif) = vif else { continue };
                    self.on(Event::Forget(vif))?;
                }
            }
        }
        Ok(())
    }

    fn keep_passed(&mut self, vif: Purpose, passed: Passed) {
        if let Devices::Passed(all) = &mut self.machinery.devices {
            all.insert(vif, passed);
        }
    }

    /// Serves a vif by other queues: its guest stays connected. A vif without a device begins with
    /// it; a virtio vif may have waited for that.
    fn renew_device(&mut self, vif: Purpose, passed: Passed) -> Result<(), Lost> {
        let device = passed.open().ok().flatten().map(VifDevice::Passed);
        let state = self.state_mut(&vif);
        let is_quarantined = state.as_ref().is_some_and(|state| state.is_quarantined);
        let is_renewed = state.is_some_and(|state| state.renew_device(device));
        if is_renewed {
            self.host.shared.comparison.note_made(Instant::now());
        }
        self.keep_passed(vif.clone(), passed);
        match vif {
            _ if is_renewed || is_quarantined => {}
            Purpose::Xen(vif) => self.on(Event::MadeAgain(vif))?,
            // If it was deleted meanwhile, its next queues follow.
            vif => {
                let vhost = self.vhosts.iter_mut().find(|vhost| vhost.is_for(&vif));
                vhost.into_iter().for_each(VhostVif::attach_next_turn);
            }
        }
        Ok(())
    }

    fn set_device_mtu(&mut self, vif: &Purpose, mtu: u32) {
        if let Devices::Passed(all) = &mut self.machinery.devices {
            if let Some(Passed::Made(made, _)) = all.get_mut(vif) {
                made.mtu = mtu;
            }
        }
        let device = self.state_mut(vif).and_then(|state| state.device.as_mut());
        if let Some(device) = device {
            device.mtu = mtu;
        }
    }

    fn state_mut(&mut self, vif: &Purpose) -> Option<&mut VifState<Machinery<H>>> {
        match vif {
            Purpose::Xen(vif) => self.host.state_mut(*vif),
            vif => {
                let vhost = self.vhosts.iter_mut().find(|vhost| vhost.is_for(vif));
                vhost.map(|vhost| &mut vhost.state)
            }
        }
    }
}
