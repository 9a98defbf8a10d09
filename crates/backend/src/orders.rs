//! Carries out the supervisor's orders about the vifs of a tenant's process.

use std::io;

use ringway_hypervisor::Hypervisor;
use ringway_xenbus::Vif;
use ringway_xenbus::backend::Input;
use ringway_xenstore::{Lost, Refusal, or_refusal};

use crate::device::VifDevice;
use crate::keeper::{Devices, Passed};
use crate::purpose::Purpose;
use crate::scope::Order;
use crate::served::Served;
use crate::{Backend, EVENTS_MAX, ROOT_TOKEN};

impl<H: Hypervisor> Backend<H> {
    /// Takes the supervisor's orders about the vifs of this process.
    pub(crate) fn take_orders(&mut self) -> io::Result<()> {
        let backend = self.services.host.hypervisor.domid();
        for _ in 0..EVENTS_MAX {
            let Some(order) = self.scope.next_order(backend)? else { return Ok(()) };
            match order {
                Order::Trunk(carried) => {
                    if let Some(trunk) = &self.uplink {
                        self.services.host.set_carried(trunk.port, &carried);
                    }
                }
                Order::Serve { vif, is_new, passed } => {
                    if is_new {
                        let watched = self.services.store.watch(&vif.backend_dir(), ROOT_TOKEN);
                        log_refusal(vif, or_refusal(watched)?);
                    }
                    self.begin_with(vif, passed)?;
                }
                Order::Renew(vif, passed) => self.renew_device(vif, passed)?,
                Order::Mtu(vif, mtu) => self.set_device_mtu(&vif, mtu),
                Order::Forget(vif) => {
                    if let Devices::Passed(all) = &mut self.services.host.devices {
                        all.remove(&vif);
                    }
                    // The opener says when a virtio vif ends.
                    let Purpose::Xen(vif) = vif else { continue };
                    let unwatched = self.services.store.unwatch(&vif.backend_dir(), ROOT_TOKEN);
                    log_refusal(vif, or_refusal(unwatched)?);
                    self.turns.note(vif, |events| events.has_device_changed = true);
                }
            }
        }
        Ok(())
    }

    fn keep_passed(&mut self, vif: Purpose, passed: Passed) {
        if let Devices::Passed(all) = &mut self.services.host.devices {
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
        if let Some(shell) = self.vifs.get_mut(&vif) {
            shell.feed(Input::Gone, &mut self.services)?;
            self.drop_if_finished(vif);
        }
        self.turns.note(vif, |events| events.has_device_changed = true);
        Ok(())
    }

    /// Serves a vif by other queues: its guest stays connected. A virtio vif that waits for its
    /// device gets it.
    fn renew_device(&mut self, vif: Purpose, passed: Passed) -> Result<(), Lost> {
        let served = self.served_mut(&vif);
        let is_quarantined = served.as_ref().is_some_and(|served| served.is_quarantined);
        match (served.and_then(|served| served.device.as_mut()), passed.open()) {
            (Some(VifDevice::Passed(device)), Ok(Some(renewed))) => {
                *device = renewed;
                device.is_detached = true;
                self.services.host.links.note_made();
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
        if let Devices::Passed(all) = &mut self.services.host.devices {
            if let Some(Passed::Made(made, _)) = all.get_mut(vif) {
                made.mtu = mtu;
            }
        }
        let device = self.served_mut(vif).and_then(|served| served.device.as_mut());
        if let Some(device) = device {
            device.mtu = mtu;
        }
    }

    fn served_mut(&mut self, vif: &Purpose) -> Option<&mut Served> {
        match vif {
            Purpose::Xen(vif) => self.vifs.get_mut(vif).map(|shell| &mut shell.served),
            vif => {
                let vhost = self.vhosts.iter_mut().find(|vhost| vhost.is_for(vif));
                vhost.map(|vhost| &mut vhost.served)
            }
        }
    }
}

fn log_refusal(vif: Vif, watched: Result<(), Refusal>) {
    if let Err(refusal) = watched {
        tracing::warn!(dir = vif.backend_dir(), "{refusal}");
    }
}
