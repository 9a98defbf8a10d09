//! A model of how Linux's frontend behaves on XenStore, and the shell of our backend beside it.
//!
//! It connects only from `Initialising`. It follows a backend that closes to `Closed`, and stays
//! there until its driver is bound again. To unbind the driver it goes through `Closing` and
//! `Closed`, and waits until it finds the backend at one of these states: a state that the backend
//! was at in between does not count. It removes no key that an earlier connection has left.

use std::collections::{BTreeSet, VecDeque};

use ringway_datapath::OffloadCaps;
use ringway_wire::{EvtchnPort, GrantRef};
use ringway_xenbus::XenbusState::{self, Closed, Closing, Connected, InitWait, Initialising};
use ringway_xenbus::backend::{Action, Handshake, Input, Reconnect};
use ringway_xenbus::{
    EventPorts, Features, FrontendConfig, Hotplug, KeyChange, Offer, QueueConfig, Returns,
};

use crate::explore::Explored;
use crate::store::{self, Store, VIF};

/// What disturbs the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// The backend is killed, and started again with this limit.
    RestartBackend(u16),
    /// Another limit is set while the backend runs.
    SetLimit(u16, Reconnect),
    /// The guest's driver is unbound, and bound again to ask for this many queues.
    Rebind(u16),
    /// The guest breaks the ring protocol.
    Fault,
}

/// Who does something next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Backend,
    /// The backend reads the keys that it wants to.
    Read,
    Guest,
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    store: Store,
    backend: Backend,
    guest: Guest,
    next_ref: u32,
    /// Connections that the backend has ended without being asked to.
    pub(crate) cut_off_count: usize,
}

#[derive(Debug, Clone)]
struct Backend {
    machine: Handshake,
    limit: u16,
    inputs: VecDeque<Input>,
    actions: VecDeque<Action>,
    is_notified: bool,
    /// Keys of at most so many queues are to be read.
    reading: Option<u16>,
    attached: Option<FrontendConfig>,
}

#[derive(Debug, Clone)]
struct Guest {
    driver: Driver,
    wanted: u16,
    is_notified: bool,
    queues: Vec<QueueConfig>,
}

/// Where the guest's driver is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Bound,
    /// It waits for the backend to leave `Closed`, and hears of nothing before that.
    Binding,
    /// To be bound again, to ask for this many queues.
    Unbinding(Unbinding, u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unbinding {
    /// It has said `Closing`, and waits for the backend to be at least there.
    Closing,
    /// It has said `Closed`, and waits for the backend to be there.
    Closed,
}

impl World {
    pub(crate) fn new(limit: u16, wanted: u16) -> World {
        let mut world = World {
            store: store::with_vif(),
            backend: Backend::new(limit),
            guest: Guest { driver: Driver::Bound, wanted, is_notified: true, queues: Vec::new() },
            next_ref: 8,
            cut_off_count: 0,
        };
        world.start_backend(limit);
        world
    }

    /// Both are connected, on the same rings.
    pub(crate) fn check_connected(&self) -> Result<(), String> {
        let attached = self.backend.attached.as_ref().map(|config| config.queues.as_slice());
        let is_true = [
            ("backend connected", self.state(&VIF.backend_state()) == Connected),
            ("guest connected", self.state(&VIF.frontend_state()) == Connected),
            ("same rings", attached == Some(self.guest.queues.as_slice())),
            ("driver bound", self.guest.driver == Driver::Bound),
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
        XenbusState::parse(self.store.get(node).map(String::as_str))
    }

    fn start_backend(&mut self, limit: u16) {
        let (own, front) = (store::keys(&self.store, &VIF.backend_dir()), VIF.frontend_dir());
        let front = store::keys(&self.store, &front);
        self.backend = Backend::new(limit);
        self.backend.inputs.push_back(Input::Start {
            own: own.state(),
            peer: front.state(),
            offered: own.queues_offered(),
            returns: Returns::read(&front),
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
            Action::WriteKeys(changes) => {
                store::change(&mut self.store, &VIF.backend_dir(), changes);
            }
            Action::SetState(state) => {
                self.store.insert(VIF.backend_state(), state.value().to_owned());
                self.guest.is_notified = true;
            }
            Action::ReadFrontend { queues_max } => self.backend.reading = Some(queues_max),
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
            Action::AwaitHotplug | Action::Finished => panic!("there is no reason to {action:?}"),
        }
    }

    fn read_frontend(&mut self) {
        if self.backend.reading.take().is_some() {
            let keys = store::keys(&self.store, &VIF.frontend_dir());
            self.feed(Input::FrontendKeys(keys));
        }
    }

    fn step_guest(&mut self) {
        self.guest.is_notified = false;
        let (own, other) = (self.state(&VIF.frontend_state()), self.state(&VIF.backend_state()));
        match self.guest.driver {
            Driver::Bound => match other {
                InitWait if own == Initialising => self.connect(),
                // It may have missed `Closing`.
                Closing | Closed if own != Closed => self.set_guest(Closed),
                _ => {}
            },
            Driver::Binding if matches!(other, Closed | XenbusState::Unknown) => {}
            Driver::Binding => {
                self.guest.driver = Driver::Bound;
                self.guest.is_notified = true;
            }
            Driver::Unbinding(Unbinding::Closing, wanted) => match other {
                Closed | XenbusState::Unknown => self.bind(wanted),
                Closing => {
                    self.guest.driver = Driver::Unbinding(Unbinding::Closed, wanted);
                    self.set_guest(Closed);
                    self.guest.is_notified = true;
                }
                _ => {}
            },
            Driver::Unbinding(Unbinding::Closed, wanted) => match other {
                Closed | XenbusState::Unknown => self.bind(wanted),
                _ => {}
            },
        }
    }

    /// The driver's device is removed, and probed again.
    fn bind(&mut self, wanted: u16) {
        self.guest.queues.clear();
        self.guest.driver = Driver::Binding;
        self.guest.wanted = wanted;
        self.guest.is_notified = true;
        self.set_guest(Closed);
        self.set_guest(Initialising);
    }

    fn connect(&mut self) {
        let offered = store::keys(&self.store, &VIF.backend_dir()).queues_offered().unwrap_or(1);
        let count = self.guest.wanted.min(offered);
        let queues: Vec<QueueConfig> = (0..count).map(|_| self.queue()).collect();
        let set = |key: String, value: u32| KeyChange::Set(key, value.to_string());
        let mut changes = vec![
            set("multi-queue-num-queues".to_owned(), count.into()),
            set("request-rx-copy".to_owned(), 1),
            set("feature-sg".to_owned(), 1),
        ];
        for (index, queue) in queues.iter().enumerate() {
            let prefix = if count == 1 { String::new() } else { format!("queue-{index}/") };
            changes.push(set(format!("{prefix}tx-ring-ref"), queue.tx_ring_ref.0));
            changes.push(set(format!("{prefix}rx-ring-ref"), queue.rx_ring_ref.0));
            let EventPorts::Single(port) = queue.events else { continue };
            changes.push(set(format!("{prefix}event-channel"), port.0));
        }
        store::change(&mut self.store, &VIF.frontend_dir(), changes);
        self.guest.queues = queues;
        self.set_guest(Connected);
    }

    fn queue(&mut self) -> QueueConfig {
        self.next_ref += 2;
        QueueConfig {
            tx_ring_ref: GrantRef(self.next_ref),
            rx_ring_ref: GrantRef(self.next_ref + 1),
            events: EventPorts::Single(EvtchnPort(self.next_ref)),
        }
    }

    fn set_guest(&mut self, state: XenbusState) {
        self.store.insert(VIF.frontend_state(), state.value().to_owned());
        self.backend.is_notified = true;
    }
}

impl Backend {
    fn new(limit: u16) -> Backend {
        let features = Features::from(OffloadCaps::ALL);
        let offer = Offer { queues_max: limit, split_event_channels: true, features };
        Backend {
            machine: Handshake::new(offer, Hotplug::Absent),
            limit,
            inputs: VecDeque::new(),
            actions: VecDeque::new(),
            is_notified: true,
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
        let all = [
            (Step::Backend, has_work || backend.is_notified),
            (Step::Read, backend.reading.is_some() && !has_work),
            (Step::Guest, guest.is_notified),
        ];
        all.into_iter().filter(|(_, has_turn)| *has_turn).map(|(step, _)| step).collect()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Backend => self.step_backend(),
            Step::Read => self.read_frontend(),
            Step::Guest => self.step_guest(),
        }
    }

    fn disturb(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::RestartBackend(limit) => self.start_backend(limit),
            Disturbance::SetLimit(queues_max, reconnect) => {
                self.backend.limit = queues_max;
                self.backend.inputs.push_back(Input::OfferChanged { queues_max, reconnect });
            }
            Disturbance::Rebind(wanted) => {
                let is_closed = self.state(&VIF.backend_state()) == Closed;
                match self.guest.driver {
                    // It is on its way already.
                    Driver::Unbinding(stage, _) => {
                        self.guest.driver = Driver::Unbinding(stage, wanted);
                    }
                    Driver::Binding => self.guest.wanted = wanted,
                    Driver::Bound if is_closed => self.bind(wanted),
                    Driver::Bound => {
                        self.guest.driver = Driver::Unbinding(Unbinding::Closing, wanted);
                        self.set_guest(Closing);
                        self.guest.is_notified = true;
                    }
                }
            }
            Disturbance::Fault => {
                self.backend.inputs.push_back(Input::PeerFault("it ran away".to_owned()));
            }
        }
    }
}

/// All grants of the guest's queues.
pub(crate) fn refs(world: &World) -> BTreeSet<u32> {
    world.guest.queues.iter().map(|queue| queue.tx_ring_ref.0).collect()
}
