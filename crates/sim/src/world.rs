//! A world: everything between the applications of several guests, and its disturbances.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use ringway_datapath::{MacAddr, QueueCounters, VlanRules};
use ringway_engine::Capture;
use ringway_host::{Hosting, UplinkPort, UplinkRules, vif_name};
use ringway_hypervisor::Hypervisor as _;
use ringway_loopback::{Limits, Loopback, LoopbackDomain};
use ringway_steering::FlowKey;
use ringway_wire::DomId;
use ringway_xenbus::frontend::{Preferences, QueueCount};
use ringway_xenbus::{Features, KeyChange, Vif, XenbusState};
use ringway_xenstore::{Client, LocalStore, LocalTransport, Lost, Quota, XsError};

use crate::accounts::Accounts;
use crate::canary::Canary;
use crate::choices::Choices;
use crate::device::{Kind, Station, Tap};
use crate::driver::Driver;
use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::guest::{Guest, Pace};
use crate::hostile::{Hostile, odd_key};
use crate::journal::Journal;
use crate::kernel::{SimKernel, Wire as _};
use crate::links::{Wanted, configured_bridge, make_devices};
use crate::marks::Mark;
use crate::notes::KeptNotes;
use crate::plane::DataPlane;
use crate::plugger::Plugger;
use crate::port::Port;
use crate::process::{Process, WatchedDomain};
use crate::scenario::{HOST, LIVES_MAX, Scenario, Uplink, mac_of};
use crate::settings::Settings;
use crate::toolstack::{Toolstack, WEIGHT, is_of, vif_of};
use crate::traffic::{Flow, announcement};
use crate::virtio_vifs::Virtio;
use crate::workers::{Workers, WorkersConfig};

/// The most requests of XenStore in a turn of the control plane, for each vif that it takes over in
/// it: it reads and writes the keys of one vif, which may end and begin again, and reads those of
/// three others, which may be of no use.
const REQUESTS_MAX: u64 = 150 + 3 * 60;

/// The whole world.
pub(crate) struct World {
    pub(crate) plane: DataPlane,
    pub(crate) scenario: Scenario,
    pub(crate) store: LocalStore,
    pub(crate) toolstack: Toolstack,
    /// The kernel of domain 0 outlives the backend's process.
    host: LoopbackDomain,
    pub(crate) kernel: SimKernel<Tap>,
    pub(crate) backend: Option<Process>,
    /// What processes of the backend leave for the next one.
    pub(crate) notes: KeptNotes,
    /// By guest: panics over its vif that were noted.
    pub(crate) panics: Vec<usize>,
    /// By guest: its driver, while it has a vif.
    pub(crate) drivers: Vec<Option<Driver>>,
    /// By hostile guest: its session of XenStore.
    pub(crate) hostile_stores: Vec<Client<LocalTransport>>,
    pub(crate) accounts: Accounts,
    pub(crate) captures: Vec<Arc<Capture>>,
    /// By guest: keys of its vif that the toolstack has yet to write.
    pub(crate) unwritten: Vec<VecDeque<KeyChange>>,
    /// Guests whose vifs the toolstack has asked the backend to release.
    pub(crate) removals: Vec<usize>,
    pub(crate) settings: Settings,
    /// By patched guest: where its device should be.
    pub(crate) wanted: BTreeMap<usize, Wanted>,
    pub(crate) virtio: Virtio,
    pub(crate) plugger: Plugger,
}

impl World {
    /// Creates a world whose properties are chosen, too.
    pub(crate) fn new(
        mut choices: Choices,
        journal: Journal,
        canary: Option<Canary>,
    ) -> Checked<World> {
        let scenario = Scenario::choose(&mut choices, canary);
        World::of(scenario, choices, journal)
    }

    /// Creates a world in which every guest is connected.
    pub(crate) fn of(scenario: Scenario, choices: Choices, journal: Journal) -> Checked<World> {
        journal.note(|| format!("{scenario:?}"));
        let machine = Loopback::new();
        // Linux as domain 0 uses the larger of Xen's two tables of event channels where it must.
        let ports_max = Limits::default().ports_max.max(4 * scenario.guests);
        let limits = Limits { ports_max, ..Limits::default() };
        let host = machine.create_domain(HOST, limits).expect("it is the first");
        let store = LocalStore::new(Quota::default());
        let toolstack = Toolstack::new(&store);
        let mut plane = DataPlane::new(choices, journal, machine, &scenario);
        let kernel = make_devices(&mut plane, &scenario);
        let notes = KeptNotes::new(scenario.canary);
        let mut world = World {
            plane,
            scenario,
            store,
            toolstack,
            host,
            kernel,
            backend: None,
            notes,
            panics: Vec::new(),
            drivers: Vec::new(),
            hostile_stores: Vec::new(),
            accounts: Accounts::default(),
            captures: Vec::new(),
            unwritten: Vec::new(),
            removals: Vec::new(),
            settings: Settings::default(),
            wanted: BTreeMap::new(),
            virtio: Virtio::default(),
            plugger: Plugger::default(),
        };
        world.make_ovs();
        world.make_front_ends();
        world.start_backend()?;
        for guest in 0..world.scenario.guests {
            world.make_guest(guest)?;
        }
        world.make_virtio_guests();
        for hostile in 0..world.scenario.hostiles {
            world.make_hostile(hostile)?;
        }
        world.make_flows();
        Ok(world)
    }

    /// Runs the world to its end.
    pub(crate) fn run(&mut self) -> Checked {
        self.rest()?;
        self.plane.may_die = self.scenario.disturbances.have_deaths();
        for _ in 0..self.scenario.phases {
            for _ in 0..self.scenario.steps_per_phase {
                if self.plane.choices.are_over() {
                    break;
                }
                self.step()?;
            }
            self.plane.guests.iter_mut().for_each(|guest| guest.pace = Pace::Fast);
            self.plane.devices.iter_mut().for_each(|device| device.pace = Pace::Fast);
            self.plane.paused = None;
            self.rest()?;
        }
        self.plane.may_die = false;
        self.finish()
    }

    /// Makes one step.
    fn step(&mut self) -> Checked {
        match self.plane.choices.below(64) {
            0..=45 => self.plane.step()?,
            46..=57 => self.control_step()?,
            60 if !self.plane.hostiles.is_empty() => self.hostile_step(),
            61 if self.scenario.intruders > 0 => self.intrude(),
            _ => self.trouble()?,
        }
        self.after_step()
    }

    /// Handles the consequences of a step.
    pub(crate) fn after_step(&mut self) -> Checked {
        if let Some(flaw) = self.plane.flaw.take() {
            return Err(flaw);
        }
        self.plane.check_step()?;
        if !self.plane.is_alive.get() {
            self.start_backend()?;
        }
        for guest in 0..self.plane.guests.len() {
            if !self.plane.machine.is_alive(self.plane.guests[guest].domid) {
                self.plane.marks.hit(Mark::GuestDiedInUse);
                self.replace_guest(guest)?;
            }
        }
        Ok(())
    }

    /// What a guest wishes when it connects: another number of queues each time.
    pub(crate) fn preferences(&mut self, guest: usize) -> Preferences {
        let queues = self.plane.choices.from_to(1, usize::from(self.scenario.queues_wanted));
        Preferences {
            queues: QueueCount::AtMost(u16::try_from(queues).unwrap_or(1)),
            features: Features::from(self.scenario.guest_caps[guest]),
        }
    }

    fn make_guest(&mut self, number: usize) -> Checked {
        let domid = DomId(u16::try_from(number).expect("a world is small") * LIVES_MAX + 1);
        let domain = self.plane.machine.create_domain(domid, Limits::default());
        let domain = domain.expect("the number is free");
        let mut guest = Guest::new(domid, mac_of(number), domain);
        guest.choose(&self.scenario, number);
        self.plane.guests.push(guest);
        self.drivers.push(None);
        self.panics.push(0);
        self.unwritten.push(VecDeque::new());
        self.make_vif(number)
    }

    fn make_hostile(&mut self, number: usize) -> Checked {
        let place = self.plane.guests.len() + number;
        let domid = DomId(u16::try_from(place).expect("a world is small") * LIVES_MAX + 1);
        let domain = self.plane.machine.create_domain(domid, Limits::default());
        let hostile = Hostile::new(domid, mac_of(place), domain.expect("the number is free"));
        self.store.introduce(domid);
        self.toolstack
            .make(vif_of(domid), hostile.mac, (None, "1"))
            .map_err(|error| refused(&error))?;
        self.plane.hostiles.push(hostile);
        let store = self.store.connect(domid).expect("a guest may have a session");
        self.hostile_stores.push(store);
        Ok(())
    }

    /// A hostile guest connects, or writes an invalid key. Refusals of XenStore concern only the
    /// guest.
    fn hostile_step(&mut self) {
        self.plane.journal.count_step();
        let number = self.plane.choices.below(self.plane.hostiles.len());
        let (hostile, store) = (&mut self.plane.hostiles[number], &mut self.hostile_stores[number]);
        let mut set = |key: &str, value: &str| {
            let _ = store.write(&format!("device/vif/0/{key}"), value);
        };
        let offer = self.toolstack.backend_state(vif_of(hostile.domid));
        match self.plane.choices.below(4) {
            0 => {
                let (key, value) = odd_key(&mut self.plane.choices);
                self.plane.marks.hit(Mark::HostileStore);
                self.plane
                    .journal
                    .note(|| format!("hostile guest {number} sets {key} to {value:?}"));
                set(key, value);
            }
            _ if offer == XenbusState::InitWait => {
                let Ok(keys) = hostile.make_rings() else { return };
                self.plane.journal.note(|| format!("hostile guest {number} connects"));
                keys.iter().for_each(|(key, value)| set(key, value));
                set("request-rx-copy", "1");
                set("feature-rx-notify", self.plane.choices.pick(&["0", "1"]));
                set("state", "4");
            }
            _ if offer.is_gone() || offer == XenbusState::Closing => {
                self.plane.marks.hit(Mark::HostileClosed);
                set("state", self.plane.choices.pick(&["6", "1"]));
            }
            _ => {}
        }
    }

    fn make_flows(&mut self) {
        let pairs = self.pairs();
        if pairs.is_empty() {
            return;
        }
        let long_one_in = if self.scenario.is_bulk { 2 } else { 8 };
        for (number, kind) in (0..).zip(self.scenario.flow_kinds.clone()) {
            let pair = self.plane.choices.pick(&pairs);
            let [from, to] = pair.map(|end| self.plane.owner_of_end(end));
            self.plane.ledger.add(from, to);
            let ends = pair.map(|end| (end, self.mac_of_end(end)));
            self.plane.flows.push(Flow::new(number, kind, long_one_in, ends));
        }
    }

    /// All pairs of ends that reach each other, in both directions: those on the switch, and a
    /// guest whose vif is patched with the station at its far end.
    fn pairs(&self) -> Vec<[usize; 2]> {
        let guests = self.plane.guests.len();
        let place_of = |end: usize| match end.checked_sub(guests) {
            None if self.scenario.are_patched[end] => Kind::Vif { guest: end },
            // Any place on the switch will do.
            None => Kind::Uplink,
            Some(station) => self.plane.devices[self.plane.stations[station].device].kind,
        };
        let ends = guests + self.plane.stations.len();
        let all = (0..ends).flat_map(|from| (0..ends).map(move |to| [from, to]));
        let are_apart = |[from, to]: &[usize; 2]| from != to && (*from < guests || *to < guests);
        let reach = |[from, to]: &[usize; 2]| place_of(*from) == place_of(*to);
        all.filter(are_apart).filter(reach).collect()
    }

    fn mac_of_end(&self, end: usize) -> MacAddr {
        match end.checked_sub(self.plane.guests.len()) {
            None => mac_of(end),
            Some(station) => self.plane.stations[station].mac,
        }
    }

    /// Gives a guest its vif and a driver for it.
    pub(crate) fn make_vif(&mut self, guest: usize) -> Checked {
        let domid = self.plane.guests[guest].domid;
        self.store.introduce(domid);
        self.panics[guest] = 0;
        self.settings.made(vif_of(domid), WEIGHT, self.scenario.weights[guest]);
        self.plane.guests[guest].is_cut_off = false;
        let wanted = (configured_bridge(&self.scenario, guest), self.scenario.weights[guest]);
        let vif = vif_of(domid);
        if self.plane.choices.is_one_in(4) {
            self.plane.marks.hit(Mark::KeyByKey);
            let begun = self.toolstack.begin((vif, mac_of(guest)), wanted, &mut self.plane.choices);
            self.unwritten[guest] = begun.map_err(|error| refused(&error))?;
            // Until it is connected, the switch floods frames to it, which may reach no port.
            self.plane.guests[guest].is_disturbed = true;
        } else {
            let made = self.toolstack.make(vif, mac_of(guest), wanted);
            made.map_err(|error| refused(&error))?;
            self.unwritten[guest].clear();
        }
        self.expect_device(guest);
        let preferences = self.preferences(guest);
        let driver = Driver::start(&self.store, vif, preferences, guest, &mut self.plane);
        self.drivers[guest] = Some(driver.map_err(|error| lost(&error))?);
        Ok(())
    }

    /// Kills a guest; its toolstack creates another one in its place.
    pub(crate) fn replace_guest(&mut self, guest: usize) -> Checked {
        let dead = self.plane.guests[guest].domid;
        self.plane.journal.note(|| format!("guest {guest} dies"));
        self.plane.marks.hit(Mark::GuestKilled);
        self.plane.machine.destroy_domain(dead);
        self.removals.retain(|other| *other != guest);
        self.drivers[guest] = None;
        self.store.release(dead);
        let vif = vif_of(dead);
        self.toolstack.ask_to_remove(vif).map_err(|error| refused(&error))?;
        self.toolstack.remove(vif).map_err(|error| refused(&error))?;
        let domid = DomId(dead.0 + 1);
        let domain = self.plane.machine.create_domain(domid, Limits::default());
        let mut reborn = Guest::new(domid, mac_of(guest), domain.expect("the number is free"));
        reborn.is_disturbed = true;
        reborn.choose(&self.scenario, guest);
        reborn.is_impersonated = self.plane.guests[guest].is_impersonated;
        self.plane.guests[guest] = reborn;
        self.make_vif(guest)
    }

    /// Starts a backend's process. It takes over the vifs of a killed one.
    pub(crate) fn start_backend(&mut self) -> Checked {
        if let Some(backend) = self.backend.take() {
            self.succeed(&backend)?;
        }
        let (ledger, canary) = (&self.plane.ledger, self.scenario.canary);
        let devices = self.plane.devices.iter().enumerate();
        let mut uplink = devices.filter_map(|(number, device)| device.open(number, ledger, canary));
        let uplink = uplink.next_back();
        let hypervisor = WatchedDomain {
            domain: self.host.clone(),
            machine: self.plane.machine.clone(),
            witness: self.plane.witness.clone(),
        };
        loop {
            let outside = (hypervisor.clone(), self.kernel.clone());
            let config = self.scenario.host_config(self.plane.choices.number());
            let alive = Rc::new(Cell::new(true));
            let (now, notes) = (self.plane.now, &self.notes);
            let process =
                Process::start(&self.store, outside, config, (notes, now), Rc::clone(&alive));
            let mut process = process.map_err(|error| lost(&error))?;
            let config = WorkersConfig {
                engines: self.scenario.engines,
                budget_bytes: self.scenario.budget_bytes,
                flow_key: self.scenario.flow_key,
                canary: self.scenario.canary,
            };
            let switch = &process.host.shared.switch;
            self.plane.workers = Some(Workers::start(config, switch, now));
            self.plane.is_alive = alive;
            self.add_virtio(&mut process);
            let attach = |tap| self.attach_uplink(&mut process, tap);
            let attached = uplink.as_ref().map_or(Ok(()), attach);
            self.backend = Some(process);
            // If it was killed at once, another one starts.
            match attached {
                Ok(()) => return Ok(()),
                Err(_) => self.plane.flaw.take().map_or(Ok(()), Err)?,
            }
        }
    }

    /// Forgets what has ended with a killed process, whose successor starts.
    fn succeed(&mut self, killed: &Process) -> Checked {
        self.plane.journal.note(|| "the backend starts again".to_owned());
        // That a guest must reconnect once it has connected was known to that process alone.
        let vifs = self.plane.guests.iter().map(|guest| vif_of(guest.domid));
        self.settings.may_keep_queues(vifs.filter(|vif| !killed.is_connected(*vif)));
        self.cut_links()?;
        self.expect_new_devices();
        self.plugger.begin_again(&mut self.plane.choices);
        for guest in &mut self.plane.guests {
            guest.is_disturbed = true;
            guest.forget_unnoted(&self.notes);
        }
        self.plane.devices.iter().for_each(|device| device.set_disturbed(true));
        if self.scenario.canary == Some(Canary::LostNotes) {
            self.notes = KeptNotes::default();
        }
        if self.scenario.canary == Some(Canary::LostFlowKey) {
            let choices = &mut self.plane.choices;
            self.scenario.flow_key = FlowKey::new([choices.number(), choices.number()]);
        }
        // The counters have ended with the process.
        self.plane.dropped_before = 0;
        self.plane.ledger.settle();
        self.settings.forget_budgets();
        Ok(())
    }

    /// Attaches the switch's uplink.
    fn attach_uplink(&mut self, process: &mut Process, tap: &Tap) -> io::Result<()> {
        let Some(Uplink { queues, .. }) = self.scenario.uplink else { return Ok(()) };
        tap.reopen(queues);
        let counters: Vec<Arc<QueueCounters>> = (0..queues).map(|_| Arc::default()).collect();
        let queues = tap.queues(&counters).into_iter().zip(counters);
        let queues = queues.map(|(queue, counters)| (Port::from(queue), counters)).collect();
        let rules = UplinkRules::without_limits(VlanRules::default());
        let attach =
            |hosting: &mut Hosting<'_, _>| UplinkPort::attach("uplink", &rules, queues, hosting);
        process.host.uplink = Some(process.act(&mut self.plane, attach)?);
        let uplink = |station: &&Station| self.plane.devices[station.device].kind == Kind::Uplink;
        for station in self.plane.stations.iter().filter(uplink) {
            let device = &self.plane.devices[station.device];
            device.send(0, |pool| announcement(station.mac, pool));
        }
        Ok(())
    }

    /// Lets one of the processes handle one of its events.
    fn control_step(&mut self) -> Checked {
        self.plane.journal.count_step();
        let ends = self.ends();
        let unwritten = self.unwritten.iter().any(|keys| !keys.is_empty());
        let chosen = self.plane.choices.below(ends + usize::from(unwritten));
        if chosen == ends {
            return self.write_key().map(|_| ());
        }
        let waiting = self.drivers.iter().flatten().filter(|it| it.has_work(&self.plane)).count();
        if waiting > 1 {
            self.plane.marks.hit(Mark::WatchesReordered);
        }
        self.run_control(chosen).map(|_| ())
    }

    /// Lets the toolstack write the next key of a vif that it makes key by key. Returns true if
    /// there is such a vif.
    pub(crate) fn write_key(&mut self) -> Checked<bool> {
        let is_unwritten = |guest: &usize| !self.unwritten[*guest].is_empty();
        let guests: Vec<usize> = (0..self.unwritten.len()).filter(is_unwritten).collect();
        if guests.is_empty() {
            return Ok(false);
        }
        let guest = self.plane.choices.pick(&guests);
        let vif = vif_of(self.plane.guests[guest].domid);
        let ports =
            self.backend.as_ref().map_or(0, |backend| backend.ports_of(&vif_name(vif)).count());
        // A toolstack removes a vif in use only when its backend has let it go.
        if ports == 0 && self.plane.choices.is_one_in(32) {
            self.plane.marks.hit(Mark::HalfMade);
            self.plane.guests[guest].is_disturbed = true;
            self.plane
                .journal
                .note(|| format!("the toolstack begins again with the vif of guest {guest}"));
            self.toolstack.remove(vif).map_err(|error| refused(&error))?;
            if let Some(mut driver) = self.drivers[guest].take() {
                driver.gone(&mut self.plane).map_err(|error| lost(&error))?;
            }
            return self.make_vif(guest).map(|()| true);
        }
        if let Some(key) = self.unwritten[guest].pop_front() {
            self.plane.journal.note(|| format!("the toolstack writes of guest {guest}: {key:?}"));
            let is_served = self.backend.as_ref().is_some_and(|it| it.host.vif(vif).is_some());
            if is_served && is_of(&key, "state") {
                // It is another vif to the backend.
                self.plane.marks.hit(Mark::StateTwice);
                self.panics[guest] = 0;
                self.settings.forget_budget(&vif_name(vif));
                self.plane.guests[guest].arrivals += 1;
                self.plane.guests[guest].is_wish_known = false;
                self.plane.guests[guest].chosen.are_known = false;
            }
            self.toolstack.write(vif, &key).map_err(|error| refused(&error))?;
        }
        Ok(true)
    }

    /// How many ends have turns: the drivers of guests of Xen, the backend, the front-ends of
    /// virtio with their openers, and the process that asks Open vSwitch, if there is any.
    pub(crate) fn ends(&self) -> usize {
        self.drivers.len() + 1 + self.virtio.openers.len() + usize::from(self.scenario.has_ovs())
    }

    /// Gives a turn to the backend's control thread or a guest's driver. Returns true if it did
    /// something.
    pub(crate) fn run_control(&mut self, number: usize) -> Checked<bool> {
        match number.checked_sub(self.drivers.len() + 1) {
            Some(virtio) if virtio < self.virtio.openers.len() => return self.run_virtio(virtio),
            Some(_) => return self.run_plugger(),
            None => {}
        }
        let World { plane, backend, drivers, .. } = self;
        let done = match (drivers.get_mut(number), backend) {
            (Some(Some(driver)), _) => driver.turn(plane),
            (Some(None), _) | (None, None) => return Ok(false),
            (None, Some(backend)) => {
                let done = backend.turn(plane);
                let made = backend.requests.most_in_a_turn();
                ensure(made <= REQUESTS_MAX, Rule::Turns, || {
                    format!("the control plane made {made} requests of XenStore in a turn")
                })?;
                done
            }
        };
        match done {
            Ok(has_run) => Ok(has_run),
            // Its process was killed meanwhile.
            Err(_) if !plane.is_alive.get() && number >= drivers.len() => Ok(true),
            Err(error) => Err(plane.flaw.take().unwrap_or_else(|| lost(&error))),
        }
    }

    /// The vifs of all guests of Xen.
    fn vifs(&self) -> Vec<Vif> {
        let honest = self.plane.guests[..self.drivers.len()].iter().map(|guest| guest.domid);
        let domids = honest.chain(self.plane.hostiles.iter().map(|hostile| hostile.domid));
        domids.map(vif_of).collect()
    }

    /// Ends everything, and checks that nothing is left.
    pub(crate) fn finish(&mut self) -> Checked {
        if self.kernel.has_refused() {
            // A device that could not be deleted goes when the next process starts.
            self.plane.kill_backend();
            self.after_step()?;
            self.settle()?;
        }
        let mut vifs = self.vifs();
        loop {
            self.unwritten.iter_mut().for_each(VecDeque::clear);
            for vif in &vifs {
                self.toolstack.ask_to_remove(*vif).map_err(|error| refused(&error))?;
            }
            self.settle()?;
            // A guest that died meanwhile has another one in its place.
            let asked = std::mem::replace(&mut vifs, self.vifs());
            if asked == vifs {
                break;
            }
        }
        for (guest, vif) in vifs.iter().enumerate() {
            let is_let_go = self.toolstack.is_let_go(*vif).map_err(|error| refused(&error))?;
            ensure(is_let_go, Rule::Handshake, || {
                format!("the backend does not let guest {guest} go")
            })?;
            self.toolstack.remove(*vif).map_err(|error| refused(&error))?;
            if let Some(mut driver) = self.drivers.get_mut(guest).and_then(Option::take) {
                driver.gone(&mut self.plane).map_err(|error| lost(&error))?;
            }
        }
        self.remove_virtio()?;
        self.settle()?;
        self.check_release(&vifs)
    }

    /// The domain of the backend's kernel, for checks.
    pub(crate) fn host(&self) -> DomId {
        self.host.domid()
    }
}

/// Domain 0 and honest guests lose XenStore only when they end themselves.
pub(crate) fn lost(error: &Lost) -> Flaw {
    Flaw::new(Rule::Handshake, format!("the connection to XenStore was lost: {error}"))
}

/// XenStore must not refuse requests of a toolstack.
pub(crate) fn refused(error: &XsError) -> Flaw {
    Flaw::new(Rule::Handshake, format!("XenStore refuses the toolstack: {error}"))
}
