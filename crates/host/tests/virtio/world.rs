//! A host in a world without frames, whose front-ends do what a test says.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use ringway_calls::{BackendRequest, VifStatus};
use ringway_datapath::{
    Budget, DropReason, FrameBatch, FramePool, FrameQueue, OffloadCaps, PeerProgress, Pending,
    PoolBudget, PortQueue, QueueCounters, QueueTraits, Result, VlanRules, Woken,
};
use ringway_engine::steps::{Command, Engines, NewPort, Taken};
use ringway_engine::{Attached, Failure, QueueAddress, Roster};
use ringway_host::{
    AddedVirtio, CallReply, Devices, Event, EventOf, Host, HostConfig, Joining, MemoryOf, Parts,
    Passed, Phase, Purpose, Rings, Scope, Session, SessionHost, SessionPlace, Shared, UplinkPort,
    UplinkRules, VirtioVif, VirtioWanted, World,
};
use ringway_loopback::{Limits, Loopback, LoopbackDomain};
use ringway_netback::{ControlRole, Interrupted, QueueParts};
use ringway_ovs::Bind;
use ringway_sim::{KeptNotes, SimKernel, SimTap, Wire};
use ringway_switch::{PortId, SwitchConfig};
use ringway_vhost::Backend;
use ringway_vhost::backend::{Missing, Negotiated};
use ringway_vif_shell::device;
use ringway_wire::DomId;
use ringway_wire::virtio::Features;
use ringway_xenbus::Device;
use ringway_xenstore::{Client, LocalStore, LocalTransport, Quota};

/// A queue without frames.
pub(crate) struct Silent;

impl PortQueue for Silent {
    fn ingress(&mut self, _: Budget, _: &mut FramePool, _: &mut FrameBatch) -> Result {
        Ok(())
    }

    fn settle(&mut self, _: &mut FramePool) -> Result {
        Ok(())
    }

    fn egress(&mut self, _: &mut FrameQueue, _: &mut FramePool) -> Result {
        Ok(())
    }

    fn arm(&mut self) -> Result<Pending> {
        Ok(Pending::Nothing)
    }

    fn woken(&mut self, _: Woken) -> Result {
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits::in_memory(OffloadCaps::ALL)
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        None
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        None
    }
}

/// The wire of a TAP device.
#[derive(Clone, Default)]
pub(crate) struct Cable;

impl Wire for Cable {
    type Queue = Silent;

    fn queues(&self, counters: &[Arc<QueueCounters>]) -> Vec<Silent> {
        counters.iter().map(|_| Silent).collect()
    }
}

/// One engine, which keeps queues and never runs.
pub(crate) struct Idle {
    roster: Roster,
    queues: Vec<Attached<Silent>>,
    /// The ports to which those were patched that were attached last.
    pub(crate) patched: Vec<Option<PortId>>,
    pub(crate) failures: Vec<Failure<Silent>>,
    /// How often a queue got other rules.
    pub(crate) policies: usize,
    /// Whether frames had to leave complete by limits that it was given, in order.
    pub(crate) plain: Vec<bool>,
    /// Why no frame passed by those limits, if none did, in order.
    pub(crate) shut: Vec<Option<DropReason>>,
    /// How it was disturbed, in order.
    pub(crate) disturbed: Vec<String>,
    /// Frames that announce stations, in order.
    pub(crate) announced: Vec<Vec<u8>>,
    /// How often a queue was to send those that have not been sent.
    pub(crate) announcements: usize,
    now: Instant,
}

impl Engines for Idle {
    type Queue = Silent;
    type Gone = Infallible;

    fn roster(&mut self) -> Result<&mut Roster, Infallible> {
        Ok(&mut self.roster)
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn choose_places(&mut self, port: &NewPort<'_>, count: u16) -> io::Result<Vec<QueueAddress>> {
        let (port, patched_to) = (port.id, port.forwarding.patched_to());
        self.patched.push(patched_to);
        Ok((0..count).map(|queue| self.roster.place(port, queue, patched_to, 0)).collect())
    }

    fn attached(&mut self, _: PortId) {}

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn next_failure(&mut self) -> Option<Failure<Silent>> {
        self.failures.pop()
    }

    fn command(&mut self, _: usize, command: Command<Silent>) -> Result<(), Infallible> {
        match command {
            Command::Attach { attached } => self.queues.push(*attached),
            Command::SetPolicy { .. } => self.policies += 1,
            Command::Limit { limits, .. } => {
                self.plain.push(limits.is_plain);
                self.shut.push(limits.shut);
            }
            Command::Announce { announcement, .. } => {
                self.announcements += 1;
                self.announced.extend(std::iter::from_fn(|| announcement.next_frame()));
            }
            Command::Panic { .. } => self.disturbed.push("Panic".to_owned()),
            Command::Stall { stall, .. } => self.disturbed.push(format!("{stall:?}")),
            _ => {}
        }
        Ok(())
    }

    fn wait_until_applied(&mut self, _: &BTreeSet<usize>) -> Result<(), Infallible> {
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn wait_until_seen(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn take_back(&mut self, from: &QueueAddress) -> Result<Taken<Silent>, Infallible> {
        let place = self.queues.iter().position(|queue| queue.id() == from.slot);
        Ok(place.map(|place| Box::new(self.queues.remove(place))))
    }

    fn release(&mut self, attached: Attached<Silent>) {
        attached.into_queue(&mut FramePool::new(PoolBudget::new(1 << 20)));
    }

    fn nudge_all(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// What a front-end does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    /// This process connects.
    Connect(u32),
    /// It starts a pair, which is enabled or not.
    Start(u16, bool),
    /// It stops a pair.
    Stop(u16),
    /// All changes so far are known.
    Apply,
    /// It wants this address announced.
    Announce([u8; 6]),
    /// It and its guest have negotiated this.
    Negotiate(Negotiated),
    /// Its pair with this number cannot be served from now on.
    Break(Option<u16>),
    /// It disconnects.
    Leave,
}

/// A front-end as its host sees it, with what the host has asked of it.
#[derive(Default)]
pub(crate) struct Front {
    pub(crate) said: Option<Backend>,
    pub(crate) turns: usize,
    /// Why it was closed, in order.
    pub(crate) closed: Vec<String>,
    pub(crate) rings: FrontRings,
    /// The refusals of its last changes.
    pub(crate) refused: Option<String>,
    /// Whether it is no front-end, but the device of a network namespace.
    pub(crate) is_namespace: bool,
}

#[derive(Default)]
pub(crate) struct FrontRings {
    bad_pair: Option<u16>,
    pub(crate) taken_back: usize,
}

impl Rings<Silent> for FrontRings {
    fn queue(&mut self, pair: u16, _: &Arc<QueueCounters>) -> io::Result<(Silent, OffloadCaps)> {
        match self.bad_pair == Some(pair) {
            true => Err(io::Error::other(format!("pair {pair} is bad"))),
            false => Ok((Silent, OffloadCaps::ALL)),
        }
    }

    fn taken_back(&mut self) {
        self.taken_back += 1;
    }
}

impl Session<Silent> for Front {
    type Event = Act;

    fn turn(&mut self, _: &mut impl SessionHost<Silent>, _: Instant) -> io::Result<bool> {
        self.turns += 1;
        Ok(false)
    }

    fn on(&mut self, act: Act, host: &mut impl SessionHost<Silent>, _: Instant) {
        let rings = &mut self.rings;
        match act {
            Act::Connect(process) => self.said = Some(Backend::new(host.offer(Some(process)))),
            Act::Start(pair, is_enabled) => host.start(pair, is_enabled, rings),
            Act::Stop(pair) => host.stop(pair, rings),
            Act::Apply => self.refused = host.apply_changes(rings).err(),
            Act::Announce(mac) => host.announce(mac),
            Act::Negotiate(negotiated) => host.negotiated(negotiated),
            Act::Break(pair) => rings.bad_pair = pair,
            Act::Leave => {
                self.said = None;
                host.reset(rings);
            }
        }
    }

    fn close(&mut self, reason: &str, host: &mut impl SessionHost<Silent>, _: Instant) {
        self.closed.push(reason.to_owned());
        self.said = None;
        host.reset(&mut self.rings);
    }

    fn end(&mut self, host: &mut impl SessionHost<Silent>, now: Instant) {
        self.close("removed", host, now);
    }

    fn due(&self) -> Option<Instant> {
        None
    }

    fn is_serving(&self) -> bool {
        self.is_namespace || self.said.as_ref().is_some_and(|it| it.missing() == Missing::Nothing)
    }

    fn said(&self) -> Option<&Backend> {
        self.said.as_ref()
    }

    fn error(&self) -> Option<String> {
        self.said.is_none().then(|| "no front-end is connected".to_owned())
    }

    fn lacks_guest(&self) -> bool {
        self.said.is_none()
    }

    fn blank_pairs(&self) -> Vec<u16> {
        Vec::new()
    }

    fn place(&self) -> SessionPlace {
        match self.is_namespace {
            true => {
                let (path, device) = ("/run/netns/web".to_owned(), "eth0".to_owned());
                SessionPlace::Namespace { path, device }
            }
            false => SessionPlace::Socket { path: "/run/vm1".to_owned(), mode: "client" },
        }
    }

    fn may_lose_memory(&self) -> bool {
        false
    }
}

/// The world of such a host.
pub(crate) struct Quiet;

impl World for Quiet {
    type Engines = Idle;
    type Store = LocalTransport;
    type Hypervisor = LoopbackDomain;
    type Kernel = SimKernel<Cable>;
    type Notes = KeptNotes;
    type Session = Front;

    fn vif_queue(
        _: QueueParts<MemoryOf<Self>, EventOf<Self>>,
        _: Option<MemoryOf<Self>>,
        _: ControlRole<EventOf<Self>>,
        _: &mut Interrupted,
        _: &mut Idle,
    ) -> io::Result<Silent> {
        Ok(Silent)
    }
}

/// A host, and its machine.
pub(crate) struct Machine {
    pub(crate) host: Host<Quiet>,
    pub(crate) engines: Idle,
    pub(crate) kernel: SimKernel<Cable>,
    pub(crate) notes: KeptNotes,
    /// Where guests of Xen are.
    pub(crate) loopback: Loopback,
    store: Client<LocalTransport>,
    hypervisor: LoopbackDomain,
    devices: Devices<SimKernel<Cable>>,
    pub(crate) now: Instant,
}

impl Machine {
    /// A host that has just started on a machine with these links and notes.
    pub(crate) fn start(kernel: SimKernel<Cable>, mut notes: KeptNotes) -> Machine {
        let now = Instant::now();
        let mut roster = Roster::default();
        roster.add_engine();
        let (queues, patched, failures) = (Vec::new(), Vec::new(), Vec::new());
        let (plain, disturbed, announced) = (Vec::new(), Vec::new(), Vec::new());
        let engines = Idle {
            roster,
            queues,
            patched,
            failures,
            policies: 0,
            plain,
            shut: Vec::new(),
            disturbed,
            announced,
            announcements: 0,
            now,
        };
        let store = LocalStore::new(Quota::default()).connect(DomId(0)).expect("the first");
        let loopback = Loopback::new();
        let hypervisor = loopback.create_domain(DomId(0), Limits::default());
        let hypervisor = hypervisor.expect("the first");
        let config = HostConfig {
            max_queues: 1,
            balances_flows: false,
            split_event_channels: false,
            offloads: OffloadCaps::ALL,
            locking: None,
            switch: SwitchConfig::unlimited(64, 8, 1),
            mtu: 1500,
        };
        let host = Host::new(Shared::new(config, &mut notes, now), Scope::Domain);
        let devices = Devices::kept(kernel.clone(), "here", &mut notes);
        Machine { host, engines, kernel, notes, loopback, store, hypervisor, devices, now }
    }

    /// Ports of Open vSwitch can be asked for from now on.
    pub(crate) fn allow_ports(&mut self) {
        self.devices.keeper().expect("it keeps devices").joining = Joining::Possible;
    }

    /// Another process keeps the network devices from now on.
    pub(crate) fn without_netlink(&mut self) {
        self.devices = Devices::Passed(BTreeMap::new());
    }

    /// That process passes this of the device of a vif.
    pub(crate) fn pass(&mut self, vif: &Purpose, passed: Passed<SimTap<Cable>>) {
        self.act(|_, _, parts| parts.devices.pass(vif.clone(), passed));
        self.on(Event::DevicePassed(vif.clone()));
    }

    /// The switch has the uplink `ringway0`, of one queue.
    pub(crate) fn attach_uplink(&mut self) {
        let queues = vec![(Silent, Arc::default())];
        let rules = UplinkRules::without_limits(VlanRules::default());
        self.act(|host, now, parts| {
            let hosting = &mut parts.split(&mut host.shared, now).1;
            let uplink = UplinkPort::attach("ringway0", &rules, queues, hosting);
            host.uplink = Some(uplink.expect("there is room"));
        });
    }

    /// Acts on the host.
    pub(crate) fn act<R>(
        &mut self,
        act: impl FnOnce(&mut Host<Quiet>, Instant, &mut Parts<'_, Quiet>) -> R,
    ) -> R {
        let Machine { host, engines, notes, store, hypervisor, devices, now, .. } = self;
        act(host, *now, &mut Parts { store, engines, hypervisor, devices, notes })
    }

    /// A toolstack makes this vif of Xen.
    pub(crate) fn make(&mut self, vif: &Device) {
        let made = self.act(|_, _, parts| parts.store.transaction(|tx| device::make(tx, vif)));
        made.expect("domain 0 may");
    }

    /// The vifs of Xen have their turns, until nothing is left to do.
    pub(crate) fn turn_all(&mut self) {
        while self.act(Host::turn).expect("XenStore is there") {}
    }

    pub(crate) fn add(&mut self, wanted: VirtioWanted, phase: Phase) -> Result<(), String> {
        let added = AddedVirtio { wanted, at_run_time: false, phase };
        self.act(|host, now, parts| host.add_virtio(added, || Ok(Front::default()), now, parts))
    }

    /// The front-end of `vm1` does all this.
    pub(crate) fn front_end(&mut self, acts: &[Act]) {
        for act in acts {
            self.on(Event::Session("vm1".to_owned(), *act));
        }
    }

    pub(crate) fn on(&mut self, event: Event<Act>) {
        self.act(|host, now, parts| host.on(event, now, parts)).expect("XenStore is there");
    }

    /// Time passes, and the first virtio vif has its turn.
    pub(crate) fn turn_after(&mut self, pause: Duration) {
        self.now += pause;
        let turned = self.act(|host, now, parts| host.turn_virtio(0, now, parts));
        assert!(!turned.expect("front-ends may connect"));
    }

    pub(crate) fn vif(&self) -> &VirtioVif<Quiet> {
        self.host.virtio().next().expect("there is one")
    }

    pub(crate) fn call(&mut self, request: &BackendRequest) -> Result<CallReply, String> {
        let wall = SystemTime::UNIX_EPOCH;
        let reply = self.act(|host, now, parts| host.call(request, wall, now, parts));
        reply.map_err(|error| error.to_string())
    }

    /// The status of the first vif.
    pub(crate) fn status(&mut self) -> VifStatus {
        self.all().remove(0)
    }

    /// The status of the vif with this name.
    pub(crate) fn shown(&mut self, name: &str) -> VifStatus {
        self.all().into_iter().find(|vif| vif.name == name).expect("it is shown")
    }

    fn all(&mut self) -> Vec<VifStatus> {
        match self.call(&BackendRequest::Status) {
            Ok(CallReply::Status(status)) => status.vifs,
            other => panic!("{other:?} is no status"),
        }
    }
}

/// What is wanted of a vif without anything special.
pub(crate) fn wanted(name: &str, bridge: Option<&str>) -> VirtioWanted {
    VirtioWanted {
        name: name.to_owned(),
        queues: 4,
        offloads: OffloadCaps::ALL,
        bridge: bridge.map(str::to_owned),
        iface_id: None,
        vm_uuid: None,
        bind: Bind::default(),
        features: Features(u64::MAX),
        protocol: u64::MAX,
        mac: None,
        rules: ringway_datapath::PortRules::default(),
        limits: ringway_xenbus::VifLimits::default(),
        others: Vec::new(),
    }
}
