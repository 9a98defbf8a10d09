//! The control thread's view of workers: starts them, attaches and detaches ports, moves queues.

mod balance;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ringway_datapath::{FramePool, PoolBudget, PortQueue, Wakers};
use ringway_engine::steps::{self, Attachment, Command, Engines, NewPort, Taken};
use ringway_engine::{
    Attached, Directory, Engine, Failure, Forwarding, Inbox, Limits, QueueAddress, Roster,
};
use ringway_steering::FlowKey;
use ringway_switch::{PortId, PortPolicy};
use ringway_sys::wake::WakeFd;
use ringway_watchdog::{Pulse, Roster as WatchRoster, Waiting};

use crate::idle::{Idle, Polling};
use crate::placement::{self, Placement, Policy};
use crate::thread::{Public, Reporter, Request, Worker, WorkerParts};

/// How to start workers.
#[derive(Debug, Clone)]
pub struct WorkersConfig {
    /// How many workers, unless the policy determines it; at least 1.
    pub workers: usize,
    /// How queues are placed.
    pub policy: Policy,
    /// The CPUs that workers are pinned to, round robin; empty for no pinning.
    pub cpus: Vec<usize>,
    /// Adaptive polling.
    pub polling: Polling,
    /// Memory for frames in flight, in bytes, for all workers together.
    pub frame_memory: usize,
    /// The key by which they choose a queue of a flow.
    pub flow_key: FlowKey,
    /// The name of the threads, followed by a number.
    pub name: String,
}

/// The most workers, whatever the policy.
pub const WORKERS_MAX: usize = 1024; // not a limit: our own threads
/// How long a worker may take to reply. It replies between two rounds, which take microseconds if
/// CPUs are available; if they are not, the worker's queues must not be given up for a late reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60); // not a limit: our own threads

/// How often a worker is checked in a row, with the CPU yielded to others in between.
const YIELDS_MAX: u32 = 1000; // not a limit: our own threads
/// The pause between checks after that.
const ASK_PAUSE: Duration = Duration::from_millis(1);

struct Thread<Q> {
    requests: Sender<Request<Q>>,
    inbox: Arc<Inbox>,
    public: Arc<Public>,
    busy_before: u64,
    handle: JoinHandle<()>,
}

/// All workers of a process. Dropping it stops them.
pub struct Workers<Q: PortQueue + Wakers + Send + 'static> {
    config: WorkersConfig,
    threads: Vec<Thread<Q>>,
    directory: Arc<ArcSwap<Directory>>,
    roster: Roster,
    budget: Arc<PoolBudget>,
    started: Instant,
    /// When load was last balanced.
    balanced_at: Instant,
    failures: Receiver<Failure<Q>>,
    failures_sender: Sender<Failure<Q>>,
    /// Wakes the thread that owns this.
    bell: Arc<WakeFd>,
    on_panic: Arc<OnceLock<OnPanic>>,
    /// The watched threads.
    watched_by: WatchRoster,
    /// The pulse of the thread that owns this.
    pulse: Option<Arc<Pulse>>,
}

/// Called when a worker has panicked, with the port and the number of the queue that it was
/// serving, if known.
pub type OnPanic = Box<dyn Fn(Option<(PortId, u16)>) + Send + Sync>;

impl<Q: PortQueue + Wakers + Send + 'static> Workers<Q> {
    /// Starts the workers; with [`Policy::PerQueue`] they start with their queues.
    ///
    /// # Errors
    /// Errors of creating threads and descriptors.
    pub fn start(config: WorkersConfig) -> io::Result<Workers<Q>> {
        Workers::start_watched(config, WatchRoster::default(), None)
    }

    /// Starts workers with watched threads. `pulse` is that of the thread that owns the workers: it
    /// may sleep while it waits for one of them.
    ///
    /// # Errors
    /// As [`start`](Workers::start).
    pub fn start_watched(
        config: WorkersConfig,
        watched_by: WatchRoster,
        pulse: Option<Arc<Pulse>>,
    ) -> io::Result<Workers<Q>> {
        let (failures_sender, failures) = mpsc::channel();
        let mut workers = Workers {
            budget: PoolBudget::new(config.frame_memory),
            threads: Vec::new(),
            directory: Arc::new(ArcSwap::from_pointee(Directory::default())),
            roster: Roster::default(),
            started: Instant::now(),
            balanced_at: Instant::now(),
            failures,
            failures_sender,
            bell: Arc::new(WakeFd::new()?),
            on_panic: Arc::default(),
            watched_by,
            pulse,
            config,
        };
        if workers.config.policy != Policy::PerQueue {
            for _ in 0..workers.config.workers.clamp(1, WORKERS_MAX) {
                workers.start_thread()?;
            }
        }
        Ok(workers)
    }

    /// Attaches all queues of a port at once. `forwarding` determines where their frames go.
    ///
    /// # Errors
    /// Of kind `AlreadyExists` if the port has queues, `InvalidInput` if there are more than 65535;
    /// errors of creating threads.
    pub fn attach(
        &mut self,
        port: PortId,
        forwarding: &Forwarding,
        queues: Vec<Attachment<Q>>,
    ) -> io::Result<()> {
        let (policy, limits) = (&Arc::new(PortPolicy::open()), &Limits::default());
        let new = NewPort { id: port, forwarding, policy, limits, steering: None };
        steps::attach(self, new, queues)
    }

    /// Takes back all queues of a port, in order of their numbers, except those that have failed.
    /// Frames that waited to leave are lost.
    pub fn detach(&mut self, port: PortId) -> Vec<Q> {
        let mut pool = FramePool::new(Arc::clone(&self.budget));
        let mut queues = Vec::new();
        let let_go = |_: &mut Self, attached: Attached<Q>| {
            queues.push(attached.into_queue(&mut pool));
        };
        let Ok(()) = steps::detach(self, port, let_go);
        queues
    }

    /// Moves one queue of a port to a worker, whatever the policy. False if there is no such queue
    /// or worker. All flows stay in order; under [`Policy::Balanced`] a later
    /// [`rebalance`](Workers::rebalance) may move the queue again.
    pub fn place(&mut self, port: PortId, queue: u16, worker: usize) -> bool {
        let Some(placed) = self.roster.queue(port, queue) else { return false };
        if worker >= self.threads.len() {
            return false;
        }
        if placed.address.engine != worker {
            let Ok(_) = steps::move_queue(self, port, queue, worker);
        }
        true
    }

    /// Where every queue is, with its load since the last [`rebalance`](Workers::rebalance).
    pub fn placements(&self) -> Vec<Placement> {
        let queues = self.roster.queues().iter();
        queues
            .map(|placed| Placement {
                port: placed.port,
                queue: placed.queue,
                worker: placed.address.engine,
                load: placed.work().load,
            })
            .collect()
    }

    /// Sets a function that a panicking worker calls on its thread; without it, the thread ends and
    /// its queues are no longer served. Only the first call has an effect.
    pub fn on_panic(&self, then: OnPanic) {
        let _ = self.on_panic.set(then);
    }

    /// How many workers there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// The time that each worker has spent in rounds that found work.
    pub fn busy(&self) -> impl ExactSizeIterator<Item = Duration> {
        let busy = |thread: &Thread<Q>| thread.public.busy_ns.load(Ordering::Relaxed);
        self.threads.iter().map(move |thread| Duration::from_nanos(busy(thread)))
    }

    /// Whether every worker responds within this time: for tests. A worker that does not is
    /// starved, stuck or has panicked.
    #[doc(hidden)]
    pub fn all_respond(&self, timeout: Duration) -> bool {
        let (reply, replies) = mpsc::channel();
        for worker in 0..self.threads.len() {
            self.request(worker, Request::Reply { reply: reply.clone() });
        }
        drop(reply);
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| replies.recv_timeout(left()).ok()).count() == self.threads.len()
    }

    /// A queue that failed since the last call. Its port's other queues are served until
    /// [`detach`](Workers::detach).
    pub fn next_failure(&mut self) -> Option<Failure<Q>> {
        self.bell.clear();
        self.failures.try_recv().ok()
    }

    fn choose_worker(&mut self, port: PortId, queue: u16, queues: u16) -> io::Result<usize> {
        match self.config.policy {
            Policy::PerQueue => {
                let queues = self.roster.queues();
                let is_free =
                    |worker: &usize| queues.iter().all(|placed| placed.address.engine != *worker);
                match (0..self.threads.len()).find(is_free) {
                    Some(worker) => Ok(worker),
                    None if self.threads.len() >= WORKERS_MAX => {
                        Ok(placement::least_loaded(&self.placements(), self.threads.len()))
                    }
                    None => self.start_thread(),
                }
            }
            Policy::Static => Ok(placement::static_worker(port, queue, self.threads.len())),
            Policy::Balanced if queues > 1 => {
                Ok(placement::affine_worker(queue, self.threads.len()))
            }
            Policy::Balanced => Ok(placement::least_loaded(&self.placements(), self.threads.len())),
        }
    }

    fn start_thread(&mut self) -> io::Result<usize> {
        let number = self.threads.len();
        let (requests, receiver) = mpsc::channel();
        let bell = Arc::new(WakeFd::new()?);
        let inbox = Arc::new(Inbox::new(Waker::from(Arc::clone(&bell))));
        let public = Arc::new(Public::default());
        let pool = FramePool::new(Arc::clone(&self.budget));
        let mut worker = Worker::new(WorkerParts {
            engine: Engine::new(
                number,
                Arc::clone(&inbox),
                pool,
                self.started,
                self.config.flow_key,
            ),
            inbox: Arc::clone(&inbox),
            bell,
            requests: receiver,
            reports: Reporter {
                failures: self.failures_sender.clone(),
                bell: Arc::clone(&self.bell),
            },
            directory: Arc::clone(&self.directory),
            public: Arc::clone(&public),
            idle: Idle::new(self.config.polling),
        })?;
        let on_panic = Arc::clone(&self.on_panic);
        let cpus = &self.config.cpus;
        let cpu = (!cpus.is_empty()).then(|| cpus[number % cpus.len()]);
        let name = format!("{}{number}", self.config.name);
        let watched_by = self.watched_by.clone();
        let handle = std::thread::Builder::new().name(name.clone()).spawn(move || {
            worker.enter(&watched_by, &name);
            if let Some(cpu) = cpu {
                // Serve even if the CPU has gone offline.
                let _ = ringway_sys::process::pin_current_thread(cpu);
            }
            run(&mut worker, &on_panic);
        })?;
        self.threads.push(Thread { requests, inbox, public, busy_before: 0, handle });
        self.roster.add_engine();
        let Ok(()) = self.publish();
        Ok(number)
    }

    /// While this exists, the thread that owns the workers may sleep.
    fn waiting(&self) -> Option<Waiting<'_>> {
        self.pulse.as_deref().map(Pulse::wait)
    }

    fn request(&self, worker: usize, request: Request<Q>) {
        let thread = &self.threads[worker];
        // A worker ends only on request, and no request follows that one.
        let _ = thread.requests.send(request);
        thread.inbox.announce_command();
    }
}

/// A worker that does not respond in time is stuck or has panicked: its queues are lost.
impl<Q: PortQueue + Wakers + Send + 'static> Engines for Workers<Q> {
    type Queue = Q;
    type Gone = Infallible;

    fn roster(&mut self) -> Result<&mut Roster, Infallible> {
        Ok(&mut self.roster)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn choose_places(&mut self, port: &NewPort<'_>, count: u16) -> io::Result<Vec<QueueAddress>> {
        let (port, patched_to) = (port.id, port.forwarding.patched_to());
        let mut addresses = Vec::new();
        // The frames of a pair then never change workers, which would cost more than serving both
        // queues.
        let pairs = patched_to.filter(|to| self.roster.count(*to) == count.into());
        let pairs = pairs.filter(|_| self.config.policy == Policy::Balanced);
        for queue in 0..count {
            let partner = pairs.and_then(|to| self.roster.partner(port, queue, to));
            let worker = match partner {
                Some(partner) => Ok(partner.address.engine),
                None => self.choose_worker(port, queue, count),
            };
            match worker {
                Ok(worker) => addresses.push(self.roster.place(port, queue, patched_to, worker)),
                Err(error) => {
                    self.roster.remove(port);
                    addresses.iter().for_each(|address| self.roster.free(address));
                    return Err(error);
                }
            }
        }
        Ok(addresses)
    }

    fn attached(&mut self, port: PortId) {
        self.colocate(port);
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }

    fn next_failure(&mut self) -> Option<Failure<Q>> {
        Workers::next_failure(self)
    }

    fn command(&mut self, engine: usize, command: Command<Q>) -> Result<(), Infallible> {
        self.request(engine, Request::Apply(command));
        Ok(())
    }

    fn wait_until_applied(&mut self, engines: &BTreeSet<usize>) -> Result<(), Infallible> {
        let (reply, replies) = mpsc::channel();
        for engine in engines {
            self.request(*engine, Request::Reply { reply: reply.clone() });
        }
        drop(reply);
        let _waiting = self.waiting();
        // Ends when the last one has replied and dropped its sender.
        while replies.recv_timeout(REPLY_TIMEOUT).is_ok() {}
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Infallible> {
        let inboxes = self.threads.iter().map(|thread| Arc::clone(&thread.inbox)).collect();
        let version = self.directory.load().version + 1;
        self.directory.store(Arc::new(self.roster.directory(version, inboxes)));
        Ok(())
    }

    fn wait_until_seen(&mut self) -> Result<(), Infallible> {
        let version = self.directory.load().version;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let _waiting = self.waiting();
        for thread in &self.threads {
            let mut asked = 0_u32;
            while thread.public.seen.load(Ordering::Acquire) < version && Instant::now() < deadline
            {
                thread.inbox.announce_command();
                asked += 1;
                match asked {
                    ..=YIELDS_MAX => std::thread::yield_now(),
                    // The worker has no CPU, and more polling would not get it one.
                    _ => std::thread::sleep(ASK_PAUSE),
                }
            }
        }
        Ok(())
    }

    fn take_back(&mut self, from: &QueueAddress) -> Result<Taken<Q>, Infallible> {
        let (reply, replies) = mpsc::channel();
        self.request(from.engine, Request::TakeBack { id: from.slot, reply });
        let _waiting = self.waiting();
        Ok(replies.recv_timeout(REPLY_TIMEOUT).ok().flatten())
    }

    fn release(&mut self, attached: Attached<Q>) {
        drop(attached.into_queue(&mut FramePool::new(Arc::clone(&self.budget))));
    }

    fn nudge_all(&mut self) -> Result<(), Infallible> {
        self.threads.iter().for_each(|thread| thread.inbox.nudge());
        Ok(())
    }
}

/// Runs a worker until it ends. A panic leaves the worker's state undefined: only the queue that it
/// was serving is read from it.
fn run<Q: PortQueue + Wakers>(worker: &mut Worker<Q>, on_panic: &OnceLock<OnPanic>) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) else { return };
    if let Some(then) = on_panic.get() {
        then(worker.current_queue());
    }
    resume_unwind(panic);
}

impl<Q: PortQueue + Wakers + Send + 'static> AsFd for Workers<Q> {
    /// Readable when [`next_failure`](Workers::next_failure) has something, or a queue has work for
    /// the thread that owns this, until that calls it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl<Q: PortQueue + Wakers + Send + 'static> Drop for Workers<Q> {
    fn drop(&mut self) {
        for worker in 0..self.threads.len() {
            self.request(worker, Request::Stop);
        }
        let pulse = self.pulse.take();
        let _waiting = pulse.as_deref().map(Pulse::wait);
        for thread in self.threads.drain(..) {
            // A worker that panicked has printed why.
            let _ = thread.handle.join();
        }
    }
}
