//! Checks on a world at rest.
//!
//! A world is at *rest* when no part of it would act before time advances or another part acts. All
//! events have been delivered by then, so a part that sleeps although there is work for it would
//! sleep forever.

use std::sync::Arc;

use ringway_datapath::DropReason;
use ringway_host::{Host, vif_name};
use ringway_loopback::Holdings;
use ringway_xenbus::limits::LinkState;
use ringway_xenbus::{Vif, VifLimits};

use crate::device::{Kind, Station};
use crate::driver::Driver;
use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::marks::Mark;
use crate::process::Process;
use crate::scenario::mac_of;
use crate::toolstack::vif_of;
use crate::traffic::Flow;
use crate::workers::Workers;
use crate::world::{World, refused};

/// Rounds of "run until nothing would act, then advance time" within which there must be a rest.
const ROUNDS_TO_REST_MAX: usize = 20_000;

impl World {
    /// Brings the world to rest, and makes all checks of that state.
    pub(crate) fn rest(&mut self) -> Checked {
        self.settle()?;
        self.check_faults()?;
        self.check_ovs(false)?;
        self.explain_virtio()?;
        self.repair()?;
        self.check_notes()?;
        self.release_quarantined()?;
        self.repair_virtio()?;
        self.reconnect_closed()?;
        self.check_wishes()?;
        self.check_groups()?;
        self.check_connected()?;
        self.check_headroom()?;
        self.check_offloads()?;
        self.check_virtio()?;
        self.check_links()?;
        self.check_ovs(true)?;
        self.check_ports()?;
        self.check_status(true)?;
        self.accounts.check(&self.plane, Rule::Conservation)?;
        self.check_guests()?;
        self.close_accounts();
        self.plane.marks.hit(Mark::Rest);
        self.plane.journal.note(|| "the world is at rest".to_owned());
        Ok(())
    }

    /// Runs everything until no part would act by itself.
    pub(crate) fn settle(&mut self) -> Checked {
        for _ in 0..ROUNDS_TO_REST_MAX {
            self.plane.come_to_rest()?;
            self.after_step()?;
            if self.run_all_control()? {
                continue;
            }
            if self.write_key()? || self.finish_removals()? || self.make_up_for_lost_events() {
                continue;
            }
            if !self.scenario.may_need_time() {
                self.accounts.check(&self.plane, Rule::WakeUps)?;
            }
            let due = self.backend.as_ref().and_then(Process::due);
            match self.plane.next_time().into_iter().chain(due).chain(self.ovs_due()).min() {
                None => return Ok(()),
                Some(then) => self.plane.now = self.plane.now.max(then),
            }
        }
        let waits = self.plane.waits();
        Err(Flaw::new(Rule::Rest, format!("there is always a time to wait for: {waits:?}")))
    }

    /// Lets every process handle all its events. Returns true if there were any.
    fn run_all_control(&mut self) -> Checked<bool> {
        let mut has_run = false;
        for number in 0..self.ends() {
            while self.run_control(number)? {
                has_run = true;
                self.after_step()?;
            }
        }
        Ok(has_run)
    }

    /// Delivers lost events late; in the meantime, their receivers wait.
    fn make_up_for_lost_events(&mut self) -> bool {
        if !self.plane.take_event_losses() {
            return false;
        }
        let guests = self.plane.guests.iter().map(|guest| guest.domid);
        for domid in guests.chain([self.host()]) {
            self.plane.raise_all(domid);
        }
        true
    }

    /// A guest that was refused must reconnect by itself. It may be refused again as long as faults
    /// are planned.
    pub(crate) fn reconnect_closed(&mut self) -> Checked {
        loop {
            let faults = self.plane.faults_left();
            let closed = |guest: &usize| !self.is_connected(*guest);
            let closed: Vec<usize> = (0..self.drivers.len()).filter(closed).collect();
            for guest in &closed {
                self.reconnect(*guest)?;
            }
            self.settle()?;
            if self.plane.faults_left() == faults {
                return Ok(());
            }
        }
    }

    fn is_connected(&self, guest: usize) -> bool {
        if let Some(virtio) = guest.checked_sub(self.drivers.len()) {
            return self.is_virtio_connected(virtio);
        }
        let vif = vif_of(self.plane.guests[guest].domid);
        let is_served = self.backend.as_ref().is_some_and(|backend| backend.is_connected(vif));
        is_served && self.drivers[guest].as_ref().is_some_and(Driver::is_connected)
    }

    /// A guest is connected if both sides want it and nothing was refused.
    fn check_connected(&mut self) -> Checked {
        for guest in 0..self.drivers.len() {
            let vif = vif_of(self.plane.guests[guest].domid);
            if self.is_connected(guest) {
                self.check_no_error(vif)?;
                self.check_settings(guest)?;
                self.check_budget(guest)?;
                let is_down = self.settings.limits(&vif_name(vif)).link == Some(LinkState::Down);
                self.plane.marks.add(Mark::LinkDown, u64::from(is_down));
                self.plane.guests[guest].is_cut_off = is_down;
                continue;
            }
            if self.is_release_lost(guest) {
                continue;
            }
            let own = self.drivers[guest].as_ref().map(Driver::describe);
            let state = self.toolstack.backend_state(vif);
            let error = self.backend.as_ref().and_then(|backend| backend.error(vif));
            let found = format!("guest {guest} is {own:?}, its backend {state:?}, error {error:?}");
            return Err(Flaw::new(Rule::Handshake, found));
        }
        Ok(())
    }

    /// The only ports are those of connected vifs, and the uplink's.
    fn check_ports(&self) -> Checked {
        let Some(backend) = &self.backend else { return Ok(()) };
        let vifs = backend.host.states().filter_map(|state| state.connection.as_ref());
        let uplinks = backend.host.uplink.iter().count();
        let known = vifs.map(|vif| vif.ports().count()).sum::<usize>() + uplinks;
        let ports = backend.host.shared.ports_in_use();
        ensure(ports == known, Rule::Release, || {
            format!("{ports} ports are in use, and only {known} by vifs and the uplink")
        })
    }

    /// The backend has removed its error report for a connected vif.
    fn check_no_error(&mut self, vif: Vif) -> Checked {
        let error = self.toolstack.error(vif);
        ensure(error.is_none(), Rule::Handshake, || {
            format!("domain {} is connected, and its error still {error:?}", vif.frontend)
        })
    }

    /// The backend applies what the toolstack has set.
    fn check_settings(&self, guest: usize) -> Checked {
        let vif = vif_of(self.plane.guests[guest].domid);
        let all = |it: VifLimits| (it.link, it.offloads, it.rate, it.rate_rx, it.weight);
        let wanted = all(self.settings.limits(&vif_name(vif)));
        let served = self.backend.as_ref().and_then(|backend| backend.host.vif(vif));
        let found = served.map(|served| all(served.state.limited.wanted));
        ensure(found == Some(wanted), Rule::Settings, || {
            format!("the limits of guest {guest} are {found:?}, expected {wanted:?}")
        })?;
        let found = served.map(|it| (it.state.rules.mac(), it.state.device.is_some()));
        let wanted = (Some(mac_of(guest)), self.scenario.are_patched[guest]);
        ensure(found == Some(wanted), Rule::Settings, || {
            format!("address and device of guest {guest} are {found:?}, expected {wanted:?}")
        })
    }

    /// At rest, a guest that has connected again has the budget of floods that it had: otherwise it
    /// could have as much as it likes.
    pub(crate) fn check_budget(&mut self, guest: usize) -> Checked {
        let name = self.name_of(guest);
        let state = self.backend.as_ref().and_then(|backend| backend.state(&name));
        let queue = state.and_then(|state| state.connection.as_ref()?.queues.first());
        let Some((state, queue)) = state.zip(queue) else { return Ok(()) };
        let (budget, queue) = (Arc::clone(&state.limited.flood), Arc::clone(queue));
        let now = (Arc::clone(&budget), Arc::clone(&queue));
        let Some(before) = self.settings.note_budget(name, now) else { return Ok(()) };
        let is_other = !Arc::ptr_eq(&before.1, &queue);
        self.plane.marks.add(Mark::BudgetKept, u64::from(is_other));
        ensure(Arc::ptr_eq(&before.0, &budget), Rule::Settings, || {
            format!("guest {guest} has another budget of floods")
        })
    }

    /// All frames have left and all requests have a response.
    fn check_guests(&mut self) -> Checked {
        for (number, device) in self.plane.devices.iter().enumerate() {
            let waiting = device.waiting();
            ensure(waiting == 0, Rule::WakeUps, || {
                format!("{waiting} frames of device {number} wait to be taken in")
            })?;
        }
        for (number, guest) in self.plane.guests.iter_mut().enumerate().filter(|(_, it)| it.is_up) {
            for (queue, nic) in guest.nics.iter_mut().enumerate() {
                let backlog = nic.backlog.len();
                ensure(backlog == 0, Rule::WakeUps, || {
                    format!("guest {number} queue {queue} waits for room for {backlog} frames")
                })?;
                let unanswered = nic.send(&mut guest.pool).and_then(|_| nic.unanswered());
                let unanswered = unanswered.map_err(|down| {
                    Flaw::new(Rule::Responses, format!("guest {number} finds: {down}"))
                })?;
                ensure(unanswered == 0, Rule::Responses, || {
                    format!("guest {number} queue {queue} waits for {unanswered} responses")
                })?;
            }
        }
        Ok(())
    }

    fn close_accounts(&mut self) {
        let workers = self.plane.workers.as_ref();
        let full = workers.map_or(0, |workers| workers.dropped_for(DropReason::QueueFull));
        self.plane.marks.add(Mark::QueueFull, u64::from(full > 0));
        self.plane.dropped_before = workers.map_or(0, Workers::dropped);
        self.plane.ledger.settle();
        self.plane.flows.iter_mut().for_each(Flow::settle);
        let workers = self.plane.workers.as_ref();
        let devices = &self.plane.devices;
        let behind_uplink = |station: &&Station| devices[station.device].kind == Kind::Uplink;
        let stations = self.plane.stations.iter().filter(behind_uplink).map(|it| it.mac);
        let on_switch = (0..).zip(&self.plane.guests);
        let on_switch = on_switch.filter(|(guest, _)| !self.scenario.are_patched[*guest]);
        let macs = on_switch.map(|(_, guest)| guest.mac).chain(stations);
        let are_known = macs.into_iter().all(|mac| workers.is_some_and(|it| it.knows(mac)));
        let mut is_calm = self.scenario.has_no_hostiles() && are_known;
        for guest in 0..self.plane.guests.len() {
            let is_connected = self.is_connected(guest);
            is_calm &= is_connected;
            self.plane.guests[guest].is_disturbed = !is_connected;
        }
        for device in &self.plane.devices {
            device.set_disturbed(match device.kind {
                Kind::Uplink => false,
                Kind::Vif { guest } => {
                    self.plane.guests[guest].is_disturbed || !device.is_connected()
                }
            });
        }
        self.accounts.close(&self.plane, is_calm);
    }

    /// After the removal of all vifs, nothing of them is left.
    pub(crate) fn check_release(&mut self, vifs: &[Vif]) -> Checked {
        for vif in vifs {
            self.toolstack.touch(&vif.frontend_state()).map_err(|error| refused(&error))?;
        }
        let heard = self.run_all_control()?;
        ensure(!heard, Rule::Release, || "a vif that is gone is still watched".to_owned())?;
        let ours = self.kernel.all().into_iter().filter(|link| link.alias.is_some());
        let left: Vec<String> = ours.map(|link| link.name).collect();
        ensure(left.is_empty(), Rule::Release, || format!("devices of vifs are left: {left:?}"))?;
        self.check_ovs_release()?;
        let left = self.toolstack.leftovers().map_err(|error| refused(&error))?;
        ensure(left.is_empty(), Rule::Release, || format!("nodes are left: {left:?}"))?;
        let Host { shared, uplink, .. } =
            &mut self.backend.as_mut().expect("the backend lives").host;
        if let Some(uplink) = uplink.take() {
            shared.release_port(uplink.port, &mut self.plane);
            self.plane.flaw.take().map_or(Ok(()), Err)?;
        }
        let ports = shared.ports_in_use();
        ensure(ports == 0, Rule::Release, || format!("{ports} ports are left"))?;
        let workers = self.plane.workers.take().expect("the backend lives");
        let learned = workers.switch.fdb().len();
        ensure(learned == 0, Rule::Release, || format!("{learned} addresses are left"))?;
        let (budget, bytes) = (workers.budget.clone(), workers.budget_bytes);
        drop(workers);
        let left = budget.bytes_left();
        ensure(left == bytes, Rule::Budget, || format!("{left} of {bytes} bytes came back"))?;
        for guest in &mut self.plane.guests {
            guest.release();
            if guest.has_lost_pages {
                self.plane.machine.destroy_domain(guest.domid);
            }
        }
        for hostile in &self.plane.hostiles {
            self.plane.machine.destroy_domain(hostile.domid);
        }
        let holdings = self.plane.machine.holdings();
        ensure(holdings == Holdings::default(), Rule::Release, || format!("{holdings:?} are left"))
    }
}
