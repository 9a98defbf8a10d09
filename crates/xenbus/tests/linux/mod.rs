//! A model of Linux's backend on XenStore, with the shell of our frontend.
//!
//! Linux's backend keeps a state of its own. It moves along a fixed graph to the state that the
//! frontend's state requires, and publishes each state on the way; but between attaching and the
//! end of its hotplug script it publishes nothing. It accepts another headroom by the state
//! `Reconfigured`, which it publishes once, and which is outside of that graph.

use std::collections::{BTreeSet, VecDeque};

use ringway_datapath::OffloadCaps;
use ringway_wire::{EvtchnPort, GrantRef};
use ringway_xenbus::XenbusState::{
    self, Closed, Closing, Connected, InitWait, Initialising, Reconfigured, Reconfiguring,
};
use ringway_xenbus::frontend::{Action, Carrier, Handshake, Input, Preferences, QueueCount};
use ringway_xenbus::{Device, EventPorts, Features, QueueConfig};

use crate::explore::Explored;
use crate::store::{self, Store, VIF};

/// The keys that Linux's backend writes besides its state.
const OFFER: [(&str, &str); 12] = [
    ("feature-sg", "1"),
    ("feature-gso-tcpv4", "1"),
    ("feature-gso-tcpv6", "1"),
    ("feature-ipv6-csum-offload", "1"),
    ("feature-rx-copy", "1"),
    ("feature-xdp-headroom", "1"),
    ("feature-rx-flip", "0"),
    ("feature-multicast-control", "1"),
    ("feature-dynamic-multicast-control", "1"),
    ("feature-split-event-channels", "1"),
    ("multi-queue-max-queues", "2"),
    ("feature-ctrl-ring", "1"),
];

/// The only possible error report.
const FAILURE: &str = "out of memory";

/// Whether the backend has a hotplug script to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hotplug {
    None,
    Waits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// The frontend's process is killed, and another replaces it.
    KillFrontend,
    /// The frontend's process is replaced, and disconnects first if there is time.
    RestartFrontend,
    Reconnect,
    /// The frontend asks for other headroom.
    Headroom(u16),
    /// The frontend's process cannot continue.
    Fail,
    /// The toolstack removes the vif.
    Detach,
}

/// The part that acts next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Backend,
    Frontend,
    Hotplug,
    /// The toolstack continues to detach the vif.
    Toolstack,
}

/// The expected end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    Connected,
    Closed,
    Gone,
}

#[derive(Debug, Clone)]
pub(crate) struct Stock {
    store: Store,
    backend: Backend,
    frontend: Frontend,
    /// Valid grants: those of a dead process end when no mapping is left.
    granted: BTreeSet<u32>,
    next_ref: u32,
    is_detaching: bool,
}

#[derive(Debug, Clone)]
struct Backend {
    /// Its current state, published or not.
    state: XenbusState,
    /// The state that the frontend's state requires.
    target: XenbusState,
    /// The frontend's state may have changed.
    is_notified: bool,
    mapped: BTreeSet<u32>,
    headroom: u16,
    hotplug: Hotplug,
    /// Attached, and waiting for the script.
    is_silent: bool,
    /// It releases the device when it is closed.
    is_leaving: bool,
    is_gone: bool,
}

#[derive(Debug, Clone)]
struct Frontend {
    machine: Handshake,
    inputs: VecDeque<Input>,
    actions: VecDeque<Action>,
    is_notified: bool,
    /// It must be restarted when it has finished.
    is_restarting: bool,
    queues: Vec<u32>,
    carrier: Carrier,
    /// The headroom that it wants.
    headroom: u16,
}

impl Stock {
    pub(crate) fn new(hotplug: Hotplug) -> Stock {
        let mut world = Stock {
            store: store::with_vif(),
            backend: Backend {
                state: Initialising,
                target: Initialising,
                is_notified: true,
                mapped: BTreeSet::new(),
                headroom: 0,
                hotplug,
                is_silent: false,
                is_leaving: false,
                is_gone: false,
            },
            frontend: Frontend::new(Initialising, Initialising),
            granted: BTreeSet::new(),
            next_ref: 8,
            is_detaching: false,
        };
        for (key, value) in OFFER {
            world.store.insert(format!("{}/{key}", VIF.backend_dir()), value.to_owned());
        }
        world
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..1000 {
            let Some(step) = self.steps().first().copied() else { return };
            self.step(step);
        }
        panic!("it does not settle: {self:#?}");
    }

    pub(crate) fn check(&self, goal: Goal) -> Result<(), &'static str> {
        let queues: BTreeSet<u32> = self.frontend.queues.iter().copied().collect();
        let rings_left = !(queues.is_empty() && self.backend.mapped.is_empty());
        let checks = match goal {
            Goal::Connected => vec![
                (
                    matches!(self.backend(), Connected | Reconfigured),
                    "the backend is not connected",
                ),
                (self.backend.headroom == self.frontend.headroom, "frames have another headroom"),
                (self.frontend_state() == Connected, "the frontend is not connected"),
                (self.is_up(), "the link is down"),
                (!queues.is_empty(), "there are no queues"),
                (self.backend.mapped == queues, "the backend has other rings"),
                (queues.is_subset(&self.granted), "rings are not granted"),
            ],
            Goal::Closed => vec![
                (self.backend() == Closed, "the backend has not closed"),
                (self.frontend_state() == Closed, "the frontend has not closed"),
                (!self.is_up(), "the link is up"),
                (!rings_left && self.granted.is_empty(), "rings are left"),
            ],
            Goal::Gone => vec![
                (self.backend().is_gone(), "the backend has not closed"),
                (!self.has(&VIF.frontend_dir()), "the frontend's directory is there"),
                (self.frontend.machine.is_finished(), "the frontend is there"),
                (!self.is_up(), "the link is up"),
                (!rings_left && self.granted.is_empty(), "rings are left"),
            ],
        };
        checks.into_iter().find(|(is_so, _)| !is_so).map_or(Ok(()), |(_, problem)| Err(problem))
    }

    pub(crate) fn backend(&self) -> XenbusState {
        XenbusState::parse(self.store.get(&VIF.backend_state()).map(String::as_str))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.frontend.carrier == Carrier::Up
    }

    pub(crate) fn mapped_count(&self) -> usize {
        self.backend.mapped.len()
    }

    pub(crate) fn forget_offer(&mut self, key: &str) {
        self.store.remove(&format!("{}/{key}", VIF.backend_dir()));
    }

    /// The keys that the frontend has written besides those of the toolstack.
    pub(crate) fn frontend_keys(&self) -> Vec<(&str, &str)> {
        let toolstack = ["backend", "backend-id", "handle", "mac", "mtu", "state"];
        let prefix = format!("{}/", VIF.frontend_dir());
        let below = self.store.iter().filter_map(|(path, value)| {
            path.strip_prefix(&prefix).map(|key| (key, value.as_str()))
        });
        below.filter(|(key, _)| !toolstack.contains(key)).collect()
    }

    fn frontend_state(&self) -> XenbusState {
        XenbusState::parse(self.store.get(&VIF.frontend_state()).map(String::as_str))
    }

    fn has(&self, dir: &str) -> bool {
        self.store.keys().any(|path| path.starts_with(dir))
    }

    /// One edge of the graph, or a read of the frontend's state.
    fn step_backend(&mut self) {
        let backend = &mut self.backend;
        if backend.state != backend.target {
            let next = next_state(backend.state, backend.target);
            match (backend.state, next) {
                (InitWait, Connected) => return self.connect(),
                (Connected, Closing) => self.disconnect(),
                _ => {}
            }
            self.backend.state = next;
            self.publish_backend();
            if self.backend.state == Closed && self.backend.is_leaving {
                self.backend.is_gone = true;
            }
            return;
        }
        backend.is_notified = false;
        let state = self.frontend_state();
        let is_online = self.store.get(&VIF.online()).is_some_and(|online| online == "1");
        let backend = &mut self.backend;
        match state {
            Initialising => backend.target = InitWait,
            Connected | Closing => backend.target = state,
            Reconfiguring => {
                self.backend.headroom = self.headroom_wanted();
                if self.backend() != Reconfigured {
                    self.set_backend(Reconfigured);
                }
            }
            Closed | XenbusState::Unknown => {
                backend.target = Closed;
                backend.is_leaving = !is_online || state == XenbusState::Unknown;
                backend.is_gone = backend.is_leaving && backend.state == Closed;
            }
            _ => {}
        }
    }

    /// The headroom that the frontend's key asks for.
    fn headroom_wanted(&self) -> u16 {
        let keys = self.frontend_keys();
        let value = keys.iter().find(|(key, _)| *key == "xdp-headroom");
        value.map_or(0, |(_, value)| value.parse().expect("a number"))
    }

    fn connect(&mut self) {
        self.backend.headroom = self.headroom_wanted();
        let keys = self.frontend_keys();
        let is_ref = |key: &&str| key.ends_with("-ring-ref");
        let refs = keys.iter().filter(|(key, _)| is_ref(key)).map(|(_, value)| value.parse());
        let refs: BTreeSet<u32> = refs.map(|gref| gref.expect("a number")).collect();
        if !refs.is_empty() && refs.is_subset(&self.granted) {
            self.backend.mapped = refs;
            self.backend.is_silent = self.backend.hotplug == Hotplug::Waits;
        } else {
            // It publishes that it closes, continues as if nothing had happened, and publishes
            // that, too.
            self.set_backend(Closing);
        }
        self.backend.state = Connected;
        self.publish_backend();
    }

    fn disconnect(&mut self) {
        self.backend.mapped.clear();
        self.backend.is_silent = false;
        let held: BTreeSet<u32> = self.frontend.queues.iter().copied().collect();
        self.granted.retain(|gref| held.contains(gref));
    }

    fn publish_backend(&mut self) {
        if !self.backend.is_silent {
            self.set_backend(self.backend.state);
        }
    }

    fn set_backend(&mut self, state: XenbusState) {
        if let Some(node) = self.store.get_mut(&VIF.backend_state()) {
            *node = state.value().to_owned();
            self.frontend.is_notified = true;
        }
    }

    /// A new frontend without resources of an earlier one.
    fn start_frontend(&mut self) {
        let mapped = &self.backend.mapped;
        self.granted.retain(|gref| mapped.contains(gref));
        let is_there = self.has(&VIF.frontend_dir());
        self.frontend = Frontend::new(self.frontend_state(), self.backend());
        if !is_there {
            self.frontend.inputs = [Input::Gone].into();
        }
    }

    fn step_frontend(&mut self) {
        if let Some(action) = self.frontend.actions.pop_front() {
            self.act(action);
        } else if let Some(input) = self.frontend.inputs.pop_front() {
            self.feed(input);
        } else if self.frontend.is_restarting && self.frontend.machine.is_finished() {
            self.start_frontend();
        } else {
            self.frontend.is_notified = false;
            match self.has(&VIF.frontend_dir()) {
                true => self.feed(Input::BackendState(self.backend())),
                false => self.feed(Input::Gone),
            }
        }
    }

    fn feed(&mut self, input: Input) {
        let actions = self.frontend.machine.handle(input);
        self.frontend.actions.extend(actions);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Write(changes, state) => {
                store::change(&mut self.store, &VIF.frontend_dir(), changes);
                let Some(state) = state else { return };
                if let Some(node) = self.store.get_mut(&VIF.frontend_state()) {
                    *node = state.value().to_owned();
                    self.backend.is_notified = true;
                }
            }
            Action::ReadBackend => {
                let keys = store::keys(&self.store, &VIF.backend_dir());
                self.frontend.inputs.push_front(Input::BackendKeys(keys));
            }
            Action::Allocate(wanted) => {
                assert!(self.frontend.queues.is_empty(), "allocated twice");
                let queues: Vec<QueueConfig> = (0..wanted.queues).map(|_| self.queue()).collect();
                self.frontend.inputs.push_front(Input::Allocated(Ok(queues.into())));
            }
            Action::Release => {
                let Stock { backend, frontend, granted, .. } = self;
                for gref in std::mem::take(&mut frontend.queues) {
                    assert!(!backend.mapped.contains(&gref), "released while it is mapped");
                    granted.remove(&gref);
                }
            }
            Action::Carrier(carrier) => self.frontend.carrier = carrier,
            Action::ReportError(reason) => assert_eq!(reason, FAILURE),
            Action::Finished => {}
        }
    }

    fn queue(&mut self) -> QueueConfig {
        let mut next = || {
            self.next_ref += 1;
            self.next_ref
        };
        let (tx, rx) = (next(), next());
        let events = EventPorts::Split { tx: EvtchnPort(next()), rx: EvtchnPort(next()) };
        self.frontend.queues.extend([tx, rx]);
        self.granted.extend([tx, rx]);
        QueueConfig { tx_ring_ref: GrantRef(tx), rx_ring_ref: GrantRef(rx), events }
    }
}

impl Explored for Stock {
    type Step = Step;
    type Disturbance = Disturbance;

    /// All parts with pending work.
    fn steps(&self) -> Vec<Step> {
        let Stock { backend, frontend, .. } = self;
        let mut steps = Vec::new();
        if !backend.is_gone && (backend.is_notified || backend.state != backend.target) {
            steps.push(Step::Backend);
        }
        let has_work = !(frontend.inputs.is_empty() && frontend.actions.is_empty());
        let is_finished = frontend.machine.is_finished();
        if has_work || (frontend.is_notified && !is_finished) {
            steps.push(Step::Frontend);
        }
        if is_finished && frontend.is_restarting {
            steps.push(Step::Frontend);
        }
        if backend.is_silent {
            steps.push(Step::Hotplug);
        }
        let is_patient = self.backend() == Closing && !steps.is_empty();
        if self.is_detaching && self.has(&VIF.frontend_dir()) && !is_patient {
            steps.push(Step::Toolstack);
        }
        steps.dedup();
        steps
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Backend => self.step_backend(),
            Step::Frontend => self.step_frontend(),
            Step::Hotplug => {
                self.backend.is_silent = false;
                self.publish_backend();
            }
            // Its write was lost, because the backend published a state after it.
            Step::Toolstack if !matches!(self.backend(), Closing | Closed) => {
                self.set_backend(Closing);
            }
            // It is done, or no end has moved for so long that it gives up.
            Step::Toolstack => {
                for dir in [VIF.frontend_dir(), VIF.backend_dir()] {
                    self.store.retain(|path, _| !path.starts_with(&dir));
                }
                self.backend.is_gone = true;
                self.frontend.is_notified = true;
            }
        }
    }

    fn disturb(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::KillFrontend => self.start_frontend(),
            Disturbance::RestartFrontend => {
                self.frontend.is_restarting = true;
                self.frontend.inputs.push_back(Input::Stop);
            }
            Disturbance::Fail => self.frontend.inputs.push_back(Input::Fail(FAILURE.to_owned())),
            Disturbance::Reconnect => {
                self.frontend.inputs.push_back(Input::Reconnect(preferences()));
            }
            Disturbance::Headroom(bytes) => {
                self.frontend.headroom = bytes;
                self.frontend.inputs.push_back(Input::Headroom(bytes));
            }
            Disturbance::Detach => {
                self.is_detaching = true;
                store::change(&mut self.store, &VIF.backend_dir(), Device::removal_changes());
                self.frontend.is_notified = true;
            }
        }
    }
}

impl Frontend {
    fn new(own: XenbusState, peer: XenbusState) -> Frontend {
        Frontend {
            machine: Handshake::new(preferences()),
            inputs: [Input::Start { own, peer }].into(),
            actions: VecDeque::new(),
            is_notified: true,
            is_restarting: false,
            queues: Vec::new(),
            carrier: Carrier::Down,
            headroom: 0,
        }
    }
}

fn preferences() -> Preferences {
    Preferences { queues: QueueCount::AtMost(1), features: Features::from(OffloadCaps::ALL) }
}

/// The next state on the path from one to another.
fn next_state(from: XenbusState, to: XenbusState) -> XenbusState {
    match (from, to) {
        (Initialising, Closed) => Closed,
        (Initialising, _) => InitWait,
        (InitWait, Connected) => Connected,
        (InitWait | Connected, _) => Closing,
        (Closing, _) => Closed,
        (Closed, Closing) => Closing,
        (Closed, _) => InitWait,
        _ => panic!("Linux's backend is never {from}"),
    }
}
