//! The thread around an engine: its clock, its descriptors, its commands.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::task::Waker;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ringway_datapath::{PortQueue, QueueDown, Wakers, Woken};
use ringway_engine::steps::{Command, Taken};
use ringway_engine::{Attached, Directory, Engine, Failure, Inbox, SlotId, Wait};
use ringway_switch::PortId;
use ringway_sys::wake::WakeFd;
use ringway_watchdog::{Pulse, Roster};
use rustix::event::epoll;

use crate::bulk::Bulk;
use crate::idle::Idle;

/// Busy rounds between checks of the descriptors of queues that are armed.
const ROUNDS_PER_CHECK: u32 = 8;
/// Descriptors handled per check.
const EVENTS_MAX: usize = 64; // not a limit: a batch, the rest follows
/// The bell's epoll data: no queue has that many descriptors.
const BELL: u64 = u64::MAX;

/// What the control thread asks of a worker.
pub(crate) enum Request<Q> {
    /// Apply a command to the engine.
    Apply(Command<Q>),
    /// Give a queue up.
    TakeBack { id: SlotId, reply: Sender<Taken<Q>> },
    /// Reply when all earlier requests are done.
    Reply { reply: Sender<()> },
    /// End.
    Stop,
}

/// What a worker publishes to other threads.
#[derive(Debug, Default)]
pub(crate) struct Public {
    /// The newest directory version that it has seen.
    pub(crate) seen: AtomicU64,
    /// Time spent in rounds that found work, in nanoseconds.
    pub(crate) busy_ns: AtomicU64,
}

/// How a worker reports failed queues to the control thread.
pub(crate) struct Reporter<Q> {
    pub(crate) failures: Sender<Failure<Q>>,
    pub(crate) bell: Arc<WakeFd>,
}

impl<Q> Reporter<Q> {
    fn send(&self, failure: Failure<Q>) {
        // Without a control thread there is nothing to report to.
        if self.failures.send(failure).is_ok() {
            self.bell.ring();
        }
    }
}

/// Everything one thread owns.
pub(crate) struct Worker<Q> {
    engine: Engine<Q>,
    inbox: Arc<Inbox>,
    bell: Arc<WakeFd>,
    requests: Receiver<Request<Q>>,
    reports: Reporter<Q>,
    directory: Arc<ArcSwap<Directory>>,
    public: Arc<Public>,
    epoll: OwnedFd,
    idle: Idle,
    pulse: Arc<Pulse>,
}

/// The parts of a worker.
pub(crate) struct WorkerParts<Q> {
    pub(crate) engine: Engine<Q>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) bell: Arc<WakeFd>,
    pub(crate) requests: Receiver<Request<Q>>,
    pub(crate) reports: Reporter<Q>,
    pub(crate) directory: Arc<ArcSwap<Directory>>,
    pub(crate) public: Arc<Public>,
    pub(crate) idle: Idle,
}

/// Whether a thread continues.
#[derive(PartialEq, Eq)]
enum Next {
    Round,
    Stop,
}

impl<Q: PortQueue + Wakers> Worker<Q> {
    pub(crate) fn new(parts: WorkerParts<Q>) -> io::Result<Worker<Q>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, &*parts.bell, data, epoll::EventFlags::IN)?;
        Ok(Worker {
            engine: parts.engine,
            inbox: parts.inbox,
            bell: parts.bell,
            requests: parts.requests,
            reports: parts.reports,
            directory: parts.directory,
            public: parts.public,
            epoll,
            idle: parts.idle,
            pulse: Arc::default(),
        })
    }

    /// The queue that it is serving, or was when it panicked.
    pub(crate) fn current_queue(&self) -> Option<(PortId, u16)> {
        self.engine.current_queue()
    }

    /// Has the calling thread, which will run this worker, watched under this name.
    pub(crate) fn enter(&self, roster: &Roster, name: &str) {
        roster.enter(name, &self.pulse, Some(Waker::from(Arc::clone(&self.bell))));
    }

    /// Runs until the command to stop.
    pub(crate) fn run(&mut self) {
        // This finds a new directory with a plain load; a reference count that all workers write in
        // each round would be the only thing that they contend for.
        let mut directories = arc_swap::Cache::new(Arc::clone(&self.directory));
        let mut rounds = 0_u32;
        // Read once per round: without a vDSO clock, as under Xen, this is a system call.
        let mut before = Instant::now();
        let mut bulk = Bulk::new(before);
        let mut waited = Wait::Poll;
        loop {
            let now = Instant::now();
            if waited == Wait::Now {
                self.idle.worked(before);
                self.count_busy(now.saturating_duration_since(before));
                if let Some(waits) = bulk.worked(now) {
                    // Where it may not choose, it has the policy that it was given.
                    let _ = ringway_sys::process::wait_for_running_threads(waits);
                }
            }
            before = now;
            if self.inbox.take_commands() && self.apply() == Next::Stop {
                return;
            }
            let directory = directories.load();
            self.public.seen.store(directory.version, Ordering::Release);
            waited = self.engine.round(now, directory, self.idle.at(now));
            self.report_failures();
            rounds = rounds.wrapping_add(1);
            self.pulse.beat();
            self.wait(waited, now, rounds);
        }
    }

    /// Waits as long as the round allows, or checks for events without waiting.
    fn wait(&mut self, wait: Wait, now: Instant, rounds: u32) {
        match wait {
            Wait::Now => {
                if rounds % ROUNDS_PER_CHECK == 0 {
                    self.take_events(Some(Duration::ZERO));
                }
            }
            Wait::Poll => {
                self.take_events(Some(Duration::ZERO));
                // Polling must not take the core from other threads.
                std::thread::yield_now();
            }
            Wait::Until(then) => self.sleep(Some(then.saturating_duration_since(now))),
            Wait::Event => self.sleep(None),
        }
    }

    /// Counts the time of a round that found work.
    fn count_busy(&self, elapsed: Duration) {
        // Only this thread writes the number, so a load and a store are enough.
        let busy = &self.public.busy_ns;
        let time = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let sum = busy.load(Ordering::Relaxed).wrapping_add(time);
        busy.store(sum, Ordering::Relaxed);
    }

    fn sleep(&mut self, timeout: Option<Duration>) {
        let pulse = Arc::clone(&self.pulse);
        let _waiting = pulse.wait();
        self.take_events(timeout);
    }

    /// Handles descriptors that are ready now, or within `timeout`.
    fn take_events(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| rustix::event::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut space = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, timeout.as_ref()) else {
            // Interrupted: the next round comes back here.
            return;
        };
        for event in events {
            match event.data.u64() {
                BELL => self.bell.clear(),
                waker => {
                    let (slot, by) = unpack(waker);
                    self.engine.ready(slot, Woken::By(by));
                }
            }
        }
    }

    /// Hands failed queues to the control thread.
    fn report_failures(&mut self) {
        while let Some(failure) = self.engine.next_failure() {
            self.unwatch(&failure.queue);
            self.reports.send(failure);
        }
    }

    fn apply(&mut self) -> Next {
        while let Ok(request) = self.requests.try_recv() {
            match request {
                Request::Apply(Command::Attach { attached }) => self.attach(*attached),
                Request::Apply(command) => self.engine.apply(command),
                Request::TakeBack { id, reply } => {
                    let detached = self.engine.detach(id).map(Box::new);
                    if let Some(attached) = &detached {
                        self.unwatch(attached.queue());
                    }
                    // If the control thread no longer waits, the queue is dropped here.
                    let _ = reply.send(detached);
                }
                Request::Reply { reply } => {
                    let _ = reply.send(());
                }
                Request::Stop => return Next::Stop,
            }
        }
        Next::Round
    }

    fn attach(&mut self, attached: Attached<Q>) {
        let slot = attached.id().index;
        let watched = self.watch(attached.queue(), slot);
        self.engine.attach(attached);
        if let Err(error) = watched {
            self.engine.fail(slot, QueueDown::Host(error));
        }
    }

    fn watch(&self, queue: &Q, slot: usize) -> io::Result<()> {
        let mut watched = Ok(());
        let mut wakers = 0..;
        queue.wakers(&mut |fd| {
            let data = epoll::EventData::new_u64(pack(slot, wakers.next().unwrap_or(0)));
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let added = epoll::add(&self.epoll, fd, data, flags).map_err(io::Error::from);
            watched = std::mem::replace(&mut watched, Ok(())).and(added);
        });
        watched
    }

    fn unwatch(&self, queue: &Q) {
        queue.wakers(&mut |fd| {
            // A descriptor that is no longer registered needs no removal.
            let _ = epoll::delete(&self.epoll, fd);
        });
    }
}

/// Epoll data for a queue's descriptor: the slot in the low bits, and above it the descriptor's
/// index within the queue.
fn pack(slot: usize, waker: u32) -> u64 {
    u64::from(waker) << 32 | u64::from(u32::try_from(slot).unwrap_or(u32::MAX))
}

fn unpack(number: u64) -> (usize, usize) {
    let half = |number: u64| usize::try_from(number & 0xffff_ffff).unwrap_or(usize::MAX);
    (half(number), half(number >> 32))
}
