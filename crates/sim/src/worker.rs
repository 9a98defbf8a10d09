//! One engine, and the work of the thread around it: its bell, its commands, its events.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Instant;

use ringway_datapath::{Frame, FramePool, PoolBudget, QueueCounters, Wakers, Woken};
use ringway_engine::steps::{Command, Taken};
use ringway_engine::{
    Attached, Directory, Engine, Failure, IfIdle, Inbox, SlotId, Wait, Whereabouts,
};
use ringway_steering::FlowKey;
use ringway_switch::PortId;
use ringway_wire::EvtchnPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::canary::Canary;
use crate::device::DeviceEvent;
use crate::port::Port;

/// An engine as its thread drives it.
pub(crate) struct Worker {
    engine: Engine<Port>,
    pub(crate) inbox: Arc<Inbox>,
    bell: Arc<Bell>,
    requests: VecDeque<Request>,
    /// The newest directory with which it has begun a round.
    pub(crate) seen: u64,
    pub(crate) waited: Wait,
    /// The directory of the round that it has begun, while other parts act.
    begun: Option<Arc<Directory>>,
    /// The events of each slot's queue.
    events: BTreeMap<usize, Events>,
    /// Detached queues, in the order of the commands.
    pub(crate) returned: VecDeque<Taken<Port>>,
    canary: Option<Canary>,
    events_taken: u64,
    overlooked: Vec<usize>,
}

/// The requests of the control plane to an engine's thread.
pub(crate) enum Request {
    Apply(Command<Port>),
    TakeBack { id: SlotId },
}

/// The place of a frame in an engine. A port is known if its queue is there, or about to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Waiting {
    /// It came from this port and could not be forwarded yet.
    Kept { from: PortId },
    /// It waits to be sent by the queue in this slot.
    Backlog { slot: SlotId, to: Option<PortId> },
    /// It waits until its flow has moved to another queue of this port, or stays.
    Parked { to: PortId },
    /// It is in the inbox of the engine.
    Parcel { slot: SlotId, to: Option<PortId> },
}

/// The events of a queue.
struct Events {
    ports: Vec<EvtchnPort>,
    /// The descriptors of a queue that responds after frames have left.
    descriptors: Vec<OwnedFd>,
    /// The event of a device's queue.
    device: Option<DeviceEvent>,
    /// Those of the queue, which tell it from others.
    counters: Arc<QueueCounters>,
}

impl Events {
    fn of(port: &Port) -> Events {
        let mut descriptors = Vec::new();
        port.wakers(&mut |fd| descriptors.extend(fd.try_clone_to_owned().ok()));
        let (ports, counters) = (port.events.clone(), Arc::clone(&port.counters));
        Events { ports, descriptors, device: port.device_event(), counters }
    }

    fn are_there(&self, pending: &[EvtchnPort]) -> bool {
        let is_readable = |fd: &OwnedFd| {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut fds = [PollFd::new(fd, PollFlags::IN)];
            poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
        };
        self.ports.iter().any(|port| pending.contains(port))
            || self.descriptors.iter().any(is_readable)
            || self.device.as_ref().is_some_and(DeviceEvent::is_there)
    }

    /// Clears events after their report. Those of a device are edge-triggered; the queue clears the
    /// others.
    fn reported(&self) {
        self.device.iter().for_each(DeviceEvent::clear);
    }
}

/// The bell that wakes the thread.
struct Bell {
    is_rung: AtomicBool,
    rings: AtomicU64,
    canary: Option<Canary>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let rings = self.rings.fetch_add(1, Ordering::Relaxed);
        if self.canary == Some(Canary::LostRing) && rings % 8 == 7 {
            return;
        }
        self.is_rung.store(true, Ordering::Relaxed);
    }
}

impl Worker {
    pub(crate) fn new(
        number: usize,
        budget: &Arc<PoolBudget>,
        started: Instant,
        flow_key: FlowKey,
        canary: Option<Canary>,
    ) -> Worker {
        let bell =
            Arc::new(Bell { is_rung: AtomicBool::new(false), rings: AtomicU64::new(0), canary });
        let inbox = Arc::new(Inbox::new(Waker::from(Arc::clone(&bell))));
        let pool = FramePool::new(Arc::clone(budget));
        Worker {
            engine: Engine::new(number, Arc::clone(&inbox), pool, started, flow_key),
            inbox,
            bell,
            requests: VecDeque::new(),
            seen: 0,
            waited: Wait::Now,
            begun: None,
            events: BTreeMap::new(),
            returned: VecDeque::new(),
            canary,
            events_taken: 0,
            overlooked: Vec::new(),
        }
    }

    pub(crate) fn request(&mut self, request: Request) {
        self.requests.push_back(request);
        self.inbox.announce_command();
    }

    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Memory in buffers that the engine keeps for later frames.
    pub(crate) fn bytes_kept(&self) -> usize {
        self.engine.bytes_kept()
    }

    /// Drops that no queue has counted yet.
    pub(crate) fn drops_to_count(&self) -> u64 {
        self.engine.drops_to_count()
    }

    /// Visits every frame that is in the engine, on its way to it, or in a queue that it returns.
    pub(crate) fn visit_frames(&self, visit: &mut dyn FnMut(Waiting, &Frame)) {
        let mut in_engine = |at, frame: &Frame| match at {
            Whereabouts::Kept { from } => visit(Waiting::Kept { from }, frame),
            Whereabouts::Parked { to } => visit(Waiting::Parked { to }, frame),
            Whereabouts::Waits { to, slot } => {
                visit(Waiting::Backlog { slot, to: Some(to) }, frame);
            }
            Whereabouts::Gathers { slot } => {
                visit(Waiting::Backlog { slot, to: self.port_at(slot) }, frame);
            }
        };
        self.engine.visit_frames(&mut in_engine);
        for attached in self.attaching().chain(self.returned.iter().flatten()) {
            attached.visit_frames(&mut in_engine);
        }
        self.inbox.visit_parcels(&mut |parcel| {
            let (slot, to) = (parcel.to, self.port_at(parcel.to));
            visit(Waiting::Parcel { slot, to }, &parcel.frame);
        });
    }

    /// Queues that the engine is about to take over.
    fn attaching(&self) -> impl Iterator<Item = &Box<Attached<Port>>> {
        self.requests.iter().filter_map(|request| match request {
            Request::Apply(Command::Attach { attached }) => Some(attached),
            _ => None,
        })
    }

    /// The port of the queue in this slot, or of the one that will be there after pending commands.
    fn port_at(&self, slot: SlotId) -> Option<PortId> {
        let coming = || self.attaching().find(|attached| attached.id() == slot);
        self.engine.port_at(slot).or_else(|| Some(coming()?.port_id()))
    }

    /// The event channel ports of all its queues.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &EvtchnPort> {
        self.events.values().flat_map(|events| &events.ports)
    }

    /// Slots of queues with an event, if these ports are pending.
    fn slots_with_events(&self, pending: &[EvtchnPort]) -> Vec<usize> {
        let ready = self.events.iter().filter(|(_, events)| events.are_there(pending));
        ready.map(|(slot, _)| *slot).collect()
    }

    /// Whether the thread would run now.
    pub(crate) fn may_run(&self, now: Instant, pending: &[EvtchnPort]) -> bool {
        match self.waited {
            _ if self.has_begun() => true,
            Wait::Now | Wait::Poll => true,
            Wait::Until(then) if then <= now => true,
            Wait::Until(_) | Wait::Event => {
                self.bell.is_rung.load(Ordering::Relaxed)
                    || self
                        .slots_with_events(pending)
                        .iter()
                        .any(|it| !self.overlooked.contains(it))
            }
        }
    }

    /// The thread's work before a round: events, commands, and reading the newest directory.
    /// `takes_event` decides for each pending event whether it is reported in time.
    pub(crate) fn begin(
        &mut self,
        directory: &Arc<Directory>,
        pending: &[EvtchnPort],
        mut takes_event: impl FnMut() -> bool,
    ) {
        self.bell.is_rung.store(false, Ordering::Relaxed);
        self.overlooked.clear();
        for slot in self.slots_with_events(pending) {
            if takes_event() {
                self.report(slot);
            }
        }
        if self.inbox.take_commands() {
            while let Some(request) = self.requests.pop_front() {
                self.apply(request);
            }
        }
        self.seen = directory.version;
        self.begun = Some(Arc::clone(directory));
    }

    /// Whether it has begun a turn, so that a round is next.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// One round, with the directory that was the newest at the beginning of the turn.
    pub(crate) fn round(&mut self, now: Instant, if_idle: IfIdle) {
        if let Some(directory) = self.begun.take() {
            self.waited = self.engine.round(now, &directory, if_idle);
        }
    }

    /// Reports an event to the engine. With the canary, an event is occasionally missed until the
    /// thread runs again for another reason.
    fn report(&mut self, slot: usize) {
        self.events_taken += 1;
        if self.canary == Some(Canary::LostEvent) && self.events_taken % 8 == 7 {
            self.overlooked.push(slot);
        } else {
            self.events.get(&slot).into_iter().for_each(Events::reported);
            self.engine.ready(slot, Woken::Unknown);
        }
    }

    fn apply(&mut self, request: Request) {
        match request {
            Request::Apply(command) => {
                if let Command::Attach { attached } = &command {
                    self.events.insert(attached.id().index, Events::of(attached.queue()));
                }
                self.engine.apply(command);
            }
            Request::TakeBack { id } => {
                let detached = self.engine.detach(id).map(Box::new);
                if detached.is_some() {
                    self.events.remove(&id.index);
                }
                self.returned.push_back(detached);
            }
        }
    }

    pub(crate) fn next_failure(&mut self) -> Option<Failure<Port>> {
        let failure = self.engine.next_failure()?;
        self.events.retain(|_, it| !Arc::ptr_eq(&it.counters, &failure.queue.counters));
        Some(failure)
    }
}
