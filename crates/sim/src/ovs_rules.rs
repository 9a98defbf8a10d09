//! The vifs of a world that are on bridges of Open vSwitch: what happens to their ports, and what
//! must be so of these.

use std::time::Instant;

use ringway_host::Purpose;

use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::links::{configured_bridge, ovs_bridge, virtio_name};
use crate::marks::Mark;
use crate::ovs::{DATAPATHS, Row, Silence, TAG};
use crate::process::OWNER;
use crate::scenario::mac_of;
use crate::toolstack::vif_of;
use crate::world::{World, lost};

/// A port of another program.
const STRANGER: &str = "stranger";
/// What a fault asks an administrator to do.
const REMEDIES: [&str; 3] = ["ovs-vsctl add-br", "ovs-vsctl del-port", "does ovs-vswitchd run?"];

impl World {
    /// Guests whose vifs are on bridges of Open vSwitch.
    pub(crate) fn ovs_guests(&self) -> Vec<usize> {
        let all = 0..self.scenario.on_ovs.len();
        all.filter(|guest| self.scenario.on_ovs[*guest]).collect()
    }

    /// What the device of a guest's vif is for.
    pub(crate) fn purpose_of(&self, guest: usize) -> Purpose {
        match guest.checked_sub(self.scenario.guests) {
            None => Purpose::Xen(vif_of(self.plane.guests[guest].domid)),
            Some(number) => Purpose::Virtio(virtio_name(number)),
        }
    }

    /// Makes the database, before the first backend starts.
    pub(crate) fn make_ovs(&mut self) {
        let guests = self.ovs_guests();
        let database = self.plugger.database.get_mut();
        database.add_stranger(STRANGER, "virtio/vm0");
        guests.into_iter().for_each(|guest| database.add_bridge(&ovs_bridge(guest)));
    }

    /// Gives the process that asks Open vSwitch a turn. Returns whether it did something.
    pub(crate) fn run_plugger(&mut self) -> Checked<bool> {
        let World { plane, backend, plugger, .. } = self;
        // It gets no order before all vifs that exist are served.
        let Some(backend) = backend.as_mut().filter(|backend| backend.has_begun) else {
            return Ok(false);
        };
        let asking = (&mut backend.host.shared, plane.now);
        let Some(events) = plugger.turn(asking, plane.canary, &mut plane.marks) else {
            return Ok(false);
        };
        if let Some(half) = plugger.database.borrow().half_made(OWNER) {
            return Err(Flaw::new(Rule::Ports, format!("a port is half made: {half:?}")));
        }
        for event in events {
            plane.journal.note(|| format!("the plugger reports: {event:?}"));
            match backend.on(event, plane) {
                Ok(()) => {}
                Err(_) if !plane.is_alive.get() => return Ok(true),
                Err(error) => return Err(lost(&error)),
            }
        }
        Ok(true)
    }

    /// When an order that failed is given again, if it may not fail again.
    pub(crate) fn ovs_due(&self) -> Option<Instant> {
        let due = self.backend.as_ref().and_then(|backend| backend.host.shared.ovs.due());
        due.filter(|_| self.plugger.may_retry())
    }

    /// Has the administrator change something about the port of a guest's vif. While the guest is
    /// away, which is rare, its name is free, and its bridge has no port.
    pub(crate) fn change_ovs(&mut self, guest: usize) {
        let action = self.plane.choices.below(9);
        self.plane.journal.note(|| format!("Open vSwitch of guest {guest}: action {action}"));
        let (device, bridge) = (self.device_link(guest), ovs_bridge(guest));
        let (name, vif) = (self.name_of(guest), self.purpose_of(guest).path());
        let World { plane, kernel, plugger, .. } = self;
        let database = plugger.database.get_mut();
        let is_away = database.ports_of(OWNER).all(|(_, row)| row.bridge != bridge);
        match (action, device) {
            (0..=3, _) if is_away => {
                let is_taken = database.add_stranger(&name, &vif);
                plane.marks.add(Mark::PortNameTaken, u64::from(is_taken));
            }
            (4..=7, _) if is_away => {
                if database.remove_bridge(&bridge) {
                    plane.marks.hit(Mark::OvsBridgeDeleted);
                    kernel.remove(&bridge).expect("it exists");
                }
            }
            (0, Some(device)) => {
                plane.marks.hit(Mark::DeviceDeleted);
                kernel.remove(&device.name).expect("it exists");
            }
            (1..=3, _) => {
                let all = [Silence::Nothing, Silence::Switch, Silence::Database];
                let silence = plane.choices.pick(&all);
                plane.marks.add(Mark::OvsSilent, u64::from(silence != Silence::Nothing));
                database.set_silence(silence);
            }
            (8, _) => {
                plane.marks.hit(Mark::DatapathChanged);
                database.set_datapath(plane.choices.pick(&DATAPATHS));
            }
            _ => plugger.kill_soon(&mut plane.choices),
        }
    }

    /// The administrator brings back what a guest's port needs.
    pub(crate) fn repair_ovs(&mut self, guest: usize) {
        let (bridge, name) = (ovs_bridge(guest), self.name_of(guest));
        let database = self.plugger.database.get_mut();
        database.set_silence(Silence::Nothing);
        database.add_bridge(&bridge);
        database.remove_stranger(&name, OWNER);
        if self.kernel.find(&bridge).is_none() {
            self.kernel.add_ovs_bridge(&bridge).expect("the name is free");
        }
    }

    /// Why the port of a guest's vif is not as it should be, if that is known.
    pub(crate) fn port_fault(&self, guest: usize) -> Option<String> {
        self.backend.as_ref()?.host.shared.ovs.fault(&self.purpose_of(guest))
    }

    /// At rest a vif has its port exactly while its guest is connected, or says why not. Nothing
    /// may be missing once all `is_repaired`.
    pub(crate) fn check_ovs(&mut self, is_repaired: bool) -> Checked {
        for guest in self.ovs_guests() {
            let (fault, name) = (self.port_fault(guest), self.name_of(guest));
            let shown = self.status()?.vifs.into_iter().find(|shown| shown.name == name);
            let shown = shown.and_then(|shown| shown.error);
            let is_explained = fault.as_ref().is_none_or(|fault| {
                shown.is_some() && REMEDIES.iter().any(|remedy| fault.contains(remedy))
            });
            ensure(is_explained, Rule::Explanation, || {
                format!("the port of guest {guest} has the fault {fault:?}, shown is {shown:?}")
            })?;
            ensure(!is_repaired || fault.is_none(), Rule::Ports, || {
                format!("all is repaired, and guest {guest} has the fault {fault:?}")
            })?;
            let vif = self.purpose_of(guest).path();
            let state = self.backend.as_ref().and_then(|backend| backend.state(&name));
            let is_connected = state.is_some_and(|state| state.connection.is_some());
            let has_device = state.is_some_and(|state| state.device.is_some());
            // It is made again when the kernel permits.
            let is_device_faulty = self.is_faulty(guest);
            ensure(has_device || shown.is_some(), Rule::Explanation, || {
                format!("guest {guest} has no device, and does not say why")
            })?;
            let database = self.plugger.database.borrow();
            let found = database
                .ports_of(OWNER)
                .find(|(_, row)| row.id("ringway-vif") == Some(vif.as_str()));
            let is_right = found.is_some_and(|(name, row)| self.is_port_of(guest, name, row));
            let is_as_wanted = match is_connected {
                true => is_right,
                // An earlier process may have left one for a guest that has yet to return.
                false => found.is_none() || !has_device || !self.plugger.has_joined(&vif),
            };
            ensure(is_as_wanted || fault.is_some() || is_device_faulty, Rule::Ports, || {
                format!("guest {guest} is connected: {is_connected}, and its port is {found:?}")
            })?;
        }
        Ok(())
    }

    /// Whether a port is the one of a guest's vif, with all that it should have.
    fn is_port_of(&self, guest: usize, name: &str, row: &Row) -> bool {
        let index = self.device_link(guest).filter(|link| link.name == name);
        let index = index.map(|link| link.index.to_string());
        let number = guest.checked_sub(self.scenario.guests);
        row.bridge == ovs_bridge(guest)
            && row.vlans.get("tag").is_some_and(|tag| tag == TAG)
            && row.id("ringway-device") == index.as_deref()
            && row.id("attached-mac") == Some(mac_of(guest).to_string().as_str())
            && row.id("iface-id") == number.map(iface_id_of).as_deref()
    }

    /// The vif of a guest has no device that works, and says so.
    fn is_faulty(&self, guest: usize) -> bool {
        let backend = self.backend.as_ref();
        backend.is_some_and(|backend| backend.fault(&self.name_of(guest)) != Some(None))
    }

    /// In the end the ports of others are there, and no more.
    pub(crate) fn check_ovs_release(&self) -> Checked {
        let database = self.plugger.database.borrow();
        let left: Vec<_> = database.ports_of(OWNER).collect();
        ensure(left.is_empty(), Rule::Release, || format!("ports are left: {left:?}"))?;
        ensure(database.has_stranger(STRANGER, OWNER), Rule::Isolation, || {
            "the port of another program is gone".to_owned()
        })
    }

    /// Where a vif is shown that is on a bridge of Open vSwitch.
    pub(crate) fn is_shown_on_ovs(&self, guest: usize, attached_to: &str) -> bool {
        configured_bridge(&self.scenario, guest).is_some_and(|bridge| bridge == attached_to)
    }
}

/// The id that the description has for the port of a virtio vif.
pub(crate) fn iface_id_of(number: usize) -> String {
    format!("lsp{number}")
}
