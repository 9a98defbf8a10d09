//! Both ends of a vif on a XenStore in memory, one step of either end at a time.

use std::collections::{BTreeSet, VecDeque};

use ringway_datapath::OffloadCaps;
use ringway_wire::{EvtchnPort, GrantRef};
use ringway_xenbus::frontend::{Carrier, Preferences, QueueCount};
use ringway_xenbus::{
    Device, EventPorts, Features, FrontendConfig, Hotplug, KeyChange, KeySet, Offer, Offered,
    QueueConfig, Reconnects, XenbusState, backend, frontend,
};

use crate::explore::Explored;
use crate::store::{self, Store, VIF};

/// The disturbances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    KillBackend,
    KillFrontend,
    OfferChanged(u16),
    Reconnect(u16),
    /// The frontend asks for other headroom.
    Headroom(u16),
    /// The toolstack removes the vif: it writes into the backend's directory, state included.
    Remove,
    /// The guest is destroyed, and its directory with it.
    DestroyGuest,
    /// The toolstack writes `Closing` to the backend's state, which stays online.
    AskToClose,
    /// The backend's host lacks a resource at the next attempt to attach rings.
    RunShort,
}

/// The two ends, the backend's reading of keys, which may be late, and the toolstack's script,
/// which runs after the backend's offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Backend,
    Reader,
    Frontend,
    Script,
}

pub(crate) const ENDS: [End; 4] = [End::Backend, End::Reader, End::Frontend, End::Script];

/// The behaviour of the toolstack's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Absent,
    Connects,
    Fails,
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    store: Store,
    backend: Shell<backend::Handshake, backend::Input, backend::Action>,
    frontend: Shell<frontend::Handshake, frontend::Input, frontend::Action>,
    /// The backend has requested these of the frontend's keys.
    reading: Option<KeySet>,
    /// It has to wait for them.
    is_reader_late: bool,
    script: Script,
    is_script_due: bool,
    /// The watch on the script's status has fired.
    is_hotplug_news: bool,
    /// The toolstack has written the backend's state, so that state does not show the frontend what
    /// the backend still has mapped. A hypervisor then keeps the pages until they are unmapped.
    is_state_forged: bool,
    /// The backend has reported that it waits for the script.
    pub(crate) has_awaited_script: bool,
    offer: Offer,
    /// The most queues of any offer so far.
    offered_max: u16,
    preferences: Preferences,
    /// The headroom that the frontend wants.
    headroom: u16,
    /// The rings that the backend has mapped.
    attached: Option<FrontendConfig>,
    /// The frontend's queues, and the grants that are still valid.
    queues: Vec<QueueConfig>,
    granted: BTreeSet<u32>,
    next_ref: u32,
    carrier: Carrier,
    was_backend_killed: bool,
    pub(crate) detached_count: usize,
    pub(crate) reattached_count: usize,
    is_host_short: bool,
    pub(crate) retried_count: usize,
}

impl Explored for World {
    type Step = End;
    type Disturbance = Disturbance;

    fn steps(&self) -> Vec<End> {
        ENDS.into_iter().filter(|end| !self.is_idle(*end)).collect()
    }

    /// Lets an end carry out one action, or handle one input.
    fn step(&mut self, end: End) {
        match end {
            End::Backend => self.step_backend(),
            End::Reader => self.step_reader(),
            End::Frontend => self.step_frontend(),
            End::Script => self.step_script(),
        }
    }

    fn disturb(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::KillBackend => {
                self.attached = None;
                self.was_backend_killed = true;
                self.start_backend();
            }
            Disturbance::KillFrontend => {
                self.queues.clear();
                self.granted.clear();
                self.carrier = Carrier::Down;
                let (own, peer) = (self.state(End::Frontend), self.state(End::Backend));
                let machine = frontend::Handshake::new(self.preferences);
                self.frontend = Shell::new(machine, frontend::Input::Start { own, peer });
                self.headroom = 0;
            }
            Disturbance::Headroom(bytes) => {
                self.headroom = bytes;
                self.send_to_frontend(frontend::Input::Headroom(bytes));
            }
            Disturbance::OfferChanged(queues_max) => {
                self.offer.queues_max = queues_max;
                self.offered_max = self.offered_max.max(queues_max);
                let reconnect = backend::Reconnect::Now;
                self.send_to_backend(backend::Input::OfferChanged { queues_max, reconnect });
            }
            Disturbance::Reconnect(count) => self.reconnect(QueueCount::AtMost(count)),
            Disturbance::Remove => {
                // As libxl does: a state that is already closed is left unchanged.
                let mut changes = Device::removal_changes();
                changes.truncate(if self.state(End::Backend) == XenbusState::Closed {
                    1
                } else {
                    2
                });
                store::change(&mut self.store, &VIF.backend_dir(), changes);
                self.is_state_forged = true;
                // The toolstack starts no script for a vif that it removes.
                self.is_script_due = false;
                self.script = Script::Absent;
                self.frontend.is_notified = true;
                self.send_to_backend(backend::Input::Offline);
            }
            Disturbance::DestroyGuest => {
                self.queues.clear();
                self.granted.clear();
                self.frontend.is_finished = true;
                self.remove(&VIF.frontend_dir());
            }
            Disturbance::RunShort => self.is_host_short = true,
            Disturbance::AskToClose => {
                let closing = XenbusState::Closing.value().to_owned();
                self.store.insert(VIF.backend_state(), closing);
                self.is_state_forged = true;
                self.frontend.is_notified = true;
                self.send_to_backend(backend::Input::AskedToClose);
            }
        }
    }
}

/// A state machine, its pending actions, and its pending inputs.
#[derive(Debug, Clone)]
struct Shell<H, I, A> {
    machine: H,
    inputs: VecDeque<I>,
    actions: VecDeque<A>,
    /// The watch on the other end's state has fired.
    is_notified: bool,
    is_finished: bool,
}

impl<H, I, A> Shell<H, I, A> {
    fn new(machine: H, start: I) -> Shell<H, I, A> {
        let (inputs, actions) = (VecDeque::from([start]), VecDeque::new());
        // A watch fires when it is set.
        Shell { machine, inputs, actions, is_notified: true, is_finished: false }
    }

    fn is_idle(&self) -> bool {
        self.is_finished || !(self.is_busy() || self.is_notified)
    }

    /// Whether it has pending inputs or actions.
    fn is_busy(&self) -> bool {
        !(self.inputs.is_empty() && self.actions.is_empty())
    }
}

impl World {
    pub(crate) fn new(queues_max: u16, wanted: QueueCount) -> World {
        World::with_script(queues_max, wanted, Script::Absent)
    }

    pub(crate) fn with_script(queues_max: u16, wanted: QueueCount, script: Script) -> World {
        let features = Features::from(OffloadCaps::ALL);
        let offer = Offer::all(queues_max, features);
        let preferences = Preferences { queues: wanted, features };
        let unknown = XenbusState::Unknown;
        let idle = backend::Input::Hotplug(Hotplug::Absent);
        let mut world = World {
            store: store::with_vif(),
            backend: Shell::new(backend::Handshake::new(offer, Hotplug::Absent), idle),
            frontend: Shell::new(
                frontend::Handshake::new(preferences),
                frontend::Input::Start { own: unknown, peer: unknown },
            ),
            reading: None,
            is_reader_late: false,
            script,
            is_script_due: false,
            is_hotplug_news: false,
            is_state_forged: false,
            has_awaited_script: false,
            offer,
            offered_max: queues_max,
            preferences,
            headroom: 0,
            attached: None,
            queues: Vec::new(),
            granted: BTreeSet::new(),
            next_ref: 8,
            carrier: Carrier::Down,
            was_backend_killed: false,
            detached_count: 0,
            reattached_count: 0,
            is_host_short: false,
            retried_count: 0,
        };
        if script != Script::Absent {
            let path = "/etc/xen/scripts/vif-bridge".to_owned();
            store::change(
                &mut world.store,
                &VIF.backend_dir(),
                vec![KeyChange::Set("script".to_owned(), path)],
            );
        }
        world.start_backend();
        world
    }

    /// This world with a backend shell that reads keys late.
    pub(crate) fn with_late_reader(mut self) -> World {
        self.is_reader_late = true;
        self
    }

    /// Whether this end has nothing to do until the other acts.
    pub(crate) fn is_idle(&self, end: End) -> bool {
        match end {
            End::Backend => {
                self.backend.is_idle() && (self.backend.is_finished || !self.is_hotplug_news)
            }
            End::Reader => self.reading.is_none() || self.backend.is_busy(),
            End::Frontend => self.frontend.is_idle(),
            End::Script => !self.is_script_due,
        }
    }

    fn step_script(&mut self) {
        self.is_script_due = false;
        let status = if self.script == Script::Fails { "error" } else { "connected" };
        self.set_hotplug_status(Some(status));
    }

    fn hotplug_status(&self) -> Option<&str> {
        self.get(&format!("{}/hotplug-status", VIF.backend_dir()))
    }

    /// Changes the script's status.
    pub(crate) fn set_hotplug_status(&mut self, status: Option<&str>) {
        let key = "hotplug-status".to_owned();
        let change = match status {
            Some(status) => KeyChange::Set(key, status.to_owned()),
            None => KeyChange::Remove(key),
        };
        store::change(&mut self.store, &VIF.backend_dir(), vec![change]);
        self.is_hotplug_news = true;
    }

    fn hotplug(&self) -> Hotplug {
        Hotplug::read(&store::keys(&self.store, &VIF.backend_dir()))
    }

    /// A new process, which finds the current keys.
    fn start_backend(&mut self) {
        let own = store::keys(&self.store, &VIF.backend_dir());
        let peer = store::keys(&self.store, &VIF.frontend_dir());
        let start = match own.is_online() {
            true => backend::Input::Start {
                own: own.state(),
                peer: peer.state(),
                offered: Offered::read(&own),
                reconnects: Reconnects::read(&peer),
            },
            false => backend::Input::Offline,
        };
        self.reading = None;
        let machine = backend::Handshake::new(self.offer, self.hotplug());
        self.backend = Shell::new(machine, start);
        self.is_hotplug_news = true;
    }

    /// Steps both ends in turn until neither has anything to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1000 {
            let ends = ENDS;
            if ends.iter().all(|end| self.is_idle(*end)) {
                return;
            }
            for end in ends {
                if !self.is_idle(end) {
                    self.step(end);
                }
            }
        }
        panic!("it does not settle: {self:#?}");
    }

    /// Nothing is attached, and a toolstack that waits for the vif to close sees it.
    pub(crate) fn check_closed(&self) -> Result<(), String> {
        match (self.is_attached(), self.state(End::Backend)) {
            (false, XenbusState::Closed) => Ok(()),
            other => Err(format!("attached and state: {other:?}")),
        }
    }

    /// Checks that the vif is closed, and that the backend has finished with it.
    pub(crate) fn check_removed(&self) -> Result<(), String> {
        self.check_closed()?;
        match (self.backend.is_finished, self.hotplug_status()) {
            (true, None) => Ok(()),
            other => Err(format!("finished and hotplug status: {other:?}")),
        }
    }

    pub(crate) fn reconnect(&mut self, queues: QueueCount) {
        self.preferences.queues = queues;
        self.send_to_frontend(frontend::Input::Reconnect(self.preferences));
    }

    pub(crate) fn send_to_backend(&mut self, input: backend::Input) {
        self.backend.inputs.push_back(input);
    }

    pub(crate) fn send_to_frontend(&mut self, input: frontend::Input) {
        self.frontend.inputs.push_back(input);
    }

    /// Both are connected, on the same rings, which are granted, with the number of queues that
    /// both want.
    pub(crate) fn check_connected(&self) -> Result<(), String> {
        let QueueCount::AtMost(wanted) = self.preferences.queues else {
            return Err("the wish is not a legal one".into());
        };
        // A restarted backend takes over what it finds, even if its own offer is different now.
        let count = usize::from(wanted.min(self.offer.queues_max));
        let count_max = usize::from(wanted.min(self.offered_max));
        let is_right_number = match self.was_backend_killed {
            true => (1..=count_max).contains(&self.queues.len()),
            false => self.queues.len() == count,
        };
        let Some(config) = &self.attached else { return Err("nothing is attached".into()) };
        let is_true = [
            ("backend connected", self.state(End::Backend) == XenbusState::Connected),
            ("frontend connected", self.state(End::Frontend) == XenbusState::Connected),
            ("carrier up", self.carrier == Carrier::Up),
            ("frontend runs", self.frontend.machine.is_connected()),
            ("same rings", config.queues == self.queues),
            ("right number", is_right_number),
            ("rings granted", refs(&self.queues).all(|gref| self.granted.contains(&gref))),
            ("backend knows", self.backend.machine.config() == Some(config)),
            ("no error", self.error().is_none()),
            ("headroom", config.headroom == self.headroom),
        ];
        match is_true.into_iter().find(|(_, is_true)| !is_true) {
            Some((what, _)) => Err(format!("not so: {what}")),
            None => Ok(()),
        }
    }

    pub(crate) fn state(&self, end: End) -> XenbusState {
        let path = match end {
            End::Backend | End::Reader => VIF.backend_state(),
            End::Frontend | End::Script => VIF.frontend_state(),
        };
        XenbusState::parse(self.store.get(&path).map(String::as_str))
    }

    pub(crate) fn error(&self) -> Option<&str> {
        let [_, path] = VIF.backend_errors();
        self.store.get(&path).map(String::as_str)
    }

    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        self.store.get(path).map(String::as_str)
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    pub(crate) fn is_finished(&self, end: End) -> bool {
        match end {
            End::Backend | End::Reader => self.backend.is_finished,
            End::Frontend => self.frontend.is_finished,
            End::Script => self.script == Script::Absent,
        }
    }

    /// Removes a directory, as a toolstack would.
    pub(crate) fn remove(&mut self, dir: &str) {
        store::change(
            &mut self.store,
            "",
            vec![KeyChange::Remove(dir.trim_start_matches('/').to_owned())],
        );
        (self.backend.is_notified, self.frontend.is_notified) = (true, true);
    }

    fn step_backend(&mut self) {
        if let Some(action) = self.backend.actions.pop_front() {
            self.backend_action(action);
        } else if let Some(input) = self.backend.inputs.pop_front() {
            self.backend.actions.extend(self.backend.machine.handle(input));
        } else if std::mem::take(&mut self.is_hotplug_news) {
            let input = backend::Input::Hotplug(self.hotplug());
            self.backend.actions.extend(self.backend.machine.handle(input));
        } else {
            self.backend.is_notified = false;
            let input = backend::Input::FrontendState(self.state(End::Frontend));
            self.backend.actions.extend(self.backend.machine.handle(input));
        }
    }

    fn read(&mut self, set: KeySet) {
        self.reading = Some(set);
        if !self.is_reader_late {
            self.step_reader();
        }
    }

    fn step_reader(&mut self) {
        let keys = store::keys(&self.store, &VIF.frontend_dir());
        self.backend.inputs.push_front(match self.reading.take() {
            Some(KeySet::Headroom) => backend::Input::Headroom(keys),
            _ => backend::Input::FrontendKeys(keys),
        });
    }

    fn backend_action(&mut self, action: backend::Action) {
        let dir = VIF.backend_dir();
        match action {
            backend::Action::Write(changes, state) => {
                store::change(&mut self.store, &dir, changes);
                let Some(state) = state else { return };
                self.store.insert(VIF.backend_state(), state.value().to_owned());
                self.frontend.is_notified = true;
                let has_run = self.hotplug_status().is_some();
                if state == XenbusState::InitWait && self.script != Script::Absent && !has_run {
                    self.is_script_due = true;
                }
            }
            backend::Action::AwaitHotplug => self.has_awaited_script = true,
            backend::Action::ReadFrontend { queues_max } => {
                self.read(KeySet::FrontendKeys { queues_max });
            }
            backend::Action::ReadHeadroom => self.read(KeySet::Headroom),
            backend::Action::SetHeadroom(headroom) => {
                self.attached.as_mut().expect("it is served").headroom = headroom;
            }
            backend::Action::Attach(config, attachment) => {
                assert!(self.attached.is_none(), "attached twice");
                let is_granted = refs(&config.queues).all(|gref| self.granted.contains(&gref));
                if attachment == backend::Attachment::Reattach {
                    self.reattached_count += 1;
                }
                let outcome = match (is_granted, std::mem::take(&mut self.is_host_short)) {
                    (_, true) => Err(backend::NotAttached::NoResources("no memory".to_owned())),
                    (false, _) => Err(backend::NotAttached::Refused("bad grant".to_owned())),
                    (true, false) => Ok(()),
                };
                self.attached = outcome.is_ok().then_some(config);
                self.backend.inputs.push_front(backend::Input::Attached(outcome));
            }
            backend::Action::Retry { reason, queues_max } => {
                self.retried_count += 1;
                for path in VIF.backend_errors() {
                    self.store.insert(path, reason.clone());
                }
                self.reading = Some(KeySet::FrontendKeys { queues_max });
            }
            backend::Action::Detach => {
                assert!(self.attached.take().is_some(), "detached twice");
                self.detached_count += 1;
            }
            backend::Action::ReportError(reason) => {
                for path in VIF.backend_errors() {
                    self.store.insert(path, reason.clone());
                }
            }
            backend::Action::ClearError => {
                for path in VIF.backend_errors() {
                    self.store.remove(&path);
                }
            }
            backend::Action::Finished => self.backend.is_finished = true,
        }
    }

    fn step_frontend(&mut self) {
        if let Some(action) = self.frontend.actions.pop_front() {
            self.frontend_action(action);
        } else if let Some(input) = self.frontend.inputs.pop_front() {
            self.frontend.actions.extend(self.frontend.machine.handle(input));
        } else {
            self.frontend.is_notified = false;
            let input = frontend::Input::BackendState(self.state(End::Backend));
            self.frontend.actions.extend(self.frontend.machine.handle(input));
        }
    }

    fn frontend_action(&mut self, action: frontend::Action) {
        match action {
            frontend::Action::Write(changes, state) => {
                store::change(&mut self.store, &VIF.frontend_dir(), changes);
                let Some(state) = state else { return };
                self.store.insert(VIF.frontend_state(), state.value().to_owned());
                self.backend.is_notified = true;
            }
            frontend::Action::ReadBackend => {
                let keys = store::keys(&self.store, &VIF.backend_dir());
                self.frontend.inputs.push_front(frontend::Input::BackendKeys(keys));
            }
            frontend::Action::Allocate(allocation) => {
                assert!(self.queues.is_empty(), "allocated twice");
                self.queues = (0..allocation.queues).map(|_| self.queue()).collect();
                self.granted.extend(refs(&self.queues));
                let queues = Ok(self.queues.clone());
                self.frontend.inputs.push_front(frontend::Input::Allocated(queues.map(Into::into)));
            }
            frontend::Action::Release => {
                let mapped = self.attached.iter().flat_map(|config| refs(&config.queues));
                let in_use: Vec<u32> = mapped.filter(|gref| self.granted.contains(gref)).collect();
                let may_be_in_use = self.is_state_forged;
                assert!(
                    in_use.is_empty() || may_be_in_use,
                    "released while the backend has {in_use:?} mapped"
                );
                self.queues.clear();
                self.granted.clear();
            }
            frontend::Action::Carrier(carrier) => self.carrier = carrier,
            frontend::Action::ReportError(reason) => {
                self.store.insert(VIF.frontend_error(), reason);
            }
            frontend::Action::Finished => self.frontend.is_finished = true,
        }
    }

    fn queue(&mut self) -> QueueConfig {
        let mut next = || {
            self.next_ref += 1;
            self.next_ref
        };
        let (tx_ring_ref, rx_ring_ref) = (GrantRef(next()), GrantRef(next()));
        let events = EventPorts::Split { tx: EvtchnPort(next()), rx: EvtchnPort(next()) };
        QueueConfig { tx_ring_ref, rx_ring_ref, events }
    }
}

fn refs(queues: &[QueueConfig]) -> impl Iterator<Item = u32> {
    queues.iter().flat_map(|queue| [queue.tx_ring_ref.0, queue.rx_ring_ref.0])
}
