//! What a worker does, round after round.

mod delivery;
mod sleep;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use ringway_datapath::{
    BATCH, Budget, FrameBatch, FramePool, FrameQueue, Interest, Pending, PortDown, PortQueue,
    Wakers,
};
use ringway_switch::{Ticks, Verdict};
use rustix::event::epoll;

use crate::attached::Attached;
use crate::directory::{Directory, SlotId};
use crate::gauge::Gauge;
use crate::idle::{Idle, Polling};
use crate::inbox::Inbox;
use crate::pool::{Command, PortEvent, Reporter};

/// Busy rounds between looks at the descriptors of queues that sleep.
const ROUNDS_PER_LOOK: u32 = 8;
/// Frames taken from the inbox in one round.
const PARCELS_PER_ROUND: usize = 4 * BATCH;
/// Epoll's number for the inbox; slots count from 0.
const INBOX: u64 = u64::MAX;

/// Everything one thread owns.
pub(crate) struct Worker<Q> {
    number: usize,
    inbox: Arc<Inbox>,
    commands: Receiver<Command<Q>>,
    reports: Reporter<Q>,
    directory: Arc<ArcSwap<Directory>>,
    public: Arc<Public>,
    pool: FramePool,
    slots: Vec<Slot<Q>>,
    active: Vec<usize>,
    backlogged: Vec<usize>,
    /// By worker: parcels that we have put in since we last nudged it.
    mailed: Vec<usize>,
    /// A queue of ours ended a hold since we last woke those who may sleep because of it.
    has_relieved: bool,
    /// The pool had no buffer in this round: what was not taken in is still there.
    is_short: bool,
    epoll: std::os::fd::OwnedFd,
    idle: Idle,
    /// The last round ended in a sleep.
    has_slept: bool,
    started: Instant,
    /// Read once a round: without a clock in the vDSO, as under Xen, that is a system call.
    now: Instant,
    batch: FrameBatch,
    verdicts: ArrayVec<Verdict, BATCH>,
}

/// What a worker lets others know.
#[derive(Debug, Default)]
pub(crate) struct Public {
    /// The newest directory version that it has seen.
    pub(crate) seen: AtomicU64,
    /// Time spent in rounds that found work, in nanoseconds.
    pub(crate) busy_ns: AtomicU64,
}

/// What the thread is made of.
pub(crate) struct WorkerParts<Q> {
    pub(crate) number: usize,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) commands: Receiver<Command<Q>>,
    pub(crate) reports: Reporter<Q>,
    pub(crate) directory: Arc<ArcSwap<Directory>>,
    pub(crate) public: Arc<Public>,
    pub(crate) pool: FramePool,
    pub(crate) polling: Polling,
    /// The zero of switch time, common to all workers.
    pub(crate) started: Instant,
}

/// A place for a queue. Descriptors carry its index, frames from elsewhere its whole [`SlotId`].
enum Slot<Q> {
    Empty,
    /// A queue is on its way here from another worker: frames for it gather until it comes.
    Expected {
        id: SlotId,
        frames: FrameQueue,
        gauge: Arc<Gauge>,
    },
    Taken(Box<Attached<Q>>),
}

impl<Q> Slot<Q> {
    fn attached(&mut self) -> Option<&mut Attached<Q>> {
        match self {
            Slot::Taken(attached) => Some(attached),
            Slot::Empty | Slot::Expected { .. } => None,
        }
    }
}

/// Whether a thread goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Round,
    Stop,
}

impl<Q: PortQueue + Wakers> Worker<Q> {
    pub(crate) fn new(parts: WorkerParts<Q>) -> io::Result<Worker<Q>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*parts.inbox, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN)?;
        Ok(Worker {
            number: parts.number,
            inbox: parts.inbox,
            commands: parts.commands,
            reports: parts.reports,
            directory: parts.directory,
            public: parts.public,
            pool: parts.pool,
            slots: Vec::new(),
            active: Vec::new(),
            backlogged: Vec::new(),
            mailed: Vec::new(),
            has_relieved: false,
            is_short: false,
            epoll,
            idle: Idle::new(parts.polling),
            has_slept: false,
            started: parts.started,
            now: parts.started,
            batch: FrameBatch::new(),
            verdicts: ArrayVec::new(),
        })
    }

    /// Runs until told to stop.
    pub(crate) fn run(mut self) {
        let mut rounds = 0_u32;
        let mut worked = false;
        // Looks for a new one with a plain load; a count of references that all workers write in
        // each round would be the one thing that they contend for.
        let mut directories = arc_swap::Cache::new(Arc::clone(&self.directory));
        loop {
            let before = std::mem::replace(&mut self.now, Instant::now());
            let elapsed = self.now.duration_since(before);
            if worked {
                self.count_busy(elapsed);
            }
            if std::mem::take(&mut self.has_slept) {
                self.idle.slept(elapsed);
            }
            if self.inbox.take_commands() && self.obey() == Next::Stop {
                return;
            }
            rounds = rounds.wrapping_add(1);
            worked = self.round(directories.load());
            if worked {
                self.idle.worked();
                if rounds % ROUNDS_PER_LOOK == 0 {
                    self.look(Duration::ZERO);
                }
            } else if self.is_short {
                self.wait_for_memory();
            } else if self.idle.keeps_polling(self.now) {
                self.look(Duration::ZERO);
                // Whoever else wants this core gets it: polling is for cores that nobody needs.
                std::thread::yield_now();
            } else {
                self.sleep();
            }
        }
    }

    /// Only this worker writes the number, so a load and a store are enough.
    fn count_busy(&self, time: Duration) {
        let busy = &self.public.busy_ns;
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        busy.store(busy.load(Ordering::Relaxed).wrapping_add(time), Ordering::Relaxed);
    }

    /// One pass over everything that has, or may have, work. True if there was any.
    fn round(&mut self, directory: &Directory) -> bool {
        self.public.seen.store(directory.version, Ordering::Release);
        self.is_short = false;
        let mut worked = self.open_parcels();
        let mut position = 0;
        while let Some(&slot) = self.active.get(position) {
            let taken = self.take_in(slot, directory);
            worked |= matches!(taken, Taken::Frames | Taken::Last);
            match taken {
                Taken::Frames | Taken::Nothing => position += 1,
                Taken::Last | Taken::Gone => {
                    self.active.swap_remove(position);
                }
            }
        }
        // Where room is short, the first to be served gets it: each in its turn.
        if self.active.len() > 1 {
            self.active.rotate_left(1);
        }
        worked |= self.send_out();
        self.nudge_mailed(directory);
        self.nudge_held();
        worked
    }

    /// One batch from one queue to wherever its frames go.
    fn take_in(&mut self, slot: usize, directory: &Directory) -> Taken {
        let Some(attached) = self.slots[slot].attached() else { return Taken::Gone };
        if attached.is_held() || attached.credit_due(self.now).is_some() {
            return match attached.queue.ingress(Budget::NOTHING, &mut self.pool, &mut self.batch) {
                Ok(()) => Taken::Nothing,
                Err(down) => {
                    self.port_down(slot, down);
                    Taken::Gone
                }
            };
        }
        let mut frames = std::mem::take(&mut attached.kept);
        let mut taken = Ok(());
        if frames.is_empty() {
            taken = attached.ingress(&mut self.pool, &mut self.batch, self.now);
            self.is_short |= self.pool.take_shortage();
            if !self.batch.is_empty() {
                let ticks = ticks(self.now.duration_since(self.started));
                attached.classify(&self.batch, &mut self.verdicts, ticks);
                frames.extend(self.batch.drain(..).zip(self.verdicts.drain(..)));
            }
        }
        let count = frames.len();
        self.forward(slot, &mut frames, directory);
        if let Some(attached) = self.slots[slot].attached() {
            // Its memory is kept as well.
            attached.kept = frames;
        }
        if let Err(down) = taken {
            self.port_down(slot, down);
            return Taken::Gone;
        }
        let is_short = self.is_short;
        match self.slots[slot].attached() {
            Some(attached) if attached.tells_of_all() && !is_short => match attached.queue.arm() {
                // To ask it once more is a system call; its descriptor, which is edge-triggered and
                // was just found empty, wakes us without.
                Ok(Pending::Nothing) => {
                    attached.is_active = false;
                    if count > 0 { Taken::Last } else { Taken::Gone }
                }
                // There is more, whether or not what came was good.
                Ok(Pending::Work) => Taken::Frames,
                Err(down) => {
                    self.port_down(slot, down);
                    Taken::Gone
                }
            },
            _ if count > 0 => Taken::Frames,
            _ => Taken::Nothing,
        }
    }

    fn open_parcels(&mut self) -> bool {
        let mut opened = false;
        for _ in 0..PARCELS_PER_ROUND {
            let Some(parcel) = self.inbox.pop() else { break };
            opened = true;
            self.enqueue(parcel.frame, parcel.to);
        }
        self.has_relieved |= self.inbox.relieve();
        opened
    }

    /// Takes out at least what was in the inbox when the call began.
    fn drain_inbox(&mut self) {
        for _ in 0..=Inbox::PARCELS / PARCELS_PER_ROUND {
            if !self.open_parcels() {
                return;
            }
        }
    }

    /// Sends what has gathered, queue by queue. True if anything moved.
    fn send_out(&mut self) -> bool {
        let mut worked = false;
        let mut position = 0;
        while let Some(&slot) = self.backlogged.get(position) {
            let Some(attached) = self.slots[slot].attached() else {
                self.backlogged.swap_remove(position);
                continue;
            };
            match attached.egress(&mut self.pool, self.now) {
                Ok(egress) => {
                    worked |= egress.moved > 0;
                    self.has_relieved |= egress.relieved;
                    if egress.left > 0 {
                        position += 1;
                    } else {
                        attached.has_backlog = false;
                        self.backlogged.swap_remove(position);
                    }
                }
                Err(down) => {
                    self.backlogged.swap_remove(position);
                    self.port_down(slot, down);
                }
            }
        }
        worked
    }

    /// Wakes workers that may sleep because a queue of ours held their sources.
    fn nudge_held(&mut self) {
        if !std::mem::take(&mut self.has_relieved) {
            return;
        }
        // Orders the lowering of the pressure before the look at who is there: a worker that is
        // newer than this round's directory, and saw the pressure, is in the one loaded here.
        fence(Ordering::SeqCst);
        self.directory.load().inboxes.iter().for_each(|inbox| inbox.nudge());
    }

    fn nudge_mailed(&mut self, directory: &Directory) {
        for (inbox, mailed) in directory.inboxes.iter().zip(&mut self.mailed) {
            if std::mem::take(mailed) > 0 {
                inbox.measure();
                inbox.nudge();
            }
        }
    }

    fn woken(&mut self, slot: usize) {
        let Some(attached) = self.slots.get_mut(slot).and_then(Slot::attached) else { return };
        match attached.queue.woken() {
            Ok(()) => self.activate(slot),
            Err(down) => self.port_down(slot, down),
        }
    }

    fn activate(&mut self, slot: usize) {
        if let Some(attached) = self.slots[slot].attached() {
            if !attached.is_active {
                attached.is_active = true;
                self.active.push(slot);
            }
        }
    }

    /// Takes a queue out that cannot go on, and tells the control thread why.
    fn port_down(&mut self, slot: usize, down: PortDown) {
        let Some(attached) = self.take_out(slot) else { return };
        let (port_id, queue_index) = (attached.port_id, attached.queue_index);
        let queue = attached.into_queue(&mut self.pool);
        self.has_relieved = true;
        self.reports.send(PortEvent { port_id, queue_index, queue, down });
    }

    /// Empties a slot and stops watching its descriptors.
    fn take_out(&mut self, slot: usize) -> Option<Box<Attached<Q>>> {
        let slot = self.slots.get_mut(slot)?;
        let Slot::Taken(attached) = std::mem::replace(slot, Slot::Empty) else { return None };
        attached.queue.wakers(&mut |fd, _| {
            // One that is not registered any more needs no removal.
            let _ = epoll::delete(&self.epoll, fd);
        });
        Some(attached)
    }

    fn obey(&mut self) -> Next {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Expect { id, gauge } => {
                    *self.slot(id) = Slot::Expected { id, frames: FrameQueue::new(), gauge };
                }
                Command::Forget { id } => self.forget(id),
                Command::Attach { attached } => self.attach(attached),
                Command::Detach { id, reply } => {
                    // Frames that were put in for this queue before go with it.
                    self.drain_inbox();
                    let is_here = self.slot(id).attached().is_some_and(|here| here.id == id);
                    let detached = if is_here { self.take_out(id.index) } else { None };
                    // If the control thread has given up, the port ends here.
                    let _ = reply.send(detached);
                }
                Command::Capture { id, capture } => {
                    if let Some(here) = self.slot(id).attached().filter(|here| here.id == id) {
                        here.capture = Some(capture);
                    }
                }
                Command::Limit { id, credit } => {
                    if let Some(here) = self.slot(id).attached().filter(|here| here.id == id) {
                        here.limit(credit);
                    }
                }
                Command::Answer { reply } => {
                    let _ = reply.send(());
                }
                Command::Stop => return Next::Stop,
            }
        }
        Next::Round
    }

    fn slot(&mut self, id: SlotId) -> &mut Slot<Q> {
        if self.slots.len() <= id.index {
            self.slots.resize_with(id.index + 1, || Slot::Empty);
        }
        &mut self.slots[id.index]
    }

    /// A queue that was expected does not come.
    fn forget(&mut self, id: SlotId) {
        let slot = self.slot(id);
        if !matches!(slot, Slot::Expected { id: expected, .. } if *expected == id) {
            return;
        }
        if let Slot::Expected { frames, gauge, .. } = std::mem::replace(slot, Slot::Empty) {
            self.has_relieved |= gauge.lower_ahead();
            frames.into_iter().for_each(|frame| self.pool.recycle(frame));
        }
    }

    fn attach(&mut self, mut attached: Box<Attached<Q>>) {
        // Frames in the inbox came after those that wait in the queue's own backlog.
        self.drain_inbox();
        let id = attached.id;
        let mut gathered = FrameQueue::new();
        match self.slot(id) {
            Slot::Expected { id: expected, frames, .. } if *expected == id => {
                gathered = std::mem::take(frames);
            }
            _ => {}
        }
        if attached.waiting().frames > 0 {
            attached.begin_backlog(self.now);
            self.backlogged.push(id.index);
        }
        let mut watched = Ok(());
        let data = epoll::EventData::new_u64(u64::try_from(id.index).unwrap_or(INBOX));
        attached.queue.wakers(&mut |fd, interest| {
            let flags = epoll::EventFlags::ET | interest_flags(interest);
            watched = std::mem::replace(&mut watched, Ok(())).and(epoll::add(
                &self.epoll,
                fd,
                data,
                flags,
            ));
        });
        *self.slot(id) = Slot::Taken(attached);
        for frame in gathered {
            self.enqueue(frame, id);
        }
        if let Some(attached) = self.slots[id.index].attached() {
            self.has_relieved |= attached.gauge.lower_ahead();
        }
        match watched {
            Ok(()) => self.activate(id.index),
            Err(error) => self.port_down(id.index, PortDown::Host(error.into())),
        }
    }
}

/// What came of a look at a queue.
enum Taken {
    /// Frames, or the prospect of some.
    Frames,
    /// None, but the queue is to be polled.
    Nothing,
    /// Frames, and its descriptor will tell of the next.
    Last,
    /// None, and the queue is not to be polled.
    Gone,
}

fn interest_flags(interest: Interest) -> epoll::EventFlags {
    match interest {
        Interest::Readable => epoll::EventFlags::IN,
        Interest::ReadableOrWritable => epoll::EventFlags::IN | epoll::EventFlags::OUT,
    }
}

/// Switch time: seconds since the workers started.
fn ticks(since: Duration) -> Ticks {
    Ticks(u32::try_from(since.as_secs()).unwrap_or(u32::MAX))
}
