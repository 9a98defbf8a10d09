//! Carries out the supervisor's orders about the vifs of a tenant's process.

use std::io;
use std::time::Instant;

use ringway_host::{Event, VifState, unwatch_vif, watch_vif};
use ringway_hypervisor::Hypervisor;
use ringway_xenbus::Vif;
use ringway_xenstore::{Lost, Refusal};

use crate::device::VifDevice;
use crate::keeper::{Devices, Passed};
use crate::machinery::Machinery;
use crate::purpose::Purpose;
use crate::scope::Order;
use crate::uplink::set_carried;
use crate::{Backend, EVENTS_MAX};

impl<H: Hypervisor> Backend<H> {
    /// Takes the supervisor's orders about the vifs of this process.
    pub(crate) fn take_orders(&mut self) -> io::Result<()> {
        let backend = self.machinery.hypervisor.domid();
        for _ in 0..EVENTS_MAX {
            let Some(orders) = &mut self.orders else { return Ok(()) };
            let order = orders.next(backend, &mut self.host.scope)?;
            let Some(order) = order else { return Ok(()) };
            match order {
                Order::Trunk(carried) => {
                    if let Some(port) = self.uplink.as_ref().map(|trunk| trunk.port) {
                        set_carried(port, &carried, &mut self.hosting());
                    }
                }
                Order::Serve { vif, is_new, passed } => {
                    if is_new {
                        log_refusal(vif, watch_vif(&mut self.store, vif)?);
                    }
                    self.begin_with(vif, passed)?;
                }
                Order::Renew(vif, passed) => self.renew_device(vif, passed)?,
                Order::Mtu(vif, mtu) => self.set_device_mtu(&vif, mtu),
                Order::Forget(vif) => {
                    if let Devices::Passed(all) = &mut self.machinery.devices {
                        all.remove(&vif);
                    }
                    // The opener says when a virtio vif ends.
                    let Purpose::Xen(vif) = vif else { continue };
                    log_refusal(vif, unwatch_vif(&mut self.store, vif)?);
                    self.on(Event::ScopeChanged(vif))?;
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

    /// Has a virtio vif take its device, if it waits for one.
    fn attach_with(&mut self, vif: Purpose, passed: Passed) {
        if let Some(vhost) = self.vhosts.iter_mut().find(|vhost| vhost.is_for(&vif)) {
            vhost.attach_next_turn();
        }
        self.keep_passed(vif, passed);
    }

    /// Begins a Xen vif with a device. One that is served without it was made again.
    fn begin_with(&mut self, vif: Vif, passed: Passed) -> Result<(), Lost> {
        self.keep_passed(Purpose::Xen(vif), passed);
        self.on(Event::MadeAgain(vif))
    }

    /// Serves a vif by other queues: its guest stays connected. A virtio vif that waits for its
    /// device gets it.
    fn renew_device(&mut self, vif: Purpose, passed: Passed) -> Result<(), Lost> {
        let state = self.state_mut(&vif);
        let is_quarantined = state.as_ref().is_some_and(|state| state.is_quarantined);
        match (state.and_then(|state| state.device.as_mut()), passed.open()) {
            (Some(VifDevice::Passed(device)), Ok(Some(renewed))) => {
                *device = renewed;
                device.is_detached = true;
                self.host.shared.comparison.note_made(Instant::now());
            }
            _ if is_quarantined => {}
            _ => match vif {
                Purpose::Xen(vif) => return self.begin_with(vif, passed),
                // If it was deleted meanwhile, its next queues follow.
                vif => {
                    self.attach_with(vif, passed);
                    return Ok(());
                }
            },
        }
        self.keep_passed(vif, passed);
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

fn log_refusal(vif: Vif, watched: Result<(), Refusal>) {
    if let Err(refusal) = watched {
        tracing::warn!(dir = vif.backend_dir(), "{refusal}");
    }
}
