//! The administrator of the backend's host, who changes links while vifs are served, and what must
//! become of the vifs that are on bridges.

use ringway_host::{Link, Note};

use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::links::{ELSEWHERE, Place, RENAMED, Wanted, bridge_of, far_link};
use crate::marks::Mark;
use crate::process::OWNER;
use crate::toolstack::vif_of;
use crate::world::{World, lost, refused};

/// Calls of the kernel within which one is refused.
const REFUSAL_MAX: usize = 24;

impl World {
    /// Has the administrator change something about the device of a guest.
    pub(crate) fn change_links(&mut self, guest: usize) {
        if !self.scenario.are_patched[guest] {
            return;
        }
        if self.scenario.on_ovs[guest] {
            return self.change_ovs(guest);
        }
        let action = self.plane.choices.below(10);
        self.plane.journal.note(|| format!("links of guest {guest}: action {action}"));
        let device = self.device_link(guest);
        match (action, device) {
            (0, Some(device)) => self.delete_device(guest, &device),
            (1, Some(device)) => {
                self.delete_device(guest, &device);
                self.plane.marks.hit(Mark::NameTaken);
                self.kernel.add_other(&device.name).expect("the name is free");
            }
            (2, _) => self.delete_bridge(guest),
            (3, _) => self.repair_links(guest),
            (4, _) => {
                // It exists, unless it was deleted or renamed before.
                let _ = self.kernel.rename(&bridge_of(guest), &renamed(guest));
                self.plane.marks.hit(Mark::BridgeRenamed);
            }
            (5, Some(device)) => self.move_device(guest, &device),
            (6, Some(device)) => {
                let up = !device.is_up;
                self.plane.marks.hit(Mark::DeviceSetDown);
                self.kernel.set_up(&device.name, up).expect("it exists");
                let since = self.kernel.version();
                let wanted = self.wanted.get_mut(&guest);
                wanted.into_iter().for_each(|it| (it.is_up, it.since) = (Some(up), since));
            }
            (7, Some(device)) => {
                self.plane.marks.hit(Mark::DeviceRenamed);
                // It may have that name already.
                let _ = self.kernel.rename(&device.name, &format!("{RENAMED}{guest}"));
            }
            (8 | 9, _) => {
                let call = self.plane.choices.from_to(1, REFUSAL_MAX);
                self.plane.marks.hit(Mark::KernelRefuses);
                self.kernel.refuse(u32::try_from(call).unwrap_or(1));
            }
            _ => {}
        }
    }

    fn delete_device(&mut self, guest: usize, device: &Link) {
        self.plane.marks.hit(Mark::DeviceDeleted);
        self.note_loss(guest);
        self.kernel.remove(&device.name).expect("it exists");
    }

    fn delete_bridge(&mut self, guest: usize) {
        for bridge in [bridge_of(guest), renamed(guest)] {
            if self.kernel.find(&bridge).is_some() {
                self.plane.marks.hit(Mark::BridgeDeleted);
                self.note_loss(guest);
                self.kernel.remove(&bridge).expect("it exists");
            }
        }
    }

    /// A device or its bridge goes: the backend knows where the device was only if it has seen it
    /// there.
    fn note_loss(&mut self, guest: usize) {
        let seen = self.seen_of(guest);
        if let Some(wanted) = self.wanted.get_mut(&guest) {
            if seen.is_none_or(|seen| seen < wanted.since) {
                (wanted.place, wanted.is_up) = (Place::Any, None);
            }
        }
    }

    fn move_device(&mut self, guest: usize, device: &Link) {
        let place = self.plane.choices.pick(&[Place::Bridge, Place::Elsewhere, Place::Nowhere]);
        let own = self.station_bridge(guest);
        let is_own_gone = own.is_none();
        let bridge = match place {
            Place::Bridge => own.map(|bridge| bridge.name),
            Place::Elsewhere => Some(ELSEWHERE.to_owned()),
            Place::Nowhere | Place::Any => None,
        };
        // Taking it off a bridge that was deleted changes nothing that anyone could see.
        let is_nothing = place == Place::Nowhere && device.master.is_none();
        if is_nothing || (place == Place::Bridge && bridge.is_none()) {
            return;
        }
        self.plane.marks.hit(Mark::DeviceMoved);
        self.kernel.set_master(&device.name, bridge.as_deref()).expect("both exist");
        let (since, seen) = (self.kernel.version(), self.seen_of(guest));
        let Some(wanted) = self.wanted.get_mut(&guest) else { return };
        // If it was not seen elsewhere in between, it may have lost its own bridge, also if there
        // is another one of that name by now.
        let is_unseen = seen.is_none_or(|seen| seen < wanted.since);
        let has_lost_own = is_own_gone || wanted.place == Place::Any;
        let is_unknown = place == Place::Nowhere && has_lost_own && is_unseen;
        // The process that opens it next may follow a note that is older than what it forgot.
        let is_forgotten = wanted.place == Place::Any && seen.is_none();
        wanted.place = if is_unknown || is_forgotten { Place::Any } else { place };
        wanted.since = since;
    }

    /// Brings the bridge of a guest's station back, and removes what has the name of a device.
    fn repair_links(&mut self, guest: usize) {
        let (bridge, far) = (bridge_of(guest), far_link(guest));
        // It exists, or was deleted.
        let _ = self.kernel.rename(&renamed(guest), &bridge);
        if self.kernel.find(&bridge).is_none() {
            self.kernel.add_bridge(&bridge).expect("the name is free");
            self.kernel.set_master(&far, Some(&bridge)).expect("both exist");
        }
        let is_ours = |link: &Link| {
            link.kind != ringway_host::LinkKind::Other || link.name.starts_with("far")
        };
        for link in self.kernel.all().into_iter().filter(|link| !is_ours(link)) {
            self.kernel.remove(&link.name).expect("it exists");
        }
    }

    /// A vif was made: its device is where its keys say, unless there is one already.
    pub(crate) fn expect_device(&mut self, guest: usize) {
        if !self.scenario.are_patched[guest] || self.scenario.on_ovs[guest] {
            return;
        }
        let is_new = self.device_link(guest).is_none();
        let place = if is_new { Place::Bridge } else { Place::Any };
        let since = self.kernel.version();
        self.wanted.insert(guest, Wanted { place, is_up: is_new.then_some(true), since });
    }

    /// The backend's process starts: a device that was deleted meanwhile is a new one. Where others
    /// were is forgotten if there was no room to note it.
    pub(crate) fn expect_new_devices(&mut self) {
        if self.notes.is_stale(&Note::Devices) {
            let all = self.wanted.values_mut();
            all.for_each(|wanted| (wanted.place, wanted.is_up) = (Place::Any, None));
        }
        let guests: Vec<usize> = self.wanted.keys().copied().collect();
        let gone = guests.into_iter().filter(|guest| self.device_link(*guest).is_none());
        gone.collect::<Vec<_>>().into_iter().for_each(|guest| self.expect_device(guest));
    }

    /// At rest, whatever is missing: a vif that is not where it should be says why, and no other
    /// does.
    pub(crate) fn check_faults(&mut self) -> Checked {
        for (guest, wanted) in self.wanted.clone() {
            let Some(fault) = self.fault(guest) else {
                let shown = self.error_of(guest)?;
                ensure(shown.is_some(), Rule::Explanation, || {
                    format!("guest {guest} has no device, and does not say why")
                })?;
                let is_xen = guest < self.drivers.len();
                let mark = if is_xen { Mark::VifRefused } else { Mark::VirtioUnattached };
                self.plane.marks.hit(mark);
                continue;
            };
            let is_there =
                self.device_link(guest).map(|device| self.is_at(guest, &device, wanted.place));
            if wanted.place == Place::Any {
                continue;
            }
            let is_well = is_there == Some(true);
            self.plane.marks.add(Mark::DeviceFaulty, u64::from(fault.is_some()));
            ensure(is_well || fault.is_some(), Rule::Explanation, || {
                format!("the device of guest {guest} is not at {wanted:?}, and no fault is shown")
            })?;
            ensure(!is_well || fault.is_none(), Rule::Explanation, || {
                format!("the device of guest {guest} is at {wanted:?}, and its fault {fault:?}")
            })?;
        }
        Ok(())
    }

    /// The process that has ended was to be the last, one time in four: the links of its guests are
    /// down until the next.
    pub(crate) fn cut_links(&mut self) -> Checked {
        // No choice, so that worlds in which nothing is cut stay as they were.
        if self.plane.journal.steps() % 4 == 0 {
            let cut = self.toolstack.cut_links().map_err(|error| lost(&error))?;
            self.plane.journal.note(|| format!("the host was stopped: {cut} links are down"));
            self.plane.marks.add(Mark::LinkCut, u64::try_from(cut).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    /// The administrator brings back what is missing, and the toolstack makes vifs again that were
    /// refused. Those of virtio try again by themselves.
    pub(crate) fn repair(&mut self) -> Checked {
        self.kernel.refuse_nothing();
        let on_linux = self.wanted.keys().copied().collect::<Vec<_>>();
        for guest in on_linux.into_iter().chain(self.ovs_guests()) {
            match self.scenario.on_ovs[guest] {
                true => self.repair_ovs(guest),
                false => self.repair_links(guest),
            }
            let is_refused = guest < self.drivers.len() && self.fault(guest).is_none();
            if is_refused && !self.removals.contains(&guest) {
                let vif = vif_of(self.plane.guests[guest].domid);
                self.plane.guests[guest].is_disturbed = true;
                self.toolstack.ask_to_remove(vif).map_err(|error| refused(&error))?;
                self.removals.push(guest);
            }
        }
        self.settle()
    }

    /// In the end each device is where its keys say, or where the administrator has put it.
    pub(crate) fn check_links(&mut self) -> Checked {
        for (guest, wanted) in self.wanted.clone() {
            let Some(device) = self.device_link(guest) else {
                let found = format!("guest {guest} has no device");
                return Err(Flaw::new(Rule::Attachment, found));
            };
            let rule = match wanted.place {
                Place::Bridge => Rule::Attachment,
                _ => Rule::Placement,
            };
            ensure(self.is_at(guest, &device, wanted.place), rule, || {
                format!("the device of guest {guest} is not at {wanted:?}: {device:?}")
            })?;
            ensure(wanted.is_up.is_none_or(|up| up == device.is_up), Rule::Placement, || {
                format!("the device of guest {guest} should be {wanted:?}: {device:?}")
            })?;
            let fault = self.fault(guest);
            ensure(fault == Some(None), Rule::Explanation, || {
                format!("all is repaired, and guest {guest} has the fault {fault:?}")
            })?;
            self.plane.marks.add(Mark::VirtioOnBridge, u64::from(guest >= self.drivers.len()));
            let places = [Place::Bridge, Place::Elsewhere];
            let place = places.into_iter().find(|place| self.is_at(guest, &device, *place));
            let (place, is_up) = (place.unwrap_or(Place::Nowhere), Some(device.is_up));
            self.wanted.insert(guest, Wanted { place, is_up, ..wanted });
        }
        Ok(())
    }

    fn is_at(&self, guest: usize, device: &Link, place: Place) -> bool {
        let at = |bridge: Option<Link>| bridge.is_some_and(|it| device.master == Some(it.index));
        match place {
            Place::Bridge => at(self.station_bridge(guest)),
            Place::Elsewhere => at(self.kernel.find(ELSEWHERE)),
            Place::Nowhere => device.master.is_none(),
            Place::Any => true,
        }
    }

    /// The bridge of the station at the far end, whatever its name is.
    fn station_bridge(&self, guest: usize) -> Option<Link> {
        let index = self.kernel.find(&far_link(guest))?.master?;
        self.kernel.all().into_iter().find(|link| link.index == index)
    }

    /// The device of a guest's vif.
    pub(crate) fn device_link(&self, guest: usize) -> Option<Link> {
        let note = format!("ringway {OWNER} {}", self.purpose_of(guest).path());
        self.kernel.all().into_iter().find(|link| link.alias.as_ref() == Some(&note))
    }

    /// The fault of the device of a guest's vif, or none, if it has a device.
    fn fault(&self, guest: usize) -> Option<Option<String>> {
        self.backend.as_ref()?.fault(&self.name_of(guest))
    }

    /// The version of the kernel for which the device of a guest's vif was followed, if it has one.
    fn seen_of(&self, guest: usize) -> Option<u64> {
        self.backend.as_ref()?.seen_of(&self.name_of(guest))
    }

    /// Whether a vif should have a device and has none, or one with a fault.
    pub(crate) fn is_displaced(&self, guest: usize) -> bool {
        let has_place = self.wanted.contains_key(&guest) || self.scenario.on_ovs[guest];
        has_place && (self.fault(guest) != Some(None) || self.port_fault(guest).is_some())
    }
}

/// The name of a bridge after the administrator has renamed it.
fn renamed(guest: usize) -> String {
    format!("renamed{guest}")
}
