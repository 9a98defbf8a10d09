//! Two engines and their control plane, which does each of its steps at once.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use ringway_datapath::{FramePool, PoolBudget, QueueCounters};
use ringway_engine::gauge::Admission;
use ringway_engine::steps::{self, Attachment, Command, Engines, NewPort, Taken};
use ringway_engine::{
    Attached, Directory, Engine, Failure, Forwarding, IfIdle, Inbox, Limits, Parcel, PortSteering,
    QueueAddress, Roster, SlotId, Wait, Whereabouts,
};
use ringway_steering::FlowKey;
use ringway_switch::{FloodBudget, FloodLimit, PortId, PortPolicy, Switch, SwitchConfig, Ticks};

use crate::MEMORY;
use crate::bench::{ONE, Station, TRAITS, TestQueue, address};

/// What a round costs in simulated time.
const ROUND: Duration = Duration::from_micros(20);

/// Counts how often it is rung.
#[derive(Debug, Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

pub(crate) struct Pair {
    pub(crate) engines: [Engine<TestQueue>; 2],
    pub(crate) inboxes: [Arc<Inbox>; 2],
    bells: [Arc<Bell>; 2],
    pub(crate) roster: Roster,
    directory: Directory,
    switch: Arc<Switch>,
    now: Instant,
    budget: Arc<PoolBudget>,
    /// The engines of the next port's queues, in their order.
    next: Vec<usize>,
    /// The ports whose queues were all attached.
    pub(crate) complete: Vec<PortId>,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        let now = Instant::now();
        let budget = PoolBudget::new(MEMORY);
        let bells: [Arc<Bell>; 2] = Default::default();
        let inbox = |bell: &Arc<Bell>| Arc::new(Inbox::new(Waker::from(Arc::clone(bell))));
        let inboxes = [inbox(&bells[0]), inbox(&bells[1])];
        let engine = |number: usize| {
            let pool = FramePool::new(Arc::clone(&budget));
            Engine::new(number, Arc::clone(&inboxes[number]), pool, now, FlowKey::new([1, 2]))
        };
        let engines = [engine(0), engine(1)];
        let mut roster = Roster::default();
        assert_eq!([roster.add_engine(), roster.add_engine()], [0, 1]);
        Pair {
            engines,
            inboxes,
            bells,
            roster,
            directory: Directory::default(),
            switch: Arc::new(Switch::new(SwitchConfig::unlimited(64, 16, 1))),
            now,
            budget,
            next: Vec::new(),
            complete: Vec::new(),
        }
    }

    /// Attaches a port with a queue in each of these engines, whose station the switch knows.
    pub(crate) fn port(&mut self, number: u8, engines: &[usize]) -> Vec<Station> {
        self.port_with(number, engines, None).expect("it has no queues yet")
    }

    pub(crate) fn port_with(
        &mut self,
        number: u8,
        engines: &[usize],
        steering: Option<&Arc<PortSteering>>,
    ) -> io::Result<Vec<Station>> {
        let id = PortId(number.into());
        self.switch.fdb().learn(address(number), id, Ticks(0));
        self.next = engines.to_vec();
        let flood = Arc::new(FloodBudget::new(FloodLimit::NONE, Ticks(0)));
        let (mut queues, mut ends) = (Vec::new(), Vec::new());
        for _ in engines {
            let (queue, far) = TestQueue::with_far(number, TRAITS);
            let counters: Arc<QueueCounters> = Arc::default();
            ends.push((far, Arc::clone(&counters)));
            queues.push(Attachment { queue, counters, flood: Arc::clone(&flood), stations: ONE });
        }
        let forwarding = Forwarding::Switch(Arc::clone(&self.switch));
        let (policy, limits) = (Arc::new(PortPolicy::open()), Limits::default());
        let (forwarding, policy, limits) = (&forwarding, &policy, &limits);
        let port = NewPort { id, forwarding, policy, limits, steering };
        steps::attach(self, port, queues)?;
        let station =
            |(queue, (far, counters))| Station::new(far, counters, self.place(number, queue).slot);
        Ok((0..).zip(ends).map(station).collect())
    }

    /// Where a queue is.
    pub(crate) fn place(&self, number: u8, queue: u16) -> QueueAddress {
        let placed = self.roster.queue(PortId(number.into()), queue);
        placed.expect("it is attached").address.clone()
    }

    /// One round of an engine.
    pub(crate) fn round(&mut self, engine: usize, if_idle: IfIdle) -> Wait {
        let wait = self.engines[engine].round(self.now, &self.directory, if_idle);
        self.now += ROUND;
        wait
    }

    /// Rounds of both engines, which poll all the time.
    pub(crate) fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.round(0, IfIdle::Poll);
            self.round(1, IfIdle::Poll);
        }
    }

    /// Rounds of an engine until it may sleep.
    pub(crate) fn rest(&mut self, engine: usize) -> Wait {
        let mut waits = (0..10).map(|_| self.round(engine, IfIdle::Sleep));
        waits.find(|wait| *wait != Wait::Now).expect("its work ends")
    }

    /// How often the thread of an engine was woken.
    pub(crate) fn rung(&self, engine: usize) -> usize {
        self.bells[engine].0.load(Relaxed)
    }

    /// How many frames an engine has in a place.
    pub(crate) fn count(&self, engine: usize, place: Whereabouts) -> usize {
        let mut count = 0;
        self.engines[engine].visit_frames(&mut |at, _| count += usize::from(at == place));
        count
    }

    /// Puts frames of these lengths into the inbox of an engine.
    pub(crate) fn put_in(&self, engine: usize, to: SlotId, by: Admission, lens: Range<usize>) {
        let mut pool = FramePool::new(Arc::clone(&self.budget));
        for len in lens {
            let frame = pool.take(len).expect("there is memory");
            let parcel = Parcel { to, frame, admission: by };
            assert!(self.inboxes[engine].push(parcel).is_ok(), "there is room");
        }
    }
}

impl Engines for Pair {
    type Queue = TestQueue;
    type Gone = Infallible;

    fn roster(&mut self) -> Result<&mut Roster, Infallible> {
        Ok(&mut self.roster)
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn choose_places(&mut self, port: &NewPort<'_>, count: u16) -> io::Result<Vec<QueueAddress>> {
        let (id, to) = (port.id, port.forwarding.patched_to());
        let engines = std::mem::take(&mut self.next);
        assert_eq!(engines.len(), usize::from(count));
        let place = |(queue, engine)| self.roster.place(id, queue, to, engine);
        Ok((0..).zip(engines).map(place).collect())
    }

    fn attached(&mut self, port: PortId) {
        self.complete.push(port);
    }

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn next_failure(&mut self) -> Option<Failure<TestQueue>> {
        self.engines.iter_mut().find_map(Engine::next_failure)
    }

    fn command(&mut self, engine: usize, command: Command<TestQueue>) -> Result<(), Infallible> {
        self.engines[engine].apply(command);
        Ok(())
    }

    fn wait_until_applied(&mut self, _: &BTreeSet<usize>) -> Result<(), Infallible> {
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Infallible> {
        let version = self.directory.version + 1;
        self.directory = self.roster.directory(version, self.inboxes.to_vec());
        Ok(())
    }

    fn wait_until_seen(&mut self) -> Result<(), Infallible> {
        self.run(1);
        Ok(())
    }

    fn take_back(&mut self, from: &QueueAddress) -> Result<Taken<TestQueue>, Infallible> {
        Ok(self.engines[from.engine].detach(from.slot).map(Box::new))
    }

    fn release(&mut self, attached: Attached<TestQueue>) {
        attached.into_queue(&mut FramePool::new(Arc::clone(&self.budget)));
    }

    fn nudge_all(&mut self) -> Result<(), Infallible> {
        self.inboxes.iter().for_each(|inbox| inbox.nudge());
        Ok(())
    }
}
