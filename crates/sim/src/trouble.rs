//! The disturbances of a world: actions of its administrators, and faults.

use ringway_host::vif_name;
use ringway_loopback::{Fault, FaultPoint};
use ringway_switch::PortId;

use crate::device::{Device, Kind};
use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::guest::Pace;
use crate::ledger::Owner;
use crate::marks::Mark;
use crate::plane::DataPlane;
use crate::scenario::{HOST, QUEUES_MAX};
use crate::toolstack::{LIMITS, LINK, is_of, vif_of};
use crate::witness::Published;
use crate::world::{World, lost, refused};

/// Faults of calls by a guest or the backend, and of events to them.
const FAULTS: [(FaultPoint, Mark); 10] = [
    (FaultPoint::CopyCall, Mark::CopyCallFailed),
    (FaultPoint::Copy, Mark::CopyRefused),
    (FaultPoint::Map, Mark::MapRefused),
    (FaultPoint::Share, Mark::ShareRefused),
    (FaultPoint::OfferPort, Mark::ShareRefused),
    (FaultPoint::BindPort, Mark::BindRefused),
    (FaultPoint::Notify, Mark::NotifyRefused),
    (FaultPoint::LostEvent, Mark::EventLost),
    (FaultPoint::DoubledEvent, Mark::EventDoubled),
    (FaultPoint::SpuriousEvent, Mark::EventSpurious),
];

impl World {
    /// Makes a step that is not traffic.
    pub(crate) fn trouble(&mut self) -> Checked {
        self.plane.journal.count_step();
        let guest = self.plane.choices.below(self.plane.guests.len());
        if let Some(virtio) = guest.checked_sub(self.drivers.len()) {
            return self.virtio_trouble(virtio);
        }
        let disturbances = self.scenario.disturbances;
        match self.plane.choices.below(24) {
            0..=3 if self.scenario.balances_flows => {
                // If the process has ended meanwhile, another one starts.
                let _: Result<(), crate::control::Ended> = self.plane.balance_flows();
                Ok(())
            }
            0..=4 | 22 => self.move_some_queue(guest),
            6 if self.scenario.ask_for_headroom[guest] => self.change_headroom(guest),
            5..=6 => self.toggle_capture(guest),
            7..=8 => {
                self.change_pace(guest);
                Ok(())
            }
            9..=10 if disturbances.have_rates() => self.change_limit(guest),
            11..=12 if disturbances.have_faults() => {
                self.plan_fault(guest);
                Ok(())
            }
            13 if disturbances.have_deaths() && self.plane.choices.is_one_in(4) => {
                self.panic_over(guest)
            }
            13 if disturbances.have_deaths() && self.plane.choices.is_one_in(2) => {
                self.plane.kill_backend();
                Ok(())
            }
            13 if disturbances.have_deaths() => self.kill_guest(guest),
            14 | 23 if disturbances.have_deaths() => self.reconnect(guest),
            15 if disturbances.have_deaths() && self.plane.choices.is_one_in(4) => {
                self.ask_to_close(guest)
            }
            15 if disturbances.have_deaths() => self.remove(guest),
            15 => {
                self.pause_engine();
                Ok(())
            }
            16 if self.plane.guests[guest].wish.is_some() => self.change_wish(guest),
            17 if self.plane.guests[guest].chosen.groups.is_some() => self.change_groups(guest),
            16..=17 => self.call(guest),
            18.. if disturbances.have_links() => {
                self.change_links(guest);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn move_some_queue(&mut self, guest: usize) -> Checked {
        let name = self.name_of(guest);
        let Some(backend) = &self.backend else { return Ok(()) };
        let uplink = backend.host.uplink.as_ref().map(|uplink| uplink.port);
        let ports: Vec<PortId> = backend.ports_of(&name).chain(uplink).collect();
        if ports.is_empty() {
            return Ok(());
        }
        let port = self.plane.choices.pick(&ports);
        let queue = self.plane.choices.below(usize::from(QUEUES_MAX));
        let queue = u16::try_from(queue).unwrap_or(0);
        let engine = self.plane.choices.below(self.scenario.engines);
        let placed = self.plane.workers.as_ref().and_then(|it| it.roster.queue(port, queue));
        if placed.is_none_or(|placed| placed.address.engine == engine) {
            return Ok(());
        }
        if self.plane.flows.iter().any(crate::traffic::Flow::has_gaps) {
            self.plane.marks.hit(Mark::MovedUnderTraffic);
        }
        // If the process has ended meanwhile, another one starts.
        let _: Result<(), crate::control::Ended> = self.plane.move_queue(port, queue, engine);
        Ok(())
    }

    pub(crate) fn change_pace(&mut self, guest: usize) {
        let pace = self.plane.choices.pick(&[Pace::Fast, Pace::Slow, Pace::Stalled]);
        let devices = self.plane.devices.len();
        if devices > 0 && self.plane.choices.is_one_in(3) {
            let device = self.plane.choices.below(devices);
            self.plane.devices[device].pace = pace;
            if pace == Pace::Stalled {
                self.plane.marks.hit(Mark::DeviceStalled);
            }
            self.plane.journal.note(|| format!("stations behind device {device}: {pace:?}"));
            return;
        }
        self.plane.guests[guest].pace = pace;
        if pace == Pace::Stalled {
            self.plane.marks.hit(Mark::ReceiverStalled);
        }
        self.plane.journal.note(|| format!("guest {guest} receives: {pace:?}"));
    }

    fn change_limit(&mut self, guest: usize) -> Checked {
        let (key, values) = self.plane.choices.pick(&LIMITS);
        let value = self.plane.choices.pick(values);
        let vif = vif_of(self.plane.guests[guest].domid);
        self.plane.journal.note(|| format!("the toolstack sets {key} of guest {guest}: {value}"));
        self.settings.set(&vif_name(vif), key, value);
        self.plane.guests[guest].is_cut_off &= key != LINK;
        self.unwritten[guest].retain(|unwritten| !is_of(unwritten, key));
        self.toolstack.limit(vif, key, value).map_err(|error| refused(&error))?;
        if self.scenario.disturbances.have_deaths() && self.plane.choices.is_one_in(8) {
            self.plane.marks.hit(Mark::SettingUnseen);
            self.plane.kill_backend();
        }
        Ok(())
    }

    fn plan_fault(&mut self, guest: usize) {
        if self.plane.choices.is_one_in(8) {
            self.toggle_disk();
            return;
        }
        if self.plane.choices.is_one_in(4) {
            self.plane.refuse_queues(guest);
            return;
        }
        let (point, mark) = self.plane.choices.pick(&FAULTS);
        let own = self.plane.guests[guest].domid;
        let is_event = matches!(
            point,
            FaultPoint::LostEvent | FaultPoint::DoubledEvent | FaultPoint::SpuriousEvent
        );
        let domid = if is_event && self.plane.choices.is_one_in(2) { HOST } else { own };
        self.plane.machine.fail_next(domid, point);
        self.plane.marks.hit(mark);
        self.plane.event_losses += u64::from(point == FaultPoint::LostEvent);
        self.plane.journal.note(|| format!("the next {point:?} of domain {domid} fails"));
    }

    /// The toolstack removes a vif, and creates it again after it is gone.
    fn remove(&mut self, guest: usize) -> Checked {
        self.finish_removals()?;
        if !self.removals.contains(&guest) {
            let vif = vif_of(self.plane.guests[guest].domid);
            self.plane.journal.note(|| format!("the vif of guest {guest} is to go"));
            self.plane.guests[guest].is_disturbed = true;
            self.unwritten[guest].clear();
            self.toolstack.ask_to_remove(vif).map_err(|error| refused(&error))?;
            self.removals.push(guest);
        }
        Ok(())
    }

    /// Removes vifs that the backend has released, and creates them again. Returns true if there
    /// was one.
    pub(crate) fn finish_removals(&mut self) -> Checked<bool> {
        let mut has_removed = false;
        for guest in std::mem::take(&mut self.removals) {
            let vif = vif_of(self.plane.guests[guest].domid);
            if !self.toolstack.is_let_go(vif).map_err(|error| refused(&error))? {
                self.removals.push(guest);
                continue;
            }
            self.plane.journal.note(|| format!("the toolstack removes the vif of guest {guest}"));
            self.plane.marks.hit(Mark::Removed);
            self.toolstack.remove(vif).map_err(|error| refused(&error))?;
            if let Some(mut driver) = self.drivers[guest].take() {
                driver.gone(&mut self.plane).map_err(|error| lost(&error))?;
            }
            self.make_vif(guest)?;
            has_removed = true;
        }
        Ok(has_removed)
    }

    /// The toolstack writes `Closing` for the backend of a connected vif, and nothing else: the
    /// backend begins before the guest has seen it. The vif stays, and its guest tries again.
    fn ask_to_close(&mut self, guest: usize) -> Checked {
        let vif = vif_of(self.plane.guests[guest].domid);
        let is_connected = self.backend.as_ref().is_some_and(|it| it.is_connected(vif));
        if !is_connected || self.removals.contains(&guest) || !self.unwritten[guest].is_empty() {
            return Ok(());
        }
        self.plane.journal.note(|| format!("the vif of guest {guest} is to close"));
        self.plane.marks.hit(Mark::AskedToClose);
        self.plane.guests[guest].is_disturbed = true;
        self.toolstack.ask_to_close(vif).map_err(|error| refused(&error))?;
        while self.run_control(self.drivers.len())? {}
        let is_connected = self.backend.as_ref().is_some_and(|it| it.is_connected(vif));
        ensure(!is_connected || !self.plane.is_alive.get(), Rule::Handshake, || {
            format!("the backend of guest {guest} was asked to close, and is connected")
        })
    }

    fn pause_engine(&mut self) {
        let engine = self.plane.choices.below(self.scenario.engines);
        if self.plane.workers.is_none() {
            return;
        }
        self.plane.paused = self.plane.paused.is_none().then_some(engine);
        self.plane.marks.hit(Mark::EnginePaused);
        let paused = self.plane.paused;
        self.plane.journal.note(|| format!("paused engine: {paused:?}"));
    }

    fn kill_guest(&mut self, guest: usize) -> Checked {
        if self.plane.choices.is_one_in(2) {
            let domid = self.plane.guests[guest].domid;
            // Some use of its pages later: often while its frames are copied to another guest.
            let passages = self.plane.machine.passages(domid, FaultPoint::Death);
            let later = u64::try_from(self.plane.choices.from_to(1, 16)).unwrap_or(1);
            let fault = Fault { domid, point: FaultPoint::Death, nth: passages + later };
            self.plane.machine.add_fault(fault);
            return Ok(());
        }
        self.replace_guest(guest)
    }

    /// A guest disconnects, if it is connected, and connects again.
    pub(crate) fn reconnect(&mut self, guest: usize) -> Checked {
        self.plane.journal.note(|| format!("guest {guest} leaves and comes back"));
        self.plane.marks.hit(Mark::Reconnected);
        self.plane.guests[guest].is_disturbed = true;
        self.settings.reconnected(vif_of(self.plane.guests[guest].domid));
        let preferences = self.preferences(guest);
        let World { plane, drivers, .. } = self;
        match &mut drivers[guest] {
            Some(driver) => driver.reconnect(preferences, plane).map_err(|error| lost(&error)),
            None => Ok(()),
        }
    }
}

impl DataPlane {
    /// Queues will be refused when a vif is attached: what was done before must be undone.
    pub(crate) fn refuse_queues(&mut self, guest: usize) {
        let its = |device: &&Device| device.kind == Kind::Vif { guest };
        match self.devices.iter().find(its) {
            Some(device) if self.choices.is_one_in(2) => {
                device.refuse_next();
                self.marks.hit(Mark::DeviceRefused);
                self.journal.note(|| format!("the device of guest {guest} will refuse its queues"));
            }
            _ => {
                let ports = self.choices.below(2);
                self.place_refused = Some(ports);
                self.journal.note(|| format!("{ports} more ports find engines, and one does not"));
            }
        }
    }

    /// Ends the backend's process at once, as `kill -9` does.
    pub(crate) fn kill_backend(&mut self) {
        self.journal.note(|| "the backend is killed".to_owned());
        self.marks.hit(Mark::BackendKilled);
        self.is_alive.set(false);
        self.workers = None;
    }

    /// Ends the process in a round in which it has written responses: those to honest guests are
    /// not published.
    pub(crate) fn kill_unpublished(&mut self, before: Published) {
        if before.take_back(self.canary) {
            self.marks.hit(Mark::BackendKilledUnpublished);
            self.journal.note(|| "the backend has not published its responses".to_owned());
        }
        self.kill_backend();
    }

    /// An engine has given up a queue of this owner. Without faults of the machine, only hostile
    /// guests may cause that.
    pub(crate) fn blame(&mut self, owner: Option<Owner>, reason: &str) {
        // A device may have been deleted.
        let may_fail = matches!(owner, Some(Owner::Device(it)) if self.devices[it].is_disturbed());
        if let (Some(owner), true, None) = (owner, self.is_sound && !may_fail, &self.flaw) {
            let found = format!("a queue of {owner:?}, which is honest, is given up: {reason}");
            self.flaw = Some(Flaw::new(Rule::Isolation, found));
        }
    }

    /// Frames to and from a port may be lost with it.
    pub(crate) fn disturb_owner(&mut self, owner: Owner) {
        match owner {
            Owner::Guest(guest) => {
                let its = |device: &&Device| device.kind == Kind::Vif { guest };
                self.devices.iter().filter(its).for_each(|it| it.set_disturbed(true));
                self.guests[guest].is_disturbed = true;
            }
            Owner::Device(device) => self.devices[device].set_disturbed(true),
        }
    }

    /// Whether events were lost since the last call.
    pub(crate) fn take_event_losses(&mut self) -> bool {
        let is_loss = |point: FaultPoint| point == FaultPoint::LostEvent;
        let left = self.machine.faults_left();
        let left = left.iter().filter(|fault| is_loss(fault.point)).count();
        let left = u64::try_from(left).unwrap_or(0);
        let lost = self.event_losses.saturating_sub(left);
        self.event_losses -= lost;
        lost > 0
    }

    /// How many faults are still planned.
    pub(crate) fn faults_left(&self) -> usize {
        let devices = self.devices.iter().filter(|device| device.will_refuse()).count();
        self.machine.faults_left().len() + usize::from(self.place_refused.is_some()) + devices
    }
}
