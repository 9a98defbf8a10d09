//! The virtio vifs of a world: the description of the host has them, their front-ends connect to
//! sockets, and their administrators and machines do what such do.

use std::path::PathBuf;

use ringway_calls::BackendRequest;
use ringway_datapath::{OffloadCaps, PortRules};
use ringway_host::{CallReply, Event, Note, Notes as _, VirtioWanted, vif_name};
use ringway_host_shell::{SessionEvent, VhostVif, VifPlace};
use ringway_loopback::Limits;
use ringway_ovs::Bind;
use ringway_vhost::frontend::Preferences;
use ringway_vhost::request::PROTOCOL_FEATURES;
use ringway_vhost_shell::Mode;
use ringway_wire::DomId;
use ringway_wire::vhost_user::{
    VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS, VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD,
    VHOST_USER_PROTOCOL_F_MQ, VHOST_USER_PROTOCOL_F_REPLY_ACK, VHOST_USER_PROTOCOL_F_STATUS,
};
use ringway_wire::virtio::{
    Features, VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_MQ,
    VIRTIO_NET_F_MRG_RXBUF, VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use ringway_xenbus::{Limit, VifLimits};

use crate::calls::ENDED;
use crate::canary::Canary;
use crate::choices::Choices;
use crate::flaw::{Checked, Flaw, Rule};
use crate::guest::Guest;
use crate::intruder::Intruder;
use crate::ledger::Owner;
use crate::links::{bridge_of, virtio_name};
use crate::marks::Mark;
use crate::process::Process;
use crate::scenario::{LIVES_MAX, QUEUES_MAX, mac_of};
use crate::socket::{Found, Opener};
use crate::toolstack::vif_of;
use crate::virtio_vifs::Section;
use crate::vmm::{Loss, Order, Vmm};
use crate::world::{World, lost};

/// Limits of a virtio vif, with some values. Those of floods come last.
const LIMITS: [(&str, &str); 7] = [
    ("offloads", "none"),
    ("offloads", "none"),
    ("offloads", "auto"),
    ("weight", "1"),
    ("weight", "7"),
    ("broadcast-mbit", "40000"),
    ("flood-rate", "1000000"),
];
/// How many a bridge does not carry out by itself.
const OF_BRIDGED: usize = 5;

impl World {
    /// Makes the front-ends, before the first backend starts.
    pub(crate) fn make_front_ends(&mut self) {
        for number in 0..self.scenario.virtio {
            let wants = choose_preferences(&mut self.plane.choices);
            let guest = self.scenario.guests + number;
            self.virtio.vmms.push(Vmm::new(virtio_name(number), guest, wants));
            let is_on_linux = self.scenario.are_patched[guest] && !self.scenario.on_ovs[guest];
            if is_on_linux && self.plane.choices.is_one_in(2) {
                self.plane.marks.hit(Mark::BridgeLate);
                self.kernel.remove(&bridge_of(guest)).expect("it exists");
            }
            self.expect_device(guest);
            self.virtio.openers.push(Opener::new());
            self.virtio.queues.push(QUEUES_MAX);
            self.virtio.sections.push(Section::default());
            self.virtio.are_clean.push(true);
        }
        for number in 0..self.scenario.intruders {
            self.virtio.intruders.push(Intruder::new(format!("rogue{number}")));
            self.virtio.openers.push(Opener::new());
        }
    }

    /// Makes the guests of the honest front-ends. A virtual machine is like a domain that grants
    /// nothing.
    pub(crate) fn make_virtio_guests(&mut self) {
        for number in 0..self.scenario.virtio {
            let place = self.scenario.guests + number;
            let domid = DomId(u16::try_from(place).expect("a world is small") * LIVES_MAX + 1);
            let domain = self.plane.machine.create_domain(domid, Limits::default());
            let domain = domain.expect("the number is free");
            let mut guest = Guest::new(domid, mac_of(place), domain);
            // Until it is connected, frames to it may reach no port.
            guest.is_disturbed = true;
            self.plane.guests.push(guest);
            self.panics.push(0);
        }
    }

    /// A process of the backend begins with the vifs of the description, which may have changed.
    pub(crate) fn add_virtio(&mut self, process: &mut Process) {
        for (number, wanted) in self.described() {
            self.begin_virtio(number, wanted, process);
        }
    }

    /// A process begins to serve a virtio vif of the description.
    pub(crate) fn begin_virtio(
        &mut self,
        number: usize,
        wanted: VirtioWanted,
        process: &mut Process,
    ) {
        let World { plane, notes, virtio, scenario, settings, .. } = self;
        let name = wanted.name.clone();
        let guest = virtio.vmms.get(number).map(|vmm| vmm.guest);
        match scenario.canary {
            Some(Canary::ForgottenOffer) => drop(notes.remove(&Note::Negotiated(name.clone()))),
            Some(Canary::ForgottenLimits) => drop(notes.remove(&Note::Settings(name.clone()))),
            _ => {}
        }
        if let Some(clean) = virtio.are_clean.get_mut(number) {
            // The front-end may need more than a process offers that knows nothing of it.
            *clean = !notes.is_stale(&Note::Negotiated(name.clone()));
            virtio.queues[number] = wanted.queues;
        }
        if notes.is_stale(&Note::Settings(name.clone())) {
            settings.forget(&name);
        }
        let place = VifPlace::Socket { path: PathBuf::from(name), mode: Mode::Client };
        let config = VhostVif { wanted, place, max_memory: None };
        let source = virtio.openers[number].begin(scenario.canary);
        let owner = guest.map(Owner::Guest);
        let added = process.add_virtio(&config, source, owner, plane);
        added.expect("nothing refuses it");
    }

    /// Gives a turn to the opener of a virtio vif and to its front-end. Returns whether one did
    /// something.
    pub(crate) fn run_virtio(&mut self, number: usize) -> Checked<bool> {
        let honest = self.virtio.vmms.len();
        let waiting = match number.checked_sub(honest) {
            None => self.virtio.vmms[number].waiting(),
            Some(intruder) => self.virtio.intruders[intruder].waiting(),
        };
        let is_described = !self.virtio.is_gone(number);
        let news = is_described.then(|| self.virtio.openers[number].turn(waiting)).flatten();
        let Some((event, socket)) = news else {
            let Some(vmm) = self.virtio.vmms.get_mut(number) else { return Ok(false) };
            let was_linked = vmm.waiting().is_none();
            let mut has_run = vmm.turn(&mut self.plane)?;
            if vmm.must_start && vmm.follow(Order::Start(1), &mut self.plane) {
                (vmm.must_start, has_run) = (false, true);
            }
            let is_lost = was_linked && vmm.waiting().is_some();
            // The end of a killed backend is no failure of the next one.
            let has_failed = is_lost && self.virtio.openers[number].has_connected();
            self.virtio.are_clean[number] &= !has_failed;
            self.check_offer(number)?;
            return Ok(has_run);
        };
        let World { plane, backend, virtio, .. } = self;
        let name = match number.checked_sub(honest) {
            None => {
                let vmm = &mut virtio.vmms[number];
                socket.into_iter().for_each(|socket| vmm.connected(socket));
                vmm.name.clone()
            }
            Some(intruder) => {
                let intruder = &mut virtio.intruders[intruder];
                socket.into_iter().for_each(|socket| intruder.connected(socket));
                intruder.name.clone()
            }
        };
        plane.journal.note(|| match &event {
            SessionEvent::Waits(obstacle) => format!("{name} waits: {}", obstacle.reason),
            SessionEvent::AreaSent(sent) => format!("an area for {name}: {sent:?}"),
            _ => format!("a front-end of {name} connects"),
        });
        let Some(backend) = backend else { return Ok(true) };
        backend.tell(&name, event, plane).map_err(|error| lost(&error))?;
        Ok(true)
    }

    /// What an administrator does to a virtio vif, or its machine does.
    pub(crate) fn virtio_trouble(&mut self, number: usize) -> Checked {
        if self.virtio.is_gone(number) {
            return self.reload(number);
        }
        let guest = self.virtio.vmms[number].guest;
        let disturbances = self.scenario.disturbances;
        if disturbances.have_links() && self.plane.choices.is_one_in(4) {
            self.change_links(guest);
            return Ok(());
        }
        match self.plane.choices.below(21) {
            0..=4 => self.move_some_queue(guest),
            5 => self.toggle_capture(guest),
            6..=7 => {
                self.change_pace(guest);
                Ok(())
            }
            8 => self.limit_virtio(number),
            9..=13 => {
                self.order(number);
                Ok(())
            }
            14..=15 if disturbances.have_deaths() => self.end_front_end(number),
            16 if disturbances.have_deaths() && self.plane.choices.is_one_in(2) => {
                self.panic_over(guest)
            }
            16 if disturbances.have_deaths() => {
                self.plane.kill_backend();
                Ok(())
            }
            17 if disturbances.have_links() || disturbances.have_deaths() => {
                self.change_socket(number);
                Ok(())
            }
            18 if disturbances.have_faults() => {
                self.exhaust(number);
                Ok(())
            }
            19 => self.release(guest),
            20 => self.reload(number),
            _ => Ok(()),
        }
    }

    /// Lets a hostile front-end act.
    pub(crate) fn intrude(&mut self) {
        self.plane.journal.count_step();
        let World { plane, virtio, .. } = self;
        let number = plane.choices.below(virtio.intruders.len());
        let intruder = &mut virtio.intruders[number];
        if let Some(mark) = intruder.act(&mut plane.choices) {
            plane.marks.hit(mark);
            plane.journal.note(|| format!("{}: {}", intruder.name, mark.name()));
        }
    }

    /// Has a guest or its machine do something.
    fn order(&mut self, number: usize) {
        let World { plane, virtio, .. } = self;
        let pairs = u16::try_from(plane.choices.from_to(1, usize::from(QUEUES_MAX))).unwrap_or(1);
        let vmm = &mut virtio.vmms[number];
        let order = plane.choices.pick(&vmm.possible(pairs));
        let mark = match order {
            Order::Start(_) => Mark::VirtioStarted,
            Order::Stop => Mark::VirtioStopped,
            Order::Pause => Mark::VirtioPaused,
            Order::Resume => Mark::VirtioResumed,
            Order::Disable => Mark::VirtioDisabled,
            Order::Enable => Mark::VirtioEnabled,
        };
        let has_followed = vmm.follow(order, plane);
        plane.marks.add(mark, u64::from(has_followed));
    }

    /// A front-end's process ends, or starts again, or closes its connection.
    fn end_front_end(&mut self, number: usize) -> Checked {
        let World { plane, virtio, .. } = self;
        let vmm = &mut virtio.vmms[number];
        virtio.are_clean[number] = false;
        match vmm.process {
            None => self.start_front_end(number),
            Some(_) if plane.choices.is_one_in(2) => {
                plane.marks.hit(Mark::FrontEndKilled);
                vmm.kill(plane);
            }
            Some(_) => {
                plane.marks.hit(Mark::FrontEndLeaves);
                vmm.disconnect(plane);
            }
        }
        let vmm = &self.virtio.vmms[number];
        let (name, process) = (&vmm.name, vmm.process);
        self.plane.journal.note(|| format!("the front-end of {name} is process {process:?}"));
        Ok(())
    }

    /// Starts the process of a front-end, unless there is one.
    pub(crate) fn start_front_end(&mut self, number: usize) {
        let World { plane, virtio, .. } = self;
        let vmm = &mut virtio.vmms[number];
        if vmm.process.is_none() {
            plane.marks.hit(Mark::FrontEndStarted);
            vmm.start_process(choose_preferences(&mut plane.choices));
        }
    }

    /// A socket is removed, something else is put there, or it is made again.
    fn change_socket(&mut self, number: usize) {
        let World { plane, virtio, .. } = self;
        let (found, mark) = plane.choices.pick(&[
            (Found::Socket, Mark::SocketReplaced),
            (Found::Nothing, Mark::SocketRemoved),
            (Found::OtherFile, Mark::SocketOfOtherKind),
        ]);
        plane.marks.hit(mark);
        plane.journal.note(|| format!("at the socket of virtio vif {number} is: {found:?}"));
        virtio.openers[number].found = found;
    }

    /// Descriptors or memory will be exhausted.
    fn exhaust(&mut self, number: usize) {
        let World { plane, virtio, .. } = self;
        plane.journal.note(|| format!("virtio vif {number} will lack resources"));
        match plane.choices.below(4) {
            0 => {
                plane.marks.hit(Mark::NoDescriptorForSocket);
                virtio.openers[number].has_shortage = true;
            }
            1 => {
                plane.marks.hit(Mark::NoDescriptorForMessage);
                virtio.vmms[number].loss = Some(Loss::Descriptors);
            }
            2 => {
                plane.marks.hit(Mark::NoMemoryForGuest);
                virtio.vmms[number].loss = Some(Loss::Memory);
            }
            _ => {
                let guest = virtio.vmms[number].guest;
                plane.refuse_queues(guest);
            }
        }
    }

    /// An administrator sets a limit of a virtio vif.
    fn limit_virtio(&mut self, number: usize) -> Checked {
        let name = self.virtio.vmms[number].name.clone();
        // A bridge floods by itself.
        let is_patched = self.scenario.are_patched[self.virtio.vmms[number].guest];
        let (limit, value) =
            self.plane.choices.pick(if is_patched { &LIMITS[..OF_BRIDGED] } else { &LIMITS });
        let key = Limit::named(limit).map_or("", |limit| limit.key);
        let request = BackendRequest::SetLimit {
            vif: name.clone(),
            limit: limit.to_owned(),
            value: value.to_owned(),
        };
        match self.ask(&request)? {
            Ok(CallReply::Done) => {
                self.plane.marks.hit(Mark::VirtioLimited);
                self.settings.set(&name, key, value);
                Ok(())
            }
            // It applies, and is noted once there is room.
            Err(reason) if reason.contains("lost if the backend restarts") => {
                self.settings.set(&name, key, value);
                Ok(())
            }
            Err(reason) if reason == ENDED => {
                self.settings.set(&name, key, value);
                Ok(())
            }
            reply => Err(Flaw::new(Rule::Calls, format!("{request:?}: {reply:?}"))),
        }
    }

    /// The name of a guest's vif.
    pub(crate) fn name_of(&self, guest: usize) -> String {
        match guest.checked_sub(self.scenario.guests) {
            None => vif_name(vif_of(self.plane.guests[guest].domid)),
            Some(number) => self.virtio.vmms[number].name.clone(),
        }
    }

    /// All virtio vifs leave, as when the description has them no more.
    pub(crate) fn remove_virtio(&mut self) -> Checked {
        let vmms = self.virtio.vmms.iter().map(|vmm| vmm.name.clone());
        let names: Vec<String> =
            vmms.chain(self.virtio.intruders.iter().map(|it| it.name.clone())).collect();
        let is_at_once = self.plane.choices.is_one_in(2);
        if is_at_once {
            self.reload_without_virtio(&names)?;
        }
        let World { plane, backend, virtio, .. } = self;
        for name in names.iter().filter(|_| !is_at_once) {
            if let Some(backend) = backend {
                let removed = backend.on(Event::Removed(name.clone()), plane);
                removed.map_err(|error| lost(&error))?;
            }
        }
        virtio.openers.clear();
        virtio.vmms.iter_mut().for_each(|vmm| vmm.kill(plane));
        virtio.intruders.clear();
        self.check_virtio_release(&names)
    }
}

/// What the description says of a vif.
pub(crate) fn described(
    name: String,
    queues: u16,
    (guest, bridge): (Option<usize>, Option<String>),
) -> VirtioWanted {
    VirtioWanted {
        name,
        queues,
        offloads: OffloadCaps::ALL,
        bridge,
        iface_id: None,
        vm_uuid: None,
        bind: Bind::default(),
        features: Features(u64::MAX),
        protocol: PROTOCOL_FEATURES,
        mac: guest.map(mac_of),
        rules: PortRules::default(),
        limits: VifLimits::default(),
        others: Vec::new(),
    }
}

/// What a front-end wants to use.
fn choose_preferences(choices: &mut Choices) -> Preferences {
    let mut features = Features::of(&[VIRTIO_F_VERSION_1, VIRTIO_NET_F_MQ]);
    for bits in [
        &[VIRTIO_RING_F_EVENT_IDX][..],
        &[VIRTIO_RING_F_INDIRECT_DESC],
        &[VIRTIO_NET_F_MRG_RXBUF],
        &[VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_TSO4],
        &[VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4],
        &[VIRTIO_F_IN_ORDER],
    ] {
        if !choices.is_one_in(4) {
            features = features.or(Features::of(bits));
        }
    }
    if choices.is_one_in(3) {
        features = features.or(Features::of(&[VIRTIO_F_RING_PACKED]));
    }
    let mut protocol = VHOST_USER_PROTOCOL_F_MQ | VHOST_USER_PROTOCOL_F_REPLY_ACK;
    for bit in [
        VHOST_USER_PROTOCOL_F_STATUS,
        VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
        VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD,
    ] {
        protocol |= if choices.is_one_in(2) { bit } else { 0 };
    }
    let pairs = u16::try_from(choices.from_to(1, usize::from(QUEUES_MAX))).unwrap_or(1);
    Preferences { features, protocol, pairs }
}
