//! Models of other systems' frontends on XenStore, with the shell of our backend.

mod ipxe;
mod linux;
mod mini_os;
mod windows;

use std::collections::{BTreeSet, VecDeque};

use ringway_datapath::OffloadCaps;
use ringway_wire::{EvtchnPort, GrantRef};
use ringway_xenbus::XenbusState::{self, Closed, Connected};
use ringway_xenbus::backend::{Action, Handshake, Input, Reconnect};
use ringway_xenbus::{
    ControlConfig, EventPorts, Features, FrontendConfig, Hotplug, KeyChange, KeySet, Keys, Offer,
    QueueConfig, Reconnects,
};

use crate::explore::Explored;
use crate::store::{self, Store, VIF};

use ipxe::{Ipxe, Then};
use linux::Linux;
use mini_os::MiniOs;
use windows::Windows;

/// The system of the frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Linux,
    MiniOs,
    Windows,
    /// A boot loader, and the Linux that it loads.
    Ipxe,
}

/// What a backend offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offered {
    pub(crate) limit: u16,
    pub(crate) split: bool,
}

/// Queues with two event channels each.
pub(crate) const fn split(limit: u16) -> Offered {
    Offered { limit, split: true }
}

/// Queues with one event channel each.
pub(crate) const fn joint(limit: u16) -> Offered {
    Offered { limit, split: false }
}

/// The disturbances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// The backend is killed and restarted, and then offers this.
    RestartBackend(Offered),
    /// The limit changes while the backend runs.
    SetLimit(u16, Reconnect),
    /// The guest's driver restarts properly, to request this many queues.
    Rebind(u16),
    /// The guest's kernel crashes, and another one replaces it.
    Crash,
    /// The boot loader starts Linux, with or without closing its vif.
    Boot(Handover),
    /// The guest has a program of XDP from now on, or none any more.
    Program(bool),
    /// The guest breaks the ring protocol.
    Fault,
    /// The toolstack removes the vif.
    Remove,
}

/// The state in which a boot loader leaves a vif.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handover {
    Closed,
    Connected,
}

/// The backend's policy: the current one, or an older one with a known fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Present,
    /// A guest with more queues than the limit is closed.
    ClosesAboveLimit,
    /// Keys of one queue beside those of several are refused.
    RefusesStaleKeys,
    /// A guest that was there before the first offer is closed.
    RefusesEarlyKeys,
    /// Event channels for each direction are refused once they are not offered any more.
    RefusesOlderForm,
    /// Frames have the headroom of the key, whatever the states say.
    BelievesKey,
}

/// The part that acts next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Backend,
    /// The backend reads the keys that it has requested.
    Read,
    Guest,
    /// Five seconds pass without any other step.
    Time,
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    policy: Policy,
    store: Store,
    backend: Backend,
    guest: Guest,
    next_ref: u32,
    /// Connections that the backend has ended without a request.
    pub(crate) cut_off_count: usize,
    /// Frames had less headroom than the guest's program takes them to have.
    is_misread: bool,
}

#[derive(Debug, Clone)]
struct Backend {
    machine: Handshake,
    offered: Offered,
    inputs: VecDeque<Input>,
    actions: VecDeque<Action>,
    is_notified: bool,
    is_finished: bool,
    /// These keys are to be read.
    reading: Option<KeySet>,
    attached: Option<FrontendConfig>,
}

#[derive(Debug, Clone)]
struct Guest {
    driver: Driver,
    wanted: u16,
    is_notified: bool,
    queues: Vec<QueueConfig>,
    control: Option<ControlConfig>,
    has_program: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Linux(Linux),
    MiniOs(MiniOs),
    Windows(Windows),
    Ipxe(Ipxe),
}

/// The interface of a guest's driver.
pub(crate) struct Side<'a> {
    store: &'a mut Store,
    next_ref: &'a mut u32,
    wanted: u16,
    has_split: bool,
    queues: &'a mut Vec<QueueConfig>,
    control: &'a mut Option<ControlConfig>,
    has_program: &'a mut bool,
    is_notified: &'a mut bool,
    is_backend_notified: &'a mut bool,
}

impl Side<'_> {
    pub(crate) fn own(&self) -> XenbusState {
        state(self.store, &VIF.frontend_state())
    }

    pub(crate) fn other(&self) -> XenbusState {
        state(self.store, &VIF.backend_state())
    }

    pub(crate) fn set(&mut self, state: XenbusState) {
        self.store.insert(VIF.frontend_state(), state.value().to_owned());
        *self.is_backend_notified = true;
    }

    /// Polls again without waiting for a notification of the backend.
    pub(crate) fn poll_again(&mut self) {
        *self.is_notified = true;
    }

    pub(crate) fn forget_queues(&mut self) {
        self.queues.clear();
        (*self.control, *self.has_program) = (None, false);
    }

    /// Creates rings and writes their keys, in response to the backend's current offer.
    pub(crate) fn write_keys(&mut self) {
        let offer = store::keys(self.store, &VIF.backend_dir());
        let count = self.wanted.min(offer.queues_offered().unwrap_or(1));
        let has_split = self.has_split && offers_split(&offer);
        *self.queues = (0..count).map(|_| queue(self.next_ref, has_split)).collect();
        let set = |key: String, value: u32| KeyChange::Set(key, value.to_string());
        let mut changes = vec![set("request-rx-copy".to_owned(), 1)];
        if self.has_split {
            changes.push(set("multi-queue-num-queues".to_owned(), count.into()));
            changes.push(set("feature-sg".to_owned(), 1));
        }
        for (index, queue) in self.queues.iter().enumerate() {
            let prefix = if count == 1 { String::new() } else { format!("queue-{index}/") };
            changes.push(set(format!("{prefix}tx-ring-ref"), queue.tx_ring_ref.0));
            changes.push(set(format!("{prefix}rx-ring-ref"), queue.rx_ring_ref.0));
            match queue.events {
                EventPorts::Single(port) => {
                    changes.push(set(format!("{prefix}event-channel"), port.0));
                }
                EventPorts::Split { tx, rx } => {
                    changes.push(set(format!("{prefix}event-channel-tx"), tx.0));
                    changes.push(set(format!("{prefix}event-channel-rx"), rx.0));
                }
            }
        }
        store::change(self.store, &VIF.frontend_dir(), changes);
    }

    pub(crate) fn remove_keys(&mut self) {
        let keys = ["tx-ring-ref", "rx-ring-ref", "event-channel", "request-rx-copy"];
        let changes = keys.map(|key| KeyChange::Remove(key.to_owned()));
        store::change(self.store, &VIF.frontend_dir(), changes.into());
    }
}

fn state(store: &Store, node: &str) -> XenbusState {
    XenbusState::parse(store.get(node).map(String::as_str))
}

fn offers_split(offer: &Keys) -> bool {
    Offer::read(offer).is_ok_and(|offer| offer.split_event_channels)
}

fn queue(next_ref: &mut u32, has_split: bool) -> QueueConfig {
    *next_ref += 2;
    let [first, second] = [*next_ref, *next_ref + 1];
    QueueConfig {
        tx_ring_ref: GrantRef(first),
        rx_ring_ref: GrantRef(second),
        events: match has_split {
            true => EventPorts::Split { tx: EvtchnPort(first), rx: EvtchnPort(second) },
            false => EventPorts::Single(EvtchnPort(first)),
        },
    }
}

impl World {
    pub(crate) fn new(kind: Kind, offered: Offered, wanted: u16) -> World {
        World::under(Policy::Present, kind, offered, wanted)
    }

    pub(crate) fn under(policy: Policy, kind: Kind, offered: Offered, wanted: u16) -> World {
        let driver = match kind {
            Kind::Linux => Driver::Linux(Linux::Bound),
            Kind::MiniOs => Driver::MiniOs(MiniOs::Starting),
            Kind::Windows => Driver::Windows(Windows::Preparing(XenbusState::Unknown)),
            Kind::Ipxe => Driver::Ipxe(Ipxe::Resetting(Then::Probe)),
        };
        let (queues, control, has_program) = (Vec::new(), None, false);
        let mut world = World {
            policy,
            store: store::with_vif(),
            backend: Backend::new(offered),
            guest: Guest { driver, wanted, is_notified: true, queues, control, has_program },
            next_ref: 8,
            cut_off_count: 0,
            is_misread: false,
        };
        world.start_backend(offered);
        world
    }

    /// Both are connected, on the same rings.
    pub(crate) fn check_connected(&self) -> Result<(), String> {
        let attached = self.backend.attached.as_ref().map(|config| config.queues.as_slice());
        let control = self.backend.attached.as_ref().and_then(|config| config.control);
        let is_true = [
            ("backend connected", self.state(&VIF.backend_state()) == Connected),
            ("guest connected", self.state(&VIF.frontend_state()) == Connected),
            ("same rings", attached == Some(self.guest.queues.as_slice())),
            ("same control ring", control == self.guest.control),
            ("driver up", self.guest.is_up()),
            ("headroom", self.headroom() == Some(self.guest.headroom())),
            ("no frame misread", !self.is_misread),
            ("no error", !self.store.contains_key(&VIF.backend_errors()[1])),
        ];
        match is_true.into_iter().find(|(_, is_true)| !is_true) {
            Some((what, _)) => Err(format!("not so: {what}")),
            None => Ok(()),
        }
    }

    /// Both have closed, and nothing is attached.
    pub(crate) fn check_closed(&self) -> Result<(), String> {
        let states = [VIF.backend_state(), VIF.frontend_state()].map(|node| self.state(&node));
        match (states, &self.backend.attached) {
            ([Closed, Closed], None) => Ok(()),
            other => Err(format!("not closed: {other:?}")),
        }
    }

    /// The backend has closed for good, and nothing is attached.
    pub(crate) fn check_removed(&self) -> Result<(), String> {
        let is_closed = self.state(&VIF.backend_state()) == Closed;
        match is_closed && self.backend.is_finished && self.backend.attached.is_none() {
            true => Ok(()),
            false => Err("not removed".to_owned()),
        }
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.guest.queues.len()
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..1000 {
            let Some(step) = self.steps().first().copied() else { return };
            self.step(step);
        }
        panic!("it does not settle: {self:#?}");
    }

    fn state(&self, node: &str) -> XenbusState {
        state(&self.store, node)
    }

    /// The headroom of frames, if the guest is served.
    fn headroom(&self) -> Option<u16> {
        self.backend.attached.as_ref().map(|config| config.headroom)
    }

    fn start_backend(&mut self, offered: Offered) {
        let (own, front) = (store::keys(&self.store, &VIF.backend_dir()), VIF.frontend_dir());
        let front = store::keys(&self.store, &front);
        self.backend = Backend::new(offered);
        let own_state = match (self.policy, own.state()) {
            (Policy::RefusesEarlyKeys, XenbusState::Initialising) => Closed,
            (_, state) => state,
        };
        self.backend.inputs.push_back(Input::Start {
            own: own_state,
            peer: front.state(),
            offered: ringway_xenbus::Offered::read(&own),
            reconnects: Reconnects::read(&front),
        });
    }

    fn step_backend(&mut self) {
        if let Some(action) = self.backend.actions.pop_front() {
            self.act(action);
        } else if let Some(input) = self.backend.inputs.pop_front() {
            self.feed(input);
        } else {
            self.backend.is_notified = false;
            self.feed(Input::FrontendState(self.state(&VIF.frontend_state())));
        }
    }

    fn feed(&mut self, input: Input) {
        let actions = self.backend.machine.handle(input);
        self.backend.actions.extend(actions);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Write(changes, state) => {
                store::change(&mut self.store, &VIF.backend_dir(), changes);
                let Some(state) = state else { return };
                self.store.insert(VIF.backend_state(), state.value().to_owned());
                self.guest.is_notified = true;
            }
            Action::ReadFrontend { queues_max } | Action::Retry { queues_max, .. } => {
                self.backend.reading = Some(KeySet::FrontendKeys { queues_max });
            }
            Action::ReadHeadroom => self.backend.reading = Some(KeySet::Headroom),
            Action::SetHeadroom(headroom) => {
                let headroom = match self.policy {
                    Policy::BelievesKey => linux::headroom(&self.store),
                    _ => headroom,
                };
                self.backend.attached.as_mut().expect("it is served").headroom = headroom;
            }
            Action::Attach(config, _) => {
                assert!(self.backend.attached.replace(config).is_none(), "attached twice");
                self.backend.inputs.push_front(Input::Attached(Ok(())));
            }
            Action::Detach => {
                assert!(self.backend.attached.take().is_some(), "detached twice");
                if self.state(&VIF.frontend_state()) == Connected {
                    self.cut_off_count += 1;
                }
            }
            Action::ReportError(reason) => {
                self.store.insert(VIF.backend_errors()[1].clone(), reason);
            }
            Action::ClearError => drop(self.store.remove(&VIF.backend_errors()[1])),
            Action::Finished => self.backend.is_finished = true,
            Action::AwaitHotplug => panic!("there is no script"),
        }
    }

    fn read_frontend(&mut self) {
        if let Some(set) = self.backend.reading.take() {
            let mut keys = store::keys(&self.store, &VIF.frontend_dir());
            if set == KeySet::Headroom {
                return self.feed(Input::Headroom(keys));
            }
            if self.is_refused_by_policy() {
                keys =
                    Keys::new("refused", [("state".to_owned(), keys.state().value().to_owned())]);
            }
            self.feed(Input::FrontendKeys(keys));
        }
    }

    /// Whether an earlier policy refuses the keys.
    fn is_refused_by_policy(&self) -> bool {
        let value = |key: &str| self.store.get(&format!("{}/{key}", VIF.frontend_dir()));
        let count = value("multi-queue-num-queues").map_or("1", String::as_str);
        let count: u16 = count.parse().expect("models write numbers");
        match self.policy {
            Policy::Present | Policy::BelievesKey => false,
            Policy::ClosesAboveLimit => count > self.backend.offered.limit,
            Policy::RefusesEarlyKeys => false,
            Policy::RefusesOlderForm => {
                let is_older = value("event-channel").is_none() && count == 1;
                is_older && !self.backend.offered.split && self.backend.attached.is_none()
            }
            Policy::RefusesStaleKeys => count > 1 && value("tx-ring-ref").is_some(),
        }
    }

    fn with_guest(&mut self, then: impl FnOnce(Driver, &mut Side<'_>) -> Driver) {
        let World { store, next_ref, backend, guest, .. } = self;
        let has_split = !matches!(guest.driver, Driver::MiniOs(_) | Driver::Ipxe(_));
        let mut side = Side {
            store,
            next_ref,
            wanted: if has_split { guest.wanted } else { 1 },
            has_split,
            queues: &mut guest.queues,
            control: &mut guest.control,
            has_program: &mut guest.has_program,
            is_notified: &mut guest.is_notified,
            is_backend_notified: &mut backend.is_notified,
        };
        guest.driver = then(guest.driver, &mut side);
    }

    fn step_guest(&mut self) {
        self.guest.is_notified = false;
        self.with_guest(|driver, side| match driver {
            Driver::Linux(driver) => Driver::Linux(driver.step(side)),
            Driver::MiniOs(driver) => Driver::MiniOs(driver.step(side)),
            Driver::Windows(driver) => Driver::Windows(driver.step(side)),
            Driver::Ipxe(driver) => match driver.step(side) {
                Ipxe::Done => Driver::Linux(Linux::boot(side)),
                driver => Driver::Ipxe(driver),
            },
        });
    }
}

impl Guest {
    /// The headroom that it needs.
    fn headroom(&self) -> u16 {
        if self.has_program { linux::HEADROOM } else { 0 }
    }

    fn is_up(&self) -> bool {
        matches!(
            self.driver,
            Driver::Linux(Linux::Bound)
                | Driver::MiniOs(MiniOs::Up)
                | Driver::Windows(Windows::Up)
                | Driver::Ipxe(Ipxe::Up)
        )
    }
}

impl Backend {
    fn new(offered: Offered) -> Backend {
        let features = Features::from(OffloadCaps::ALL);
        let offer = Offer {
            queues_max: offered.limit,
            split_event_channels: offered.split,
            control_ring: offered.split,
            multicast_control: offered.split,
            xdp_headroom: offered.split,
            features,
        };
        Backend {
            machine: Handshake::new(offer, Hotplug::Absent),
            offered,
            inputs: VecDeque::new(),
            actions: VecDeque::new(),
            is_notified: true,
            is_finished: false,
            reading: None,
            attached: None,
        }
    }
}

impl Explored for World {
    type Step = Step;
    type Disturbance = Disturbance;

    fn steps(&self) -> Vec<Step> {
        let World { backend, guest, .. } = self;
        let has_work = !(backend.inputs.is_empty() && backend.actions.is_empty());
        let hears = backend.is_notified && !backend.is_finished;
        let all = [
            (Step::Backend, has_work || hears),
            (Step::Read, backend.reading.is_some() && !has_work),
            (Step::Guest, guest.is_notified),
        ];
        let mut steps: Vec<Step> =
            all.into_iter().filter(|(_, has_turn)| *has_turn).map(|(step, _)| step).collect();
        let waits = match guest.driver {
            Driver::Linux(driver) => driver.waits_for_time(),
            Driver::Ipxe(driver) => driver.waits_for_time(),
            _ => false,
        };
        if steps.is_empty() && waits {
            steps.push(Step::Time);
        }
        steps
    }

    fn step(&mut self, step: Step) {
        self.is_misread |= self.guest.has_program && self.headroom() == Some(0);
        match step {
            Step::Backend => self.step_backend(),
            Step::Read => self.read_frontend(),
            Step::Guest => self.step_guest(),
            Step::Time => self.with_guest(|driver, side| match driver {
                Driver::Linux(driver) => Driver::Linux(driver.time_out(side)),
                Driver::Ipxe(driver) => Driver::Ipxe(driver.time_out(side)),
                other => other,
            }),
        }
    }

    fn disturb(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::RestartBackend(offered) => self.start_backend(offered),
            Disturbance::SetLimit(queues_max, reconnect) => {
                self.backend.offered.limit = queues_max;
                self.backend.inputs.push_back(Input::OfferChanged { queues_max, reconnect });
                let count = self.backend.attached.as_ref().map_or(0, |config| config.queues.len());
                let is_above = count > usize::from(queues_max);
                if self.policy == Policy::ClosesAboveLimit && is_above {
                    self.backend.inputs.push_back(Input::PeerFault("too many".to_owned()));
                }
            }
            Disturbance::Rebind(wanted) => {
                self.guest.wanted = wanted;
                self.with_guest(|driver, side| match driver {
                    Driver::Linux(driver) => Driver::Linux(driver.rebind(side)),
                    Driver::MiniOs(driver) => Driver::MiniOs(driver.restart(side)),
                    Driver::Windows(driver) => Driver::Windows(driver.restart(side)),
                    Driver::Ipxe(driver) => Driver::Ipxe(driver),
                });
            }
            Disturbance::Boot(handover) => self.with_guest(|driver, side| match driver {
                Driver::Ipxe(driver) if handover == Handover::Closed => {
                    Driver::Ipxe(driver.boot(side))
                }
                Driver::Ipxe(Ipxe::Up) => Driver::Linux(Linux::Bound.crash(side)),
                other => other,
            }),
            Disturbance::Crash => self.with_guest(|driver, side| match driver {
                Driver::Linux(driver) => Driver::Linux(driver.crash(side)),
                other => other,
            }),
            Disturbance::Program(has_program) => self.with_guest(|driver, side| match driver {
                Driver::Linux(driver) => Driver::Linux(driver.load(has_program, side)),
                other => other,
            }),
            Disturbance::Fault => {
                self.backend.inputs.push_back(Input::PeerFault("it ran away".to_owned()));
            }
            Disturbance::Remove => self.backend.inputs.push_back(Input::Offline),
        }
    }
}

/// All ring grants of the guest's queues.
pub(crate) fn refs(world: &World) -> BTreeSet<u32> {
    world.guest.queues.iter().map(|queue| queue.tx_ring_ref.0).collect()
}
