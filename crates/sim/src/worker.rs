//! One engine and what the thread around it would do: its bell, its commands, its events.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Instant;

use ringway_datapath::{FramePool, PoolBudget, Wakers};
use ringway_engine::{
    Attached, Capture, Directory, Engine, Failure, Gauge, IfIdle, Inbox, Limits, SlotId, Wait,
};
use ringway_wire::EvtchnPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::canary::Canary;
use crate::port::Port;

/// An engine as its thread drives it.
pub(crate) struct Worker {
    engine: Engine<Port>,
    pub(crate) inbox: Arc<Inbox>,
    bell: Arc<Bell>,
    commands: VecDeque<Command>,
    /// The newest directory that it has begun a round with.
    pub(crate) seen: u64,
    pub(crate) waited: Wait,
    /// What it has begun a round with, while others go on.
    begun: Option<Arc<Directory>>,
    /// By slot: what reports the events of the queue there.
    events: BTreeMap<usize, Events>,
    /// What was detached, in the order of the commands.
    pub(crate) returned: VecDeque<Option<Box<Attached<Port>>>>,
    canary: Option<Canary>,
    events_taken: u64,
    overlooked: Vec<usize>,
}

/// What the control plane asks of an engine.
pub(crate) enum Command {
    Expect { id: SlotId, gauge: Arc<Gauge> },
    Forget { id: SlotId },
    Attach { attached: Box<Attached<Port>> },
    Detach { id: SlotId },
    Capture { id: SlotId, capture: Arc<Capture> },
    Limit { id: SlotId, limits: Limits },
}

/// What reports the events of a queue.
struct Events {
    ports: Vec<EvtchnPort>,
    /// Of a queue that responds when frames have left.
    descriptors: Vec<OwnedFd>,
}

impl Events {
    fn of(port: &Port) -> Events {
        let mut descriptors = Vec::new();
        port.wakers(&mut |fd, _| descriptors.extend(fd.try_clone_to_owned().ok()));
        Events { ports: port.events.clone(), descriptors }
    }

    fn are_there(&self, pending: &[EvtchnPort]) -> bool {
        let is_readable = |fd: &OwnedFd| {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut fds = [PollFd::new(fd, PollFlags::IN)];
            poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
        };
        self.ports.iter().any(|port| pending.contains(port))
            || self.descriptors.iter().any(is_readable)
    }
}

/// What wakes the thread.
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
        canary: Option<Canary>,
    ) -> Worker {
        let bell =
            Arc::new(Bell { is_rung: AtomicBool::new(false), rings: AtomicU64::new(0), canary });
        let inbox = Arc::new(Inbox::new(Waker::from(Arc::clone(&bell))));
        let pool = FramePool::new(Arc::clone(budget));
        Worker {
            engine: Engine::new(number, Arc::clone(&inbox), pool, started),
            inbox,
            bell,
            commands: VecDeque::new(),
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

    pub(crate) fn command(&mut self, command: Command) {
        self.commands.push_back(command);
        self.inbox.announce_command();
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// The ports of the events of all its queues.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &EvtchnPort> {
        self.events.values().flat_map(|events| &events.ports)
    }

    /// Slots of queues that have an event, if these ports are pending.
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

    /// What the thread does before a round: events, commands, a look at the newest directory.
    /// `takes_event` says for each event that is there whether it is reported in time.
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
            while let Some(command) = self.commands.pop_front() {
                self.apply(command);
            }
        }
        self.seen = directory.version;
        self.begun = Some(Arc::clone(directory));
    }

    /// Whether it has begun, and a round is next.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// One round, with the directory that was the newest when it began.
    pub(crate) fn round(&mut self, now: Instant, if_idle: IfIdle) {
        if let Some(directory) = self.begun.take() {
            self.waited = self.engine.round(now, &directory, if_idle);
        }
    }

    /// Hands an event to the engine. With the canary one is overlooked now and then, until the
    /// thread runs again for some other reason.
    fn report(&mut self, slot: usize) {
        self.events_taken += 1;
        if self.canary == Some(Canary::LostEvent) && self.events_taken % 8 == 7 {
            self.overlooked.push(slot);
        } else {
            self.engine.ready(slot);
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Expect { id, gauge } => self.engine.expect(id, gauge),
            Command::Forget { id } => self.engine.forget(id),
            Command::Attach { attached } => {
                let slot = attached.id().index;
                self.events.insert(slot, Events::of(attached.queue()));
                self.engine.attach(*attached);
            }
            Command::Detach { id } => {
                let detached = self.engine.detach(id).map(Box::new);
                if detached.is_some() {
                    self.events.remove(&id.index);
                }
                self.returned.push_back(detached);
            }
            Command::Capture { id, capture } => self.engine.capture(id, &capture),
            Command::Limit { id, limits } => self.engine.limit(id, limits),
        }
    }

    pub(crate) fn next_failure(&mut self) -> Option<Failure<Port>> {
        let failure = self.engine.next_failure()?;
        self.events.retain(|_, events| events.ports != failure.queue.events);
        Some(failure)
    }
}
