//! The control thread's view: start workers, attach and detach ports, move queues.

use std::collections::BTreeSet;
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
use ringway_datapath::{FramePool, PoolBudget, PortQueue, QueueCounters, Wakers};
use ringway_engine::{
    Attached, AttachedParts, Capture, Directory, Engine, Failure, Forwarding, Inbox, Limits, Move,
    QueueAddress, Roster, Stations, Weight,
};
use ringway_switch::{FloodBudget, PortId};

use crate::idle::{Idle, Polling};
use crate::placement::{self, Placement, Policy};
use crate::thread::{Bell, Command, Public, Reporter, Worker, WorkerParts};

/// How to start workers.
#[derive(Debug, Clone)]
pub struct WorkersConfig {
    /// How many, unless the policy says otherwise; at least 1.
    pub workers: usize,
    /// Where queues go.
    pub policy: Policy,
    /// The CPUs that workers are pinned to, in turn; empty for no pinning.
    pub cpus: Vec<usize>,
    /// Adaptive polling.
    pub polling: Polling,
    /// Memory for frames under way, in bytes, for all workers together.
    pub frame_memory: usize,
    /// The name of the threads, followed by a number.
    pub name: String,
}

/// One queue to attach.
pub struct Attachment<Q> {
    /// The queue.
    pub queue: Q,
    /// Where it counts.
    pub counters: Arc<QueueCounters>,
    /// The flooding that the port may cause: one budget for all its queues.
    pub flood: Arc<FloodBudget>,
    /// How many stations are behind the port, which is the same for all its queues.
    pub stations: Stations,
}

/// The most workers there can be, whatever the policy.
pub const WORKERS_MAX: usize = 1024;
/// Share of its time that a worker must be at work before a queue is taken from it.
const SATURATED_PERCENT: u32 = 80;
/// How long a worker may take to reply; it does so between two rounds, which take microseconds.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

struct Thread<Q> {
    commands: Sender<Command<Q>>,
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
    /// When load was last evened out.
    balanced_at: Instant,
    failures: Receiver<Failure<Q>>,
    failures_sender: Sender<Failure<Q>>,
    failures_bell: Arc<Bell>,
    on_panic: Arc<OnceLock<OnPanic>>,
}

/// What is done when a worker has panicked: it is given the port and the number of the queue that
/// it was busy with, where that is known.
pub type OnPanic = Box<dyn Fn(Option<(PortId, u16)>) + Send + Sync>;

impl<Q: PortQueue + Wakers + Send + 'static> Workers<Q> {
    /// Starts the workers; with [`Policy::PerQueue`] they start with their queues.
    ///
    /// # Errors
    /// What thread and descriptor creation report.
    pub fn start(config: WorkersConfig) -> io::Result<Workers<Q>> {
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
            failures_bell: Arc::new(Bell::new()?),
            on_panic: Arc::default(),
            config,
        };
        if workers.config.policy != Policy::PerQueue {
            for _ in 0..workers.config.workers.clamp(1, WORKERS_MAX) {
                workers.start_thread()?;
            }
        }
        Ok(workers)
    }

    /// Attaches all queues of a port at once. Their frames go where `forwarding` says.
    ///
    /// # Errors
    /// Of kind `AlreadyExists` if the port has queues, `InvalidInput` if there are more than 65535;
    /// what thread creation reports.
    pub fn attach(
        &mut self,
        port: PortId,
        forwarding: &Forwarding,
        queues: Vec<Attachment<Q>>,
    ) -> io::Result<()> {
        self.attach_limited(port, forwarding, &Limits::default(), queues)
    }

    /// The same, with limits that hold from the first frame on; see
    /// [`limit`](Workers::limit).
    ///
    /// # Errors
    /// As [`attach`](Workers::attach).
    pub fn attach_limited(
        &mut self,
        port: PortId,
        forwarding: &Forwarding,
        limits: &Limits,
        queues: Vec<Attachment<Q>>,
    ) -> io::Result<()> {
        if self.roster.queues().iter().any(|placed| placed.port == port) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if u16::try_from(queues.len()).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let addresses = self.place_all(port, forwarding.patched_to(), queues.len())?;
        let workers: BTreeSet<usize> = addresses.iter().map(|address| address.engine).collect();
        for ((queue_index, address), attachment) in (0..).zip(addresses).zip(queues) {
            let parts = AttachedParts {
                id: address.slot,
                port_id: port,
                queue_index,
                queue: attachment.queue,
                forwarding: forwarding.clone(),
                flood: attachment.flood,
                counters: attachment.counters,
                gauge: address.gauge,
                limits: limits.clone(),
                stations: attachment.stations,
            };
            let attached = Box::new(Attached::new(parts, Instant::now()));
            self.command(address.engine, Command::Attach { attached });
        }
        self.wait_until_obeyed(workers);
        self.publish();
        Ok(())
    }

    /// Chooses a worker for each queue of a port, and gives it a place there.
    fn place_all(
        &mut self,
        port: PortId,
        patched_to: Option<PortId>,
        count: usize,
    ) -> io::Result<Vec<QueueAddress>> {
        let mut addresses = Vec::new();
        for queue in (0..).take(count) {
            let partner = patched_to.and_then(|to| self.roster.partner(port, queue, to));
            // Frames of a pair then never change workers, which costs more than to serve both.
            let partner = partner.filter(|_| self.config.policy == Policy::Balanced);
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

    /// Takes all queues of a port back, in order of their numbers. A queue that had failed is not
    /// among them. Frames that waited to leave are lost.
    pub fn detach(&mut self, port: PortId) -> Vec<Q> {
        let gone = self.roster.remove(port);
        self.publish();
        self.wait_until_seen();
        let mut pool = FramePool::new(Arc::clone(&self.budget));
        let mut queues = Vec::new();
        for placed in gone {
            let attached = self.take_back(&placed.address);
            self.roster.free(&placed.address);
            queues.extend(attached.map(|attached| attached.into_queue(&mut pool)));
        }
        // Sources that these queues held may go on, and their workers may sleep.
        self.threads.iter().for_each(|thread| thread.inbox.nudge());
        queues
    }

    /// Copies all frames of a port into `capture` from now on, until it is closed. False if the
    /// port has no queues.
    pub fn capture(&self, port: PortId, capture: &Arc<Capture>) -> bool {
        let mut found = false;
        for address in self.addresses(port) {
            let (id, capture) = (address.slot, Arc::clone(capture));
            self.command(address.engine, Command::Capture { id, capture });
            found = true;
        }
        found
    }

    /// Limits what enters and leaves by all queues of a port together, from now on. It stays with
    /// the queues until they are detached.
    pub fn limit(&self, port: PortId, limits: &Limits) {
        for address in self.addresses(port) {
            let (id, limits) = (address.slot, limits.clone());
            self.command(address.engine, Command::Limit { id, limits });
        }
    }

    /// Gives a port of a single station another share of the workers, from now on.
    pub fn weigh(&self, port: PortId, weight: Weight) {
        for address in self.addresses(port) {
            self.command(address.engine, Command::Weigh { id: address.slot, weight });
        }
    }

    fn addresses(&self, port: PortId) -> impl Iterator<Item = &QueueAddress> {
        let of_port = self.roster.queues().iter().filter(move |placed| placed.port == port);
        of_port.map(|placed| &placed.address)
    }

    /// Evens out the load since the last call, by at most one move. A no-op unless the policy is
    /// [`Policy::Balanced`] and a worker has no time left: as long as each gets its work done, it
    /// is best done where it is.
    pub fn rebalance(&mut self) -> Option<Placement> {
        let placements = self.placements();
        for placed in self.roster.queues_mut() {
            placed.load_before = placed.address.gauge.load();
        }
        let elapsed = std::mem::replace(&mut self.balanced_at, Instant::now()).elapsed();
        let mut busiest = 0;
        for thread in &mut self.threads {
            let busy = thread.public.busy_ns.load(Ordering::Relaxed);
            busiest = busiest.max(busy.wrapping_sub(thread.busy_before));
            thread.busy_before = busy;
        }
        let is_saturated = Duration::from_nanos(busiest) * 100 > elapsed * SATURATED_PERCENT;
        if self.config.policy != Policy::Balanced || !is_saturated {
            return None;
        }
        let step = placement::rebalance(&self.units(&placements), self.threads.len())?;
        let mut to_move = vec![step.port];
        let partner = self.roster.partner_of(step.port, step.queue);
        to_move.extend(partner.map(|partner| partner.port));
        for port in to_move {
            self.move_queue(port, step.queue, step.to);
        }
        placements
            .into_iter()
            .find(|placed| placed.port == step.port && placed.queue == step.queue)
            .map(|placed| Placement { worker: step.to, ..placed })
    }

    /// What moves as one: two queues of the same number, of ports that are patched to each other,
    /// count as the first of them.
    fn units(&self, placements: &[Placement]) -> Vec<Placement> {
        let mut units: Vec<Placement> = Vec::new();
        for placement in placements {
            let partner = self.roster.partner_of(placement.port, placement.queue);
            let partner = partner.filter(|partner| partner.address.engine == placement.worker);
            let is_partner = |unit: &&mut Placement| {
                partner.is_some_and(|p| (p.port, p.queue) == (unit.port, unit.queue))
            };
            match units.iter_mut().find(is_partner) {
                Some(unit) => unit.load += placement.load,
                None => units.push(*placement),
            }
        }
        units
    }

    /// Hands one queue of a port to a worker, whatever the policy says. False if there is no such
    /// queue or worker. The order of all flows stays; under [`Policy::Balanced`] a later
    /// [`rebalance`](Workers::rebalance) may move the queue again.
    pub fn place(&mut self, port: PortId, queue: u16, worker: usize) -> bool {
        let Some(placed) = self.roster.queue(port, queue) else { return false };
        if worker >= self.threads.len() {
            return false;
        }
        if placed.address.engine != worker {
            self.move_queue(port, queue, worker);
        }
        true
    }

    /// Hands one queue to another worker, keeping the order of all flows; [`Roster`] has the steps.
    fn move_queue(&mut self, port: PortId, queue: u16, worker: usize) {
        let Some(Move { from, to }) = self.roster.redirect(port, queue, worker) else { return };
        let gauge = Arc::clone(&to.gauge);
        self.command(to.engine, Command::Expect { id: to.slot, gauge });
        // Before a directory names a slot, its worker must know the slot: the first frames may be
        // there before the command is read.
        self.wait_until_obeyed([to.engine]);
        self.publish();
        self.wait_until_seen();
        let attached = self.take_back(&from);
        self.roster.free(&from);
        let command = match attached {
            Some(attached) => {
                let attached = Box::new(attached.moved_to(to.slot, Instant::now()));
                Command::Attach { attached }
            }
            // Otherwise its frames would gather for ever, or until another queue gets the slot.
            None => Command::Forget { id: to.slot },
        };
        self.command(to.engine, command);
    }

    /// Where every queue is, with its load since the last [`rebalance`](Workers::rebalance).
    pub fn placements(&self) -> Vec<Placement> {
        let queues = self.roster.queues().iter();
        queues
            .map(|placed| Placement {
                port: placed.port,
                queue: placed.queue,
                worker: placed.address.engine,
                load: placed.address.gauge.load() - placed.load_before,
            })
            .collect()
    }

    /// Has this done when a worker panics, on its thread; without it, the thread ends and its
    /// queues are not served any more. Of several calls the first counts.
    pub fn on_panic(&self, then: OnPanic) {
        let _ = self.on_panic.set(then);
    }

    /// Has the worker of a port's first queue panic: for tests of what comes then.
    #[doc(hidden)]
    pub fn panic_for_test(&self, port: PortId) {
        if let Some(address) = self.addresses(port).next() {
            self.command(address.engine, Command::Panic { id: address.slot });
        }
    }

    /// How many workers there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Whether every worker responds within this time. Each does between two rounds, and those that
    /// sleep are woken: one that does not respond is stuck or has panicked.
    pub fn all_respond(&self, timeout: Duration) -> bool {
        let (reply, replies) = mpsc::channel();
        for worker in 0..self.threads.len() {
            self.command(worker, Command::Reply { reply: reply.clone() });
        }
        drop(reply);
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| replies.recv_timeout(left()).ok()).count() == self.threads.len()
    }

    /// A queue that failed since the last call. Its port's other queues go on until
    /// [`detach`](Workers::detach).
    pub fn next_failure(&mut self) -> Option<Failure<Q>> {
        self.failures_bell.clear();
        self.failures.try_recv().ok()
    }

    fn choose_worker(&mut self, port: PortId, queue: u16, queues: usize) -> io::Result<usize> {
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
        let (commands, receiver) = mpsc::channel();
        let bell = Arc::new(Bell::new()?);
        let inbox = Arc::new(Inbox::new(Waker::from(Arc::clone(&bell))));
        let public = Arc::new(Public::default());
        let pool = FramePool::new(Arc::clone(&self.budget));
        let mut worker = Worker::new(WorkerParts {
            engine: Engine::new(number, Arc::clone(&inbox), pool, self.started),
            inbox: Arc::clone(&inbox),
            bell,
            commands: receiver,
            reports: Reporter {
                failures: self.failures_sender.clone(),
                bell: Arc::clone(&self.failures_bell),
            },
            directory: Arc::clone(&self.directory),
            public: Arc::clone(&public),
            idle: Idle::new(self.config.polling),
        })?;
        let on_panic = Arc::clone(&self.on_panic);
        let cpus = &self.config.cpus;
        let cpu = (!cpus.is_empty()).then(|| cpus[number % cpus.len()]);
        let handle = std::thread::Builder::new()
            .name(format!("{}{number}", self.config.name))
            .spawn(move || {
                if let Some(cpu) = cpu {
                    // A CPU that went offline is no reason not to serve.
                    let _ = ringway_sys::process::pin_current_thread(cpu);
                }
                run(&mut worker, &on_panic);
            })?;
        self.threads.push(Thread { commands, inbox, public, busy_before: 0, handle });
        self.roster.add_engine();
        self.publish();
        Ok(number)
    }

    fn take_back(&self, address: &QueueAddress) -> Option<Box<Attached<Q>>> {
        let (reply, replies) = mpsc::channel();
        self.command(address.engine, Command::Detach { id: address.slot, reply });
        replies.recv_timeout(REPLY_TIMEOUT).ok().flatten()
    }

    fn command(&self, worker: usize, command: Command<Q>) {
        let thread = &self.threads[worker];
        // A worker ends only by command, after which there are no more.
        let _ = thread.commands.send(command);
        thread.inbox.announce_command();
    }

    /// Replaces the directory by one of the roster as it is now.
    fn publish(&self) {
        let inboxes = self.threads.iter().map(|thread| Arc::clone(&thread.inbox)).collect();
        let version = self.directory.load().version + 1;
        self.directory.store(Arc::new(self.roster.directory(version, inboxes)));
    }

    /// Waits until workers have obeyed every command so far.
    fn wait_until_obeyed(&self, workers: impl IntoIterator<Item = usize>) {
        let (reply, replies) = mpsc::channel();
        for worker in workers {
            self.command(worker, Command::Reply { reply: reply.clone() });
        }
        drop(reply);
        // Ends when the last one has replied and dropped its sender.
        while replies.recv_timeout(REPLY_TIMEOUT).is_ok() {}
    }

    /// Waits until no worker uses an older directory.
    fn wait_until_seen(&self) {
        let version = self.directory.load().version;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        for thread in &self.threads {
            while thread.public.seen.load(Ordering::Acquire) < version && Instant::now() < deadline
            {
                thread.inbox.announce_command();
                std::thread::yield_now();
            }
        }
    }
}

/// Runs a worker to its end. What it has is as the panic left it: of it only which queue it was
/// busy with is read.
fn run<Q: PortQueue + Wakers>(worker: &mut Worker<Q>, on_panic: &OnceLock<OnPanic>) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) else { return };
    if let Some(then) = on_panic.get() {
        then(worker.serving());
    }
    resume_unwind(panic);
}

impl<Q: PortQueue + Wakers + Send + 'static> AsFd for Workers<Q> {
    /// Readable when [`next_failure`](Workers::next_failure) has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.failures_bell.as_fd()
    }
}

impl<Q: PortQueue + Wakers + Send + 'static> Drop for Workers<Q> {
    fn drop(&mut self) {
        for worker in 0..self.threads.len() {
            self.command(worker, Command::Stop);
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has printed why.
            let _ = thread.handle.join();
        }
    }
}
