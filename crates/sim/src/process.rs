//! A backend's process: the real control plane, and the world that it is given.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ringway_calls::BackendRequest;
use ringway_host::{
    AddedVirtio, CallReply, Charged, Connection, Devices, Event, EventOf, Followed, Host,
    HostConfig, Hosting, Joining, MemoryOf, NotDone, Parts, Phase, Retried, Scope, Session as _,
    SessionEventOf, Shared, VifState, VirtioVif, World, unlimited, watch,
};
use ringway_host_shell::{SessionEvent, VhostSession, VhostVif};
use ringway_hypervisor::{EventChannel, Hypervisor, QueueEvents};
use ringway_loopback::{Loopback, LoopbackDomain, LoopbackEvent, LoopbackGrants};
use ringway_netback::{ControlRole, Interrupted, QueueParts, VifQueue};
use ringway_switch::PortId;
use ringway_vhost::backend::Missing;
use ringway_vif_shell::device;
use ringway_wire::{DomId, EvtchnPort};
use ringway_xenbus::{Vif, XenbusState};
use ringway_xenstore::{
    Client, Events, LocalStore, LocalTransport, Lost, Reply, Request, Transport, Watched,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::canary::Canary;
use crate::device::Tap;
use crate::flaw::{Flaw, Rule};
use crate::kernel::SimKernel;
use crate::ledger::Owner;
use crate::marks::Mark;
use crate::notes::KeptNotes;
use crate::plane::DataPlane;
use crate::port::Port;
use crate::scenario::HOST;
use crate::socket::Source;
use crate::witness::{WatchedMemory, Witness};

/// How the devices of this host are marked.
pub(crate) const OWNER: &str = "here";

/// The world that the control plane is given.
pub(crate) struct Simulated;

impl World for Simulated {
    type Engines = DataPlane;
    type Store = KillableTransport;
    type Hypervisor = WatchedDomain;
    type Kernel = SimKernel<Tap>;
    type Notes = Retried<KeptNotes>;
    type Session = VhostSession<Port, Source>;

    fn vif_queue(
        parts: QueueParts<MemoryOf<Self>, EventOf<Self>>,
        lent: Option<MemoryOf<Self>>,
        control: ControlRole<EventOf<Self>>,
        interrupted: &mut Interrupted,
        plane: &mut DataPlane,
    ) -> io::Result<Port> {
        let guest = parts.peer;
        let owner = plane.guests.iter().position(|honest| honest.domid == guest);
        let served = match &control {
            ControlRole::Serves(parts) => Some((&parts.ring, parts.event.port())),
            _ => None,
        };
        let (control_ring, control_event) = served.unzip();
        let rings = [&parts.tx_ring, &parts.rx_ring];
        let rings = owner.map(|_| plane.witness.show(guest, rings, control_ring));
        let owner = owner.map(|guest| (Owner::Guest(guest), plane.ledger.clone()));
        let counters = Arc::clone(&parts.counters);
        let mut events = match &parts.events {
            QueueEvents::Split { tx, rx } => vec![tx.port(), rx.port()],
            QueueEvents::Single(both) => vec![both.port()],
        };
        events.extend(control_event);
        let multicast = parts.multicast.clone();
        let mut queue = VifQueue::attach(parts).map_err(io::Error::other)?;
        *interrupted += queue.interrupted();
        if let Some(memory) = lent {
            queue.lend_pages(memory.for_ends());
        }
        queue.join_control(control).map_err(io::Error::other)?;
        Ok(Port::of_vif((queue, multicast), counters, events, owner, plane.canary, rings))
    }
}

/// A domain whose handles on the memory of guests have a witness.
#[derive(Clone)]
pub(crate) struct WatchedDomain {
    pub(crate) domain: LoopbackDomain,
    pub(crate) machine: Loopback,
    pub(crate) witness: Witness,
}

impl Hypervisor for WatchedDomain {
    type Memory = WatchedMemory;
    type Grants = LoopbackGrants;
    type Event = LoopbackEvent;

    fn domid(&self) -> DomId {
        self.domain.domid()
    }

    fn memory(&self) -> io::Result<WatchedMemory> {
        Ok(WatchedMemory::new(self.domain.memory()?, &self.machine, &self.witness))
    }

    fn grants(&self) -> io::Result<LoopbackGrants> {
        self.domain.grants()
    }

    fn alloc_unbound(&self, remote: DomId) -> io::Result<LoopbackEvent> {
        self.domain.alloc_unbound(remote)
    }

    fn bind_interdomain(&self, remote: DomId, port: EvtchnPort) -> io::Result<LoopbackEvent> {
        self.domain.bind_interdomain(remote, port)
    }
}

fn is_of_rate(watched: &Watched) -> bool {
    matches!(watched, Watched::Node(event) if event.path.ends_with("/rate"))
}

/// The most vifs that a process takes over in a turn.
const TOGETHER: usize = 4;

/// How many requests a process has made of XenStore.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    made: Cell<u64>,
    waits: Cell<u64>,
    most_in_a_turn: Cell<u64>,
}

impl Requests {
    pub(crate) fn made(&self) -> u64 {
        self.made.get()
    }

    /// How often it has waited for replies: requests that are made together have one wait.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.get()
    }

    pub(crate) fn most_in_a_turn(&self) -> u64 {
        self.most_in_a_turn.get()
    }

    /// Notes the end of a turn before which so many had been made, and in which it took over so
    /// many vifs.
    fn note_turn(&self, before: u64, vifs: usize) {
        let vifs = u64::try_from(vifs.clamp(1, TOGETHER)).unwrap_or(1);
        let for_a_vif = (self.made.get() - before).div_ceil(vifs);
        self.most_in_a_turn.set(self.most_in_a_turn.get().max(for_a_vif));
    }
}

/// A session of XenStore that ends with its process.
pub(crate) struct KillableTransport {
    transport: LocalTransport,
    is_alive: Rc<Cell<bool>>,
    requests: Rc<Requests>,
}

impl Transport for KillableTransport {
    fn request(&mut self, request: Request<'_>, events: &mut Events) -> Result<Reply, Lost> {
        let reply = self.requests(&[request], events)?.pop();
        Ok(reply.expect("each request has a reply"))
    }

    fn requests(
        &mut self,
        requests: &[Request<'_>],
        events: &mut Events,
    ) -> Result<Vec<Reply>, Lost> {
        let Requests { made, waits, .. } = &*self.requests;
        made.set(made.get() + u64::try_from(requests.len()).unwrap_or(u64::MAX));
        waits.set(waits.get() + u64::from(!requests.is_empty()));
        match self.is_alive.get() {
            true => self.transport.requests(requests, events),
            false => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }

    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost> {
        self.transport.take_events(events)
    }
}

/// The control thread of a backend's process.
pub(crate) struct Process {
    pub(crate) host: Host<Simulated>,
    store: Client<KillableTransport>,
    pub(crate) requests: Rc<Requests>,
    hypervisor: WatchedDomain,
    devices: Devices<SimKernel<Tap>>,
    notes: Retried<KeptNotes>,
    /// For what the kernel announces.
    kernel: SimKernel<Tap>,
    /// The version of the kernel that was last announced.
    seen: u64,
    /// The version for which nothing was left to do, or nothing could be done.
    settled: Option<u64>,
    /// The version for which all devices were followed.
    followed: u64,
    /// Whether all vifs that existed at the start have been served.
    pub(crate) has_begun: bool,
    /// Places of virtio vifs that may have more to do.
    unfinished: BTreeSet<usize>,
    /// By the places of virtio vifs: the version for which they could not have their device.
    missed: BTreeMap<usize, u64>,
}

impl Process {
    /// A process that has just started and searches for vifs.
    pub(crate) fn start(
        store: &LocalStore,
        (hypervisor, kernel): (WatchedDomain, SimKernel<Tap>),
        config: HostConfig,
        (notes, now): (&KeptNotes, Instant),
        is_alive: Rc<Cell<bool>>,
    ) -> Result<Process, Lost> {
        let transport =
            LocalTransport::open(store, HOST).expect("domain 0 has no limit of sessions");
        let requests = Rc::<Requests>::default();
        let transport = KillableTransport { transport, is_alive, requests: Rc::clone(&requests) };
        let mut store = Client::with_transport(transport);
        watch(&mut store, &Scope::Domain, HOST)?.expect("domain 0 may watch");
        device::remove_stale_errors(&mut store, HOST)?;
        notes.begin_process();
        let mut notes = Retried::new(notes.clone());
        let host = Host::new(Shared::new(config, &mut notes, now), Scope::Domain);
        let mut devices = Devices::kept(kernel.clone(), OWNER, &mut notes);
        if let Some(keeper) = devices.keeper() {
            keeper.joining = Joining::Possible;
        }
        Ok(Process {
            host,
            store,
            requests,
            hypervisor,
            devices,
            notes,
            seen: kernel.version(),
            kernel,
            settled: None,
            followed: 0,
            has_begun: false,
            unfinished: BTreeSet::new(),
            missed: BTreeMap::new(),
        })
    }

    /// The state of the vif with this name, of either kind.
    pub(crate) fn state(&self, name: &str) -> Option<&VifState<Simulated>> {
        self.host.states().find(|state| state.name == name)
    }

    /// The port of this vif, and the one that it is patched to.
    pub(crate) fn ports_of(&self, name: &str) -> impl Iterator<Item = PortId> + use<> {
        let connection = self.state(name).and_then(|state| state.connection.as_ref());
        connection.map(Connection::ports).into_iter().flatten()
    }

    /// Whether a vif is connected, as far as the backend knows.
    pub(crate) fn is_connected(&self, vif: Vif) -> bool {
        let vif = self.host.vif(vif);
        vif.is_some_and(|vif| vif.end.state() == XenbusState::Connected)
    }

    /// Why a vif is closed, if it is.
    pub(crate) fn error(&self, vif: Vif) -> Option<&str> {
        self.host.vif(vif)?.end.error()
    }

    /// The fault of the device of the vif with this name, or none, if it has a device.
    pub(crate) fn fault(&self, name: &str) -> Option<Option<String>> {
        let device = self.state(name)?.device.as_ref()?;
        Some(device.fault.clone())
    }

    /// The version of the kernel for which the device of a vif was followed, if it has one.
    pub(crate) fn seen_of(&self, name: &str) -> Option<u64> {
        self.fault(name).map(|_| self.followed)
    }

    /// When a deferred action is due. What cannot be done for devices is not tried again before the
    /// kernel changes.
    pub(crate) fn due(&self) -> Option<Instant> {
        let version = self.kernel.version();
        let comparison =
            self.host.shared.comparison.due().filter(|_| self.settled != Some(version));
        let is_futile = |place| self.missed.get(&place) == Some(&version);
        let virtio = self.host.virtio().enumerate().filter(|(place, _)| !is_futile(*place));
        let virtio = virtio.filter_map(|(_, vif)| vif.due());
        let xen = self.host.vifs().filter_map(|(_, vif)| vif.due());
        xen.chain(virtio).chain(comparison).min()
    }

    /// Does something with what vifs are served with.
    pub(crate) fn act<R>(
        &mut self,
        plane: &mut DataPlane,
        act: impl FnOnce(&mut Hosting<'_, Simulated>) -> R,
    ) -> R {
        let now = plane.now;
        let Process { host, store, hypervisor, devices, notes, .. } = self;
        let mut parts = Parts { store, engines: plane, hypervisor, devices, notes };
        act(&mut parts.split(&mut host.shared, now).1)
    }

    /// Carries out a call.
    pub(crate) fn call(
        &mut self,
        request: &BackendRequest,
        plane: &mut DataPlane,
    ) -> Result<CallReply, NotDone> {
        let (wall, now) = (SystemTime::UNIX_EPOCH, plane.now);
        let Process { host, store, hypervisor, devices, notes, .. } = self;
        let parts = &mut Parts { store, engines: plane, hypervisor, devices, notes };
        host.call(request, wall, now, parts)
    }

    /// Handles one pending event, if there is one, or gives one vif its turn.
    pub(crate) fn turn(&mut self, plane: &mut DataPlane) -> Result<bool, Lost> {
        let (before, vifs) = (self.requests.made(), self.host.vifs().count());
        let has_run = self.take_turn(plane)?;
        if plane.canary == Some(Canary::FreshBudgets) {
            let apart = self.host.states_mut().1.filter(|state| state.connection.is_none());
            apart.for_each(|state| state.limited.flood = unlimited());
        }
        while plane.canary == Some(Canary::LongTurn) && self.take_turn(plane)? {}
        let begun = self.host.vifs().count().saturating_sub(vifs);
        self.requests.note_turn(before, begun);
        Ok(has_run)
    }

    fn take_turn(&mut self, plane: &mut DataPlane) -> Result<bool, Lost> {
        let now = plane.now;
        self.host.follow_ports();
        if let Some(down) = self.host.shared.next_report(plane) {
            self.on(Event::QueueDown(down), plane)?;
            return Ok(true);
        }
        if self.follow_devices(plane) {
            return Ok(true);
        }
        if self.turn_virtio(plane) {
            return Ok(true);
        }
        self.host.note_due(now);
        if plane.choices.is_one_in(16) {
            let Process { host, store, hypervisor, devices, notes, .. } = self;
            host.housekeep(now, &mut Parts { store, engines: plane, hypervisor, devices, notes });
            self.catch_up(plane);
        }
        // Any number of events may come before the next turn, and between two turns.
        if !self.host.has_turns() || plane.choices.is_one_in(2) {
            if let Some(watched) = self.store.next_watch()? {
                if plane.canary == Some(Canary::LostSetting) && is_of_rate(&watched) {
                    return Ok(true);
                }
                plane.journal.note(|| format!("backend: {watched:?}"));
                self.on(Event::Watch(watched), plane)?;
                return Ok(true);
            }
        }
        let Process { host, store, hypervisor, devices, notes, .. } = self;
        let mut parts = Parts { store, engines: plane, hypervisor, devices, notes };
        let has_run = host.turn(now, &mut parts)?;
        if has_run {
            plane.journal.note(|| "backend: a vif has had its turn".to_owned());
        } else if !std::mem::replace(&mut self.has_begun, true) {
            devices.delete_stale(|purpose, link| host.needs_device(purpose, link), notes);
        }
        Ok(has_run)
    }

    /// Writes notes that could not be written before, as it does from time to time.
    pub(crate) fn catch_up(&mut self, plane: &mut DataPlane) {
        if self.notes.is_owing() && plane.canary != Some(Canary::UnwrittenNotes) {
            self.notes.catch_up();
            plane.marks.add(Mark::NoteLate, u64::from(!self.notes.is_owing()));
        }
    }

    /// Follows what has become of network devices, if it is time to.
    fn follow_devices(&mut self, plane: &mut DataPlane) -> bool {
        let (now, version) = (plane.now, self.kernel.version());
        let is_announced = plane.canary != Some(Canary::UnseenLinks);
        if std::mem::replace(&mut self.seen, version) != version && is_announced {
            self.host.shared.comparison.note_change(now);
        }
        let planned = plane.faults_left();
        let Process { host, store, hypervisor, devices, notes, .. } = self;
        let mut parts = Parts { store, engines: plane, hypervisor, devices, notes };
        let Some(followed) = host.follow_devices(now, &mut parts) else { return false };
        // What was refused once is not refused again.
        let is_same = self.kernel.version() == version && plane.faults_left() == planned;
        self.settled = is_same.then_some(version);
        if followed == Followed::Done {
            self.followed = version;
        }
        self.misbehave(plane.canary);
        plane.journal.note(|| format!("backend: has followed the network devices: {followed:?}"));
        true
    }

    /// Intended defects.
    fn misbehave(&mut self, canary: Option<Canary>) {
        let devices = self.host.states_mut().1.filter_map(|state| state.device.as_mut());
        for device in devices {
            match canary {
                Some(Canary::ReturnedDevice) => {
                    // The bridge may be missing.
                    let _ = self.kernel.set_master(&device.name(), Some(&device.attached_to));
                }
                Some(Canary::HiddenFault) => device.fault = None,
                _ => {}
            }
        }
    }

    pub(crate) fn on(
        &mut self,
        event: Event<SessionEventOf<Simulated>>,
        plane: &mut DataPlane,
    ) -> Result<(), Lost> {
        let now = plane.now;
        let Process { host, store, hypervisor, devices, notes, .. } = self;
        host.on(event, now, &mut Parts { store, engines: plane, hypervisor, devices, notes })
    }
}

/// Virtio vifs.
impl Process {
    /// Begins to serve a virtio vif, as the description of the host says.
    pub(crate) fn add_virtio(
        &mut self,
        config: &VhostVif,
        source: Source,
        owner: Option<Owner>,
        plane: &mut DataPlane,
    ) -> Result<(), String> {
        let owner = owner.map(|owner| (owner, plane.ledger.clone()));
        let canary = plane.canary;
        let queue = move |pair, counters: &_| Port::of_pair(pair, counters, owner.clone(), canary);
        let session = || VhostSession::new(config, source, queue);
        let (wanted, phase) = (config.wanted.clone(), Phase::Start);
        let added = AddedVirtio { wanted, at_run_time: false, phase };
        let now = plane.now;
        let Process { host, store, hypervisor, devices, notes, .. } = self;
        let mut parts = Parts { store, engines: plane, hypervisor, devices, notes };
        host.add_virtio(added, session, now, &mut parts)
    }

    /// Acts on the control plane.
    pub(crate) fn with_parts<R>(
        &mut self,
        plane: &mut DataPlane,
        act: impl FnOnce(&mut Host<Simulated>, &mut Parts<'_, Simulated>) -> R,
    ) -> R {
        let Process { host, store, hypervisor, devices, notes, .. } = self;
        act(host, &mut Parts { store, engines: plane, hypervisor, devices, notes })
    }

    /// Its virtio vifs.
    pub(crate) fn virtio(&self) -> impl Iterator<Item = &VirtioVif<Simulated>> {
        self.host.virtio()
    }

    /// Virtio vifs may have other places: each gets a turn.
    pub(crate) fn note_places(&mut self) {
        self.unfinished = (0..self.host.virtio().len()).collect();
        self.missed.clear();
    }

    /// Tells the session of a virtio vif something, which then gets a turn.
    pub(crate) fn tell(
        &mut self,
        name: &str,
        event: SessionEvent,
        plane: &mut DataPlane,
    ) -> Result<(), Lost> {
        self.unfinished.extend(self.host.virtio().position(|vif| vif.state.name == name));
        self.on(Event::Session(name.to_owned(), event), plane)
    }

    /// Gives a turn to one virtio vif with work, if there is one.
    fn turn_virtio(&mut self, plane: &mut DataPlane) -> bool {
        let now = plane.now;
        let vifs = self.host.virtio().enumerate();
        let with_work = vifs.filter(|(place, vif)| {
            let is_told = self.unfinished.contains(place) || is_readable(vif.session.waker());
            (is_told && !vif.is_closed()) || vif.due().is_some_and(|due| due <= now)
        });
        let mut places: Vec<usize> = with_work.map(|(place, _)| place).collect();
        if plane.canary == Some(Canary::StuckTurn) {
            // The loop waits for the rest of a message.
            let is_begun = |vif: &VirtioVif<Simulated>| {
                vif.session.error().is_some_and(|error| error.contains("bytes of a message"))
            };
            if let Some(stuck) = self.host.virtio().position(is_begun) {
                places.retain(|place| *place == stuck);
            }
        }
        if places.is_empty() {
            return false;
        }
        let place = plane.choices.pick(&places);
        self.unfinished.remove(&place);
        let was_to_refuse = self.kernel.will_refuse();
        let before = (self.kernel.version(), self.kernel.opened());
        let Process { host, store, hypervisor, devices, notes, .. } = self;
        let mut parts = Parts { store, engines: plane, hypervisor, devices, notes };
        let more = host.turn_virtio(place, now, &mut parts).expect("a source never ends");
        self.unfinished.extend(more.then_some(place));
        let is_unattached =
            self.host.virtio().nth(place).is_some_and(|vif| vif.why_unattached().is_some());
        if is_unattached && was_to_refuse == self.kernel.will_refuse() {
            // It is repeated every few seconds.
            if before != (self.kernel.version(), self.kernel.opened()) {
                let found = format!("virtio vif {place} disturbs links as it waits for its bridge");
                plane.flaw.get_or_insert_with(|| Flaw::new(Rule::Rest, found));
            }
            self.missed.insert(place, before.0);
        }
        if plane.canary == Some(Canary::LeftPairs) {
            let virtio =
                self.host.states_mut().1.filter(|it| matches!(it.charged, Charged::Virtio(_)));
            virtio.for_each(|state| drop(state.connection.take()));
        }
        self.check_attached(place, plane);
        plane.journal.note(|| format!("backend: virtio vif {place} has had its turn"));
        true
    }

    /// After each turn, a virtio vif is attached if its front-end has passed what that needs, and
    /// only then, unless that was deferred.
    fn check_attached(&self, place: usize, plane: &mut DataPlane) {
        let is_deferred = |vif: &VirtioVif<_>| vif.due() != vif.state.announcement_due();
        let Some(vif) = self.host.virtio().nth(place).filter(|vif| !is_deferred(vif)) else {
            return;
        };
        let said = vif.session.said();
        let is_ready = said.is_some_and(|said| said.missing() == Missing::Nothing);
        let is_attached = vif.state.connection.is_some();
        if plane.is_alive.get() && is_ready != is_attached {
            let name = &vif.state.name;
            let found = format!("{name}: is ready {is_ready}, is attached {is_attached}");
            plane.flaw.get_or_insert_with(|| Flaw::new(Rule::Handshake, found));
        }
    }
}

/// Whether a descriptor has what is waited for.
fn is_readable(waker: Option<(BorrowedFd<'_>, PollFlags)>) -> bool {
    let Some((fd, flags)) = waker else { return false };
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}
