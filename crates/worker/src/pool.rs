//! The control thread's view: start workers, attach and detach ports, move queues.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ringway_datapath::{FramePool, PoolBudget, PortDown, PortQueue, QueueCounters, Wakers};
use ringway_switch::{FloodBudget, PortId};
use rustix::event::{EventfdFlags, eventfd};

use crate::attached::Attached;
use crate::capture::Capture;
use crate::credit::Credit;
use crate::directory::{Directory, Forwarding, QueueAddress, SlotId};
use crate::gauge::Gauge;
use crate::idle::Polling;
use crate::inbox::Inbox;
use crate::placement::{self, Placement, Policy};
use crate::round::{Public, Worker, WorkerParts};

/// What the control thread asks of a worker.
pub(crate) enum Command<Q> {
    /// A queue is about to come.
    Expect { id: SlotId, gauge: Arc<Gauge> },
    /// It is not: it failed on its way.
    Forget { id: SlotId },
    /// Here it is.
    Attach { attached: Box<Attached<Q>> },
    /// Give one up; the answer is `None` if it is gone already.
    Detach { id: SlotId, reply: Sender<Option<Box<Attached<Q>>>> },
    /// Copy frames of a queue for someone who watches, in place of who did before.
    Capture { id: SlotId, capture: Arc<Capture> },
    /// Limit how much enters by a queue, or no longer.
    Limit { id: SlotId, credit: Option<Arc<Credit>> },
    /// Answer, when all before is done.
    Answer { reply: Sender<()> },
    /// End.
    Stop,
}

/// A queue that a worker had to give up.
pub struct PortEvent<Q> {
    /// Its port.
    pub port_id: PortId,
    /// Its number within the port.
    pub queue_index: u16,
    /// The queue itself.
    pub queue: Q,
    /// Why.
    pub down: PortDown,
}

/// How workers speak to the control thread.
pub(crate) struct Reporter<Q> {
    events: Sender<PortEvent<Q>>,
    wake: Arc<OwnedFd>,
}

impl<Q> Reporter<Q> {
    pub(crate) fn send(&self, event: PortEvent<Q>) {
        // A control thread that is gone needs no report.
        if self.events.send(event).is_ok() {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
}

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
    /// The flooding it may cause.
    pub flood: FloodBudget,
}

/// The most workers there can be, whatever the policy.
pub const WORKERS_MAX: usize = 1024;
/// Share of its time that a worker must be at work before a queue is taken from it.
const SATURATED_PERCENT: u32 = 80;
/// How long a worker may take to answer; it looks after each round, which takes microseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

struct Thread<Q> {
    commands: Sender<Command<Q>>,
    inbox: Arc<Inbox>,
    public: Arc<Public>,
    busy_before: u64,
    handle: JoinHandle<()>,
    slots_used: usize,
    slots_free: Vec<usize>,
}

struct Placed {
    port: PortId,
    queue: u16,
    /// The port that all frames of this one go to, if there is one.
    patched_to: Option<PortId>,
    address: QueueAddress,
    load_before: u64,
}

/// All workers of a process. Dropping it stops them.
pub struct Workers<Q: PortQueue + Wakers + Send + 'static> {
    config: WorkersConfig,
    threads: Vec<Thread<Q>>,
    directory: Arc<ArcSwap<Directory>>,
    placed: Vec<Placed>,
    next_generation: u64,
    budget: Arc<PoolBudget>,
    started: Instant,
    /// When load was last evened out.
    balanced_at: Instant,
    events: Receiver<PortEvent<Q>>,
    events_sender: Sender<PortEvent<Q>>,
    events_wake: Arc<OwnedFd>,
}

impl<Q: PortQueue + Wakers + Send + 'static> Workers<Q> {
    /// Starts the workers; with [`Policy::PerQueue`] they start with their queues.
    ///
    /// # Errors
    /// What thread and descriptor creation report.
    pub fn start(config: WorkersConfig) -> io::Result<Workers<Q>> {
        let (events_sender, events) = mpsc::channel();
        let mut workers = Workers {
            budget: PoolBudget::new(config.frame_memory),
            threads: Vec::new(),
            directory: Arc::new(ArcSwap::from_pointee(Directory::default())),
            placed: Vec::new(),
            next_generation: 0,
            started: Instant::now(),
            balanced_at: Instant::now(),
            events,
            events_sender,
            events_wake: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
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
        self.attach_limited(port, forwarding, None, queues)
    }

    /// The same, with a limit of what enters from the first frame on; see
    /// [`limit`](Workers::limit).
    ///
    /// # Errors
    /// As [`attach`](Workers::attach).
    pub fn attach_limited(
        &mut self,
        port: PortId,
        forwarding: &Forwarding,
        credit: Option<&Arc<Credit>>,
        queues: Vec<Attachment<Q>>,
    ) -> io::Result<()> {
        if self.placed.iter().any(|placed| placed.port == port) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if u16::try_from(queues.len()).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut attached = Vec::new();
        let count = queues.len();
        for (index, queue) in (0..).zip(queues) {
            let patched_to = forwarding.patched_to();
            let partner = patched_to.and_then(|to| self.partner(port, index, to));
            // Frames of a pair then never change workers, which costs more than to serve both.
            let worker = match partner.filter(|_| self.config.policy == Policy::Balanced) {
                Some(partner) => Ok(partner.address.worker),
                None => self.choose_worker(port, index, count),
            };
            let worker = match worker {
                Ok(worker) => worker,
                Err(error) => {
                    self.withdraw(port);
                    return Err(error);
                }
            };
            let id = self.take_slot(worker);
            let gauge = Arc::new(Gauge::default());
            let address = QueueAddress { worker, slot: id, gauge: Arc::clone(&gauge) };
            self.placed.push(Placed { port, queue: index, patched_to, address, load_before: 0 });
            let forwarding = forwarding.clone();
            let Attachment { queue, counters, flood } = queue;
            let mut queue = Box::new(Attached::new(
                id,
                port,
                index,
                queue,
                forwarding,
                flood,
                counters,
                gauge,
                Instant::now(),
            ));
            queue.limit(credit.cloned());
            attached.push((worker, queue));
        }
        let workers: BTreeSet<usize> = attached.iter().map(|(worker, _)| *worker).collect();
        for (worker, attached) in attached {
            self.command(worker, Command::Attach { attached });
        }
        self.wait_until_obeyed(workers);
        self.publish();
        Ok(())
    }

    /// The queue of `to` with this number, if `to` is patched to `port` in turn.
    fn partner(&self, port: PortId, queue: u16, to: PortId) -> Option<&Placed> {
        let is_it = |placed: &&Placed| (placed.port, placed.queue) == (to, queue);
        self.placed.iter().find(is_it).filter(|placed| placed.patched_to == Some(port))
    }

    /// Undoes the placing of queues that no worker has got yet.
    fn withdraw(&mut self, port: PortId) {
        while let Some(position) = self.placed.iter().position(|placed| placed.port == port) {
            let address = self.placed.remove(position).address;
            self.give_slot(address.worker, address.slot);
        }
    }

    /// Takes all queues of a port back, in order of their numbers. A queue that had failed is not
    /// among them. Frames that waited to leave are lost.
    pub fn detach(&mut self, port: PortId) -> Vec<Q> {
        let (gone, kept): (Vec<Placed>, Vec<Placed>) =
            std::mem::take(&mut self.placed).into_iter().partition(|placed| placed.port == port);
        self.placed = kept;
        self.publish();
        self.wait_until_seen();
        let mut pool = FramePool::new(Arc::clone(&self.budget));
        let mut ports = Vec::new();
        for placed in gone {
            let worker = placed.address.worker;
            let attached = self.take_back(&placed.address);
            self.give_slot(worker, placed.address.slot);
            ports.extend(attached.map(|attached| attached.into_queue(&mut pool)));
        }
        // Sources that these queues held may go on, and their workers may sleep.
        self.threads.iter().for_each(|thread| thread.inbox.nudge());
        ports
    }

    /// Copies all frames of a port into `capture` from now on, until it is closed. False if the
    /// port has no queues.
    pub fn capture(&self, port: PortId, capture: &Arc<Capture>) -> bool {
        let mut found = false;
        for placed in self.placed.iter().filter(|placed| placed.port == port) {
            let (id, capture) = (placed.address.slot, Arc::clone(capture));
            self.command(placed.address.worker, Command::Capture { id, capture });
            found = true;
        }
        found
    }

    /// Limits how much enters by all queues of a port together, from now on; `None` ends that. It
    /// stays with the queues until they are detached.
    pub fn limit(&self, port: PortId, credit: Option<&Arc<Credit>>) {
        for placed in self.placed.iter().filter(|placed| placed.port == port) {
            let (id, credit) = (placed.address.slot, credit.cloned());
            self.command(placed.address.worker, Command::Limit { id, credit });
        }
    }

    /// Evens out the load since the last call, by at most one move. A no-op unless the policy is
    /// [`Policy::Balanced`] and a worker has no time left: as long as each gets its work done, it
    /// is best done where it is.
    pub fn rebalance(&mut self) -> Option<Placement> {
        let placements = self.placements();
        for placed in &mut self.placed {
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
        to_move.extend(self.partner_of(step.port, step.queue).map(|partner| partner.port));
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
            let partner = self.partner_of(placement.port, placement.queue);
            let partner = partner.filter(|partner| partner.address.worker == placement.worker);
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

    /// The queue that this one and only this one exchanges frames with, if there is one.
    fn partner_of(&self, port: PortId, queue: u16) -> Option<&Placed> {
        let is_it = |placed: &&Placed| (placed.port, placed.queue) == (port, queue);
        let to = self.placed.iter().find(is_it)?.patched_to?;
        self.partner(port, queue, to)
    }

    /// Hands one queue of a port to a worker, whatever the policy says. False if there is no such
    /// queue or worker. The order of all flows stays; under [`Policy::Balanced`] a later
    /// [`rebalance`](Workers::rebalance) may move the queue again.
    pub fn place(&mut self, port: PortId, queue: u16, worker: usize) -> bool {
        let is_it = |placed: &Placed| placed.port == port && placed.queue == queue;
        let Some(placed) = self.placed.iter().find(|placed| is_it(placed)) else { return false };
        if worker >= self.threads.len() {
            return false;
        }
        if placed.address.worker != worker {
            self.move_queue(port, queue, worker);
        }
        true
    }

    /// Hands one queue to another worker, keeping the order of all flows:
    /// the new owner gathers frames for it first; when no worker can send to the old owner any
    /// more, that one gives the queue up with all it had gathered; then the new owner goes on.
    fn move_queue(&mut self, port: PortId, queue: u16, to: usize) {
        let is_it = |placed: &Placed| placed.port == port && placed.queue == queue;
        let Some(position) = self.placed.iter().position(is_it) else { return };
        let from = self.placed[position].address.clone();
        let id = self.take_slot(to);
        let gauge = Arc::clone(&from.gauge);
        self.command(to, Command::Expect { id, gauge });
        self.wait_until_obeyed([to]);
        let address = QueueAddress { worker: to, slot: id, gauge: Arc::clone(&from.gauge) };
        self.placed[position].address = address;
        self.publish();
        self.wait_until_seen();
        let attached = self.take_back(&from);
        self.give_slot(from.worker, from.slot);
        if let Some(attached) = attached {
            let attached = attached.moved_to(id, Instant::now());
            self.command(to, Command::Attach { attached });
        } else {
            // Otherwise its frames would gather for ever, or until another queue gets the slot.
            self.command(to, Command::Forget { id });
        }
    }

    /// Where every queue is, with its load since the last [`rebalance`](Workers::rebalance).
    pub fn placements(&self) -> Vec<Placement> {
        let placement = |placed: &Placed| Placement {
            port: placed.port,
            queue: placed.queue,
            worker: placed.address.worker,
            load: placed.address.gauge.load() - placed.load_before,
        };
        self.placed.iter().map(placement).collect()
    }

    /// How many workers there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Whether every worker answers within this time. Each does between two rounds, and those who
    /// sleep are woken: one that does not answer is stuck or has panicked.
    pub fn all_answer(&self, timeout: Duration) -> bool {
        let (reply, answers) = mpsc::channel();
        for worker in 0..self.threads.len() {
            self.command(worker, Command::Answer { reply: reply.clone() });
        }
        drop(reply);
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| answers.recv_timeout(left()).ok()).count() == self.threads.len()
    }

    /// A queue that failed since the last call. Its port's other queues go on until
    /// [`detach`](Workers::detach).
    pub fn next_event(&mut self) -> Option<PortEvent<Q>> {
        // It may be empty already, which is all we want.
        let _ = rustix::io::read(&self.events_wake, &mut [0; 8]);
        self.events.try_recv().ok()
    }

    fn choose_worker(&mut self, port: PortId, queue: u16, queues: usize) -> io::Result<usize> {
        match self.config.policy {
            Policy::PerQueue => {
                let is_free = |worker: &usize| {
                    self.placed.iter().all(|placed| placed.address.worker != *worker)
                };
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
        let inbox = Arc::new(Inbox::new()?);
        let public = Arc::new(Public::default());
        let worker = Worker::new(WorkerParts {
            number,
            inbox: Arc::clone(&inbox),
            commands: receiver,
            reports: Reporter {
                events: self.events_sender.clone(),
                wake: Arc::clone(&self.events_wake),
            },
            directory: Arc::clone(&self.directory),
            public: Arc::clone(&public),
            pool: FramePool::new(Arc::clone(&self.budget)),
            polling: self.config.polling,
            started: self.started,
        })?;
        let cpus = &self.config.cpus;
        let cpu = (!cpus.is_empty()).then(|| cpus[number % cpus.len()]);
        let handle = std::thread::Builder::new()
            .name(format!("{}{number}", self.config.name))
            .spawn(move || {
                if let Some(cpu) = cpu {
                    // A CPU that went offline is no reason not to serve.
                    let _ = ringway_sys::process::pin_current_thread(cpu);
                }
                worker.run();
            })?;
        self.threads.push(Thread {
            commands,
            inbox,
            public,
            busy_before: 0,
            handle,
            slots_used: 0,
            slots_free: Vec::new(),
        });
        self.publish();
        Ok(number)
    }

    fn take_slot(&mut self, worker: usize) -> SlotId {
        self.next_generation += 1;
        let thread = &mut self.threads[worker];
        let index = thread.slots_free.pop().unwrap_or_else(|| {
            thread.slots_used += 1;
            thread.slots_used - 1
        });
        SlotId { index, generation: self.next_generation }
    }

    fn give_slot(&mut self, worker: usize, slot: SlotId) {
        self.threads[worker].slots_free.push(slot.index);
    }

    fn take_back(&self, address: &QueueAddress) -> Option<Box<Attached<Q>>> {
        let (reply, answer) = mpsc::channel();
        self.command(address.worker, Command::Detach { id: address.slot, reply });
        answer.recv_timeout(ANSWER_TIMEOUT).ok().flatten()
    }

    fn command(&self, worker: usize, command: Command<Q>) {
        let thread = &self.threads[worker];
        // A worker ends only when it is told to, after which nobody commands it.
        let _ = thread.commands.send(command);
        thread.inbox.announce_command();
    }

    /// Replaces the directory by one that says what `placed` says.
    fn publish(&self) {
        let ports_end = self.placed.iter().map(|placed| usize::from(placed.port.0) + 1).max();
        let mut ports = vec![Vec::new(); ports_end.unwrap_or(0)];
        for placed in &self.placed {
            // Queues of one port were placed in the order of their numbers, and stay in it.
            ports[usize::from(placed.port.0)].push(placed.address.clone());
        }
        let inboxes = self.threads.iter().map(|thread| Arc::clone(&thread.inbox)).collect();
        let version = self.directory.load().version + 1;
        self.directory.store(Arc::new(Directory { version, ports, inboxes }));
    }

    /// Waits until workers have done what they were told. Before a directory names a slot, its
    /// worker must know the slot: the first frames may be there before the command is read.
    fn wait_until_obeyed(&self, workers: impl IntoIterator<Item = usize>) {
        let (reply, answers) = mpsc::channel();
        for worker in workers {
            self.command(worker, Command::Answer { reply: reply.clone() });
        }
        drop(reply);
        // Ends when the last one has answered and dropped its sender.
        while answers.recv_timeout(ANSWER_TIMEOUT).is_ok() {}
    }

    /// Waits until no worker uses an older directory.
    fn wait_until_seen(&self) {
        let version = self.directory.load().version;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        for thread in &self.threads {
            while thread.public.seen.load(Ordering::Acquire) < version && Instant::now() < deadline
            {
                thread.inbox.announce_command();
                std::thread::yield_now();
            }
        }
    }
}

impl<Q: PortQueue + Wakers + Send + 'static> AsFd for Workers<Q> {
    /// Readable when [`next_event`](Workers::next_event) has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events_wake.as_fd()
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
