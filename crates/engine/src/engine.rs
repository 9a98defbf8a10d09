//! [`Engine`]: what one thread does, round after round.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{BATCH, FrameBatch, FramePool, Pending, PortQueue, QueueDown, Woken};
use ringway_steering::FlowKey;
use ringway_switch::{PortId, PortPolicy, Ticks};

use crate::attached::Attached;
use crate::capture::Capture;
use crate::directory::Directory;
use crate::forward::Router;
use crate::gauge::{Admission, Gauge};
use crate::inbox::{Inbox, Parcel};
use crate::limits::Limits;
use crate::outbox::{Enqueue, Expected, OutboxSlot, Outboxes};
use crate::share::{Shares, cost_of};
use crate::slot::SlotId;
use crate::source::{EngineParts, Ingested, LastRound, Source};
use crate::state::{Ingress, IngressEvent};
use crate::sync::{Ordering, fence};
use crate::wait::{IfIdle, Wait};

/// Frames taken from the inbox in one round.
const PARCELS_PER_ROUND: usize = 4 * BATCH;
/// How long to wait for buffers that other engines hold.
const SHORTAGE: Duration = Duration::from_millis(1);

/// Queues, and the state of the frames between them. One thread owns an engine; others reach it
/// through its [`Inbox`].
pub struct Engine<Q> {
    pub(crate) number: usize,
    pub(crate) flow_key: FlowKey,
    inbox: Arc<Inbox>,
    /// The zero of switch time.
    started: Instant,
    pub(crate) now: Instant,
    /// Switch time, in this round.
    ticks: Ticks,
    pub(crate) pool: FramePool,
    pub(crate) sources: Vec<Option<Source<Q>>>,
    pub(crate) outboxes: Outboxes,
    pub(crate) shares: Shares,
    /// Memory that the frames of one port may take, in this round; computed on first use.
    pub(crate) memory_max: OnceCell<usize>,
    /// Slots of the sources that are polled in each round: all except armed ones.
    turns: Vec<usize>,
    /// Whether the last round found work.
    last_round: LastRound,
    /// By engine: parcels that we have put into its inbox since we last nudged it.
    pub(crate) mailed: Vec<usize>,
    /// Pressure of one of our queues fell since we last woke the threads that may sleep because of
    /// it.
    must_wake_senders: bool,
    /// Slots of the sources that took in lent frames in this round.
    lenders: Vec<usize>,
    failures: Vec<Failure<Q>>,
    /// The queue that the engine is serving, or served last.
    pub(crate) current_queue: Option<(PortId, u16)>,
    batch: FrameBatch,
}

/// A queue that failed.
pub struct Failure<Q> {
    /// Its port.
    pub port_id: PortId,
    /// Its number within the port.
    pub queue_index: u16,
    /// The queue.
    pub queue: Q,
    /// The cause.
    pub down: QueueDown,
}

/// Whether anything moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Done,
    None,
}

impl Work {
    fn of(is_done: bool) -> Work {
        if is_done { Work::Done } else { Work::None }
    }

    fn or(self, other: Work) -> Work {
        Work::of(self == Work::Done || other == Work::Done)
    }
}

impl<Q: PortQueue> Engine<Q> {
    /// An engine without queues. Directories name it by `number`; `started` is the zero of switch
    /// time. All engines of a switch share that and `flow_key`, by which they choose a queue of a
    /// flow.
    pub fn new(
        number: usize,
        inbox: Arc<Inbox>,
        pool: FramePool,
        started: Instant,
        flow_key: FlowKey,
    ) -> Engine<Q> {
        Engine {
            number,
            flow_key,
            inbox,
            started,
            now: started,
            pool,
            sources: Vec::new(),
            outboxes: Outboxes::default(),
            shares: Shares::default(),
            memory_max: OnceCell::new(),
            ticks: Ticks(0),
            turns: Vec::new(),
            last_round: LastRound::Idle,
            mailed: Vec::new(),
            must_wake_senders: false,
            lenders: Vec::new(),
            failures: Vec::new(),
            current_queue: None,
            batch: FrameBatch::new(),
        }
    }

    /// One pass over everything that has, or may have, work. After [`Wait::Until`] or
    /// [`Wait::Event`], the queues are armed and senders wake the thread, until the next round.
    pub fn round(&mut self, now: Instant, directory: &Directory, if_idle: IfIdle) -> Wait {
        self.inbox.awake();
        self.now = now;
        self.memory_max = OnceCell::new();
        self.ticks = ticks(now.saturating_duration_since(self.started));
        self.shares.begin_round();
        self.propagate_relief(directory);
        let opened = Work::of(self.release_parked(directory)).or(self.open_parcels());
        let taken = self.poll_sources(directory);
        let sent = self.send_out(directory);
        self.respond_to_lenders();
        self.nudge_mailed(directory);
        let worked = opened.or(taken).or(sent) == Work::Done;
        self.last_round = if worked { LastRound::Work } else { LastRound::Idle };
        match if_idle {
            // The next round wakes the held sources.
            _ if worked || self.must_wake_senders => Wait::Now,
            _ if self.is_starved() => self.wait_for_buffers(),
            IfIdle::Poll => Wait::Poll,
            IfIdle::Sleep => self.prepare_sleep(directory),
        }
    }

    /// Moves one batch from each queue to the destinations of its frames.
    fn poll_sources(&mut self, directory: &Directory) -> Work {
        let mut work = Work::None;
        let mut position = 0;
        while let Some(&slot) = self.turns.get(position) {
            match self.take_turn(slot, directory) {
                Ok(done) => {
                    work = work.or(done);
                    if self.has_turns(slot) {
                        position += 1;
                    } else {
                        self.turns.swap_remove(position);
                    }
                }
                // A removed queue has no turns.
                Err(down) => self.fail(slot, down),
            }
        }
        // If room is short, the queue served first gets it, so the first queue changes with each
        // round.
        if self.turns.len() > 1 {
            self.turns.rotate_left(1);
        }
        work
    }

    fn take_turn(&mut self, slot: usize, directory: &Directory) -> Result<Work, QueueDown> {
        let room = self.room_ahead(slot, self.now);
        let Some(source) = self.sources[slot].as_mut() else { return Ok(Work::None) };
        self.current_queue = Some((source.port_id, source.queue_index));
        let at = Enqueue { now: self.now, memory_max: &self.memory_max };
        let mut context = EngineParts {
            shares: &mut self.shares,
            pool: &mut self.pool,
            batch: &mut self.batch,
            room,
            now: self.now,
            ticks: self.ticks,
            must_wake_senders: &mut self.must_wake_senders,
        };
        let taken = source.ingest(&mut context);
        if source.has_lent {
            self.lenders.push(slot);
        }
        let mut router = Router {
            number: self.number,
            flow_key: self.flow_key,
            outboxes: &mut self.outboxes,
            pool: &mut self.pool,
            mailed: &mut self.mailed,
            directory,
            at,
            mirrored: 0,
            has_long: false,
            neighbor: None,
        };
        // Do this also if the first frame meets pressure: the next turn finds the queue held and
        // sends its pending responses.
        let has_frames = !self.batch.is_empty();
        if has_frames {
            router.forward(source, &mut self.batch);
            if !source.kept.is_empty() {
                source.complete_kept(router.pool);
                source.refund_kept(&mut self.shares);
            }
            if router.mirrored > 0 {
                self.shares.charge(source.share, router.mirrored);
            }
        }
        // Frames before the fault are valid and have been forwarded.
        match taken? {
            Ingested::Polled => {
                Ok(Work::of(source.finish_turn(self.last_round)? == Pending::Work || has_frames))
            }
            Ingested::Skipped => Ok(Work::of(has_frames)),
            // Frames may be left for the next round.
            Ingested::ShareUsed => Ok(Work::Done),
        }
    }

    /// Sends the responses that waited for frames lent in this round, so that none is left if the
    /// process is killed between rounds: its successor would serve such a request again.
    fn respond_to_lenders(&mut self) {
        while let Some(slot) = self.lenders.pop() {
            let Some(source) = self.sources[slot].as_mut() else { continue };
            self.current_queue = Some((source.port_id, source.queue_index));
            source.has_lent = false;
            if let Err(down) = source.queue.settle(&mut self.pool) {
                self.fail(slot, down);
            }
        }
        self.pool.end_loans();
    }

    fn has_turns(&self, slot: usize) -> bool {
        let source = self.sources[slot].as_ref();
        source.is_some_and(|source| !matches!(source.state(), Ingress::Armed))
    }

    fn open_parcels(&mut self) -> Work {
        // An inbox mixes frames of many queues.
        self.current_queue = None;
        let at = Enqueue { now: self.now, memory_max: &self.memory_max };
        let (mut frames, mut bytes) = (0, 0);
        for _ in 0..PARCELS_PER_ROUND {
            let Some(parcel) = self.inbox.pop() else { break };
            frames += 1;
            bytes += parcel.frame.len();
            self.outboxes.enqueue(parcel, &mut self.pool, &at);
        }
        self.must_wake_senders |= self.inbox.relieve(cost_of(frames, bytes));
        Work::of(frames > 0)
    }

    /// Takes out at least the parcels that were in the inbox when the call began.
    pub(crate) fn drain_inbox(&mut self) {
        for _ in 0..=Inbox::PARCELS / PARCELS_PER_ROUND {
            if self.open_parcels() == Work::None {
                return;
            }
        }
    }

    /// Sends the waiting frames, queue by queue.
    fn send_out(&mut self, directory: &Directory) -> Work {
        let mut work = Work::None;
        let mut position = 0;
        while let Some(&slot) = self.outboxes.draining.get(position) {
            match self.send(slot, directory) {
                Ok(sent) => {
                    work = work.or(sent);
                    if self.is_draining(slot) {
                        position += 1;
                    } else {
                        self.outboxes.draining.swap_remove(position);
                    }
                }
                Err(down) => self.fail(slot, down),
            }
        }
        work
    }

    /// Sends the frames of one outbox.
    fn send(&mut self, slot: usize, directory: &Directory) -> Result<Work, QueueDown> {
        let source = self.sources.get_mut(slot).and_then(Option::as_mut);
        let (Some(source), Some(outbox)) = (source, self.outboxes.get(slot)) else {
            return Ok(Work::None);
        };
        self.current_queue = Some((source.port_id, source.queue_index));
        let of_port = directory.queues(source.port_id);
        let sent = outbox.send(&mut source.queue, &mut self.pool, of_port, self.now)?;
        self.must_wake_senders |= sent.must_wake_senders;
        Ok(Work::of(sent.moved > 0 || sent.has_released))
    }

    fn is_draining(&mut self, slot: usize) -> bool {
        self.outboxes.get(slot).is_some_and(|outbox| outbox.is_active())
    }

    /// Wakes engines that may sleep because one of our queues held their sources.
    fn propagate_relief(&mut self, directory: &Directory) {
        if std::mem::take(&mut self.must_wake_senders) {
            // The directory was read after the pressure fell, so it contains every engine that saw
            // the pressure, however new. The partner of this fence is in `Gauge`.
            fence(Ordering::SeqCst);
            directory.inboxes.iter().for_each(|inbox| inbox.nudge());
        }
    }

    fn nudge_mailed(&mut self, directory: &Directory) {
        for (inbox, mailed) in directory.inboxes.iter().zip(&mut self.mailed) {
            if std::mem::take(mailed) > 0 {
                inbox.measure();
                inbox.nudge();
            }
        }
    }

    fn is_starved(&self) -> bool {
        let state = |slot: &usize| self.sources[*slot].as_ref().map(Source::state);
        self.turns.iter().any(|slot| matches!(state(slot), Some(Ingress::Starved)))
    }

    /// Waits briefly if there is work but no buffer: buffers return with our own events, or from
    /// another engine, which does not know that we wait.
    fn wait_for_buffers(&mut self) -> Wait {
        match self.inbox.prepare_sleep() {
            true => Wait::Until(self.now + SHORTAGE),
            false => Wait::Now,
        }
    }

    /// Arms every queue, checks that no work arrived meanwhile, and computes how long to wait.
    fn prepare_sleep(&mut self, directory: &Directory) -> Wait {
        let pending =
            self.arm_sources() == Pending::Work || self.arm_outboxes(directory) == Pending::Work;
        if pending || !self.inbox.prepare_sleep() {
            return Wait::Now;
        }
        let mut until = None;
        for slot in &self.turns {
            let Some(source) = &self.sources[*slot] else { continue };
            match source.state() {
                // Either it sees the pressure fall, or it is nudged.
                Ingress::Held { gauge, until: due } if gauge.wait_for_relief() => {
                    until = sooner(until, *due);
                }
                Ingress::Unpaid { until: due } => until = sooner(until, Some(*due)),
                _ => {
                    self.inbox.awake();
                    return Wait::Now;
                }
            }
        }
        let retry = self.outboxes.retry().map(|retry| self.now + retry);
        let until = sooner(until, self.outboxes.credit_due(self.now));
        sooner(until, retry).map_or(Wait::Event, Wait::Until)
    }

    /// Arms the sources that could take frames in. Held sources and those without credit keep their
    /// turns.
    fn arm_sources(&mut self) -> Pending {
        let mut pending = Pending::Nothing;
        let mut position = 0;
        while let Some(&slot) = self.turns.get(position) {
            let armed = match self.sources[slot].as_mut() {
                None => Ok(Pending::Nothing),
                Some(source) => {
                    self.current_queue = Some((source.port_id, source.queue_index));
                    source.arm_if_open(self.now)
                }
            };
            match armed {
                Ok(Pending::Work) => {
                    pending = Pending::Work;
                    position += 1;
                }
                Ok(Pending::Nothing) if self.has_turns(slot) => position += 1,
                Ok(Pending::Nothing) => {
                    self.turns.swap_remove(position);
                }
                Err(down) => {
                    self.fail(slot, down);
                    // The next round wakes the sources that the queue held.
                    pending = Pending::Work;
                }
            }
        }
        pending
    }

    /// Asks for events when there is room for the backlogs.
    fn arm_outboxes(&mut self, directory: &Directory) -> Pending {
        let mut pending = Pending::Nothing;
        let mut position = 0;
        while let Some(&slot) = self.outboxes.draining.get(position) {
            match self.arm_outbox(slot, directory) {
                Ok(armed) => {
                    if armed == Pending::Work {
                        pending = Pending::Work;
                        self.wake(slot);
                    }
                    position += 1;
                }
                Err(down) => {
                    self.fail(slot, down);
                    pending = Pending::Work;
                }
            }
        }
        pending
    }

    fn arm_outbox(&mut self, slot: usize, directory: &Directory) -> Result<Pending, QueueDown> {
        let Some(source) = self.sources[slot].as_mut() else { return Ok(Pending::Nothing) };
        if source.queue.arm()? == Pending::Nothing {
            return Ok(Pending::Nothing);
        }
        if !source.waits() {
            return Ok(Pending::Work);
        }
        // While its source is held, new frames are no reason to stay awake, but new room is.
        let is_room = self.send(slot, directory)? == Work::Done || self.must_wake_senders;
        Ok(if is_room { Pending::Work } else { Pending::Nothing })
    }

    /// Handles an event of the queue in this slot.
    pub fn ready(&mut self, slot: usize, by: Woken) {
        let Some(source) = self.sources.get_mut(slot).and_then(Option::as_mut) else { return };
        self.current_queue = Some((source.port_id, source.queue_index));
        match source.queue.woken(by) {
            Ok(()) => self.wake(slot),
            Err(down) => self.fail(slot, down),
        }
    }

    /// Polls a source in each round again.
    pub(crate) fn wake(&mut self, slot: usize) {
        let Some(source) = self.sources[slot].as_mut() else { return };
        if matches!(source.state(), Ingress::Armed) {
            source.on(IngressEvent::Woken);
            self.turns.push(slot);
        }
    }

    /// Removes a queue that failed.
    pub fn fail(&mut self, slot: usize, down: QueueDown) {
        let Some(attached) = self.take_out(slot) else { return };
        if attached.source.has_lent {
            // The queue gives its peer's memory back below, before the round ends.
            self.outboxes.complete_lent(&mut self.pool);
        }
        let (port_id, queue_index) = (attached.source.port_id, attached.source.queue_index);
        let queue = attached.into_queue(&mut self.pool);
        self.must_wake_senders = true;
        self.failures.push(Failure { port_id, queue_index, queue, down });
    }

    /// The port and the number of the queue that the engine is serving, or was when it panicked;
    /// `None` while it handles frames of several queues.
    pub fn current_queue(&self) -> Option<(PortId, u16)> {
        self.current_queue
    }

    /// A queue that failed since the last call.
    pub fn next_failure(&mut self) -> Option<Failure<Q>> {
        self.failures.pop()
    }

    fn take_out(&mut self, slot: usize) -> Option<Attached<Q>> {
        let source = self.sources.get_mut(slot)?.take()?;
        let outbox = self.outboxes.remove(slot)?;
        self.shares.leave(source.share);
        self.turns.retain(|turn| *turn != slot);
        Some(Attached { source, outbox })
    }

    /// A queue is about to arrive from another engine: frames for it gather until then.
    pub fn expect(&mut self, id: SlotId, gauge: Arc<Gauge>) {
        *self.outboxes.slot(id.index) = OutboxSlot::Expected(Expected::new(id, gauge));
    }

    /// An expected queue does not arrive.
    pub fn forget(&mut self, id: SlotId) {
        let gathered = self.take_expected(id);
        let frames = gathered.into_iter().flat_map(|gathered| gathered.frames);
        frames.for_each(|frame| self.pool.recycle(frame));
    }

    /// Stops expecting a queue and returns the frames that gathered for it.
    fn take_expected(&mut self, id: SlotId) -> Option<Expected> {
        let slot = self.outboxes.slot(id.index);
        match std::mem::replace(slot, OutboxSlot::Vacant) {
            OutboxSlot::Expected(expected) if expected.id == id => {
                self.must_wake_senders |= expected.gauge.lower_at_destination();
                Some(expected)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Takes over a queue. The caller reports its events by [`ready`](Engine::ready) with the index
    /// of its slot.
    pub fn attach(&mut self, attached: Attached<Q>) {
        // Frames in the inbox are newer than those in the queue's own backlog.
        self.drain_inbox();
        let Attached { mut source, outbox } = attached;
        source.share = self.shares.join(source.port_id, source.stations, source.handling());
        let id = source.id;
        let gathered = self.take_expected(id);
        let at = Enqueue { now: self.now, memory_max: &self.memory_max };
        outbox.count_dropped(gathered.as_ref().map_or(0, |gathered| gathered.dropped));
        self.outboxes.insert(outbox);
        for frame in gathered.into_iter().flat_map(|gathered| gathered.frames) {
            let parcel = Parcel { to: id, frame, admission: Admission::Waits };
            self.outboxes.enqueue(parcel, &mut self.pool, &at);
        }
        if self.sources.len() <= id.index {
            self.sources.resize_with(id.index + 1, || None);
        }
        self.sources[id.index] = Some(source);
        self.turns.push(id.index);
    }

    /// Gives up a queue, with all frames sent to it; `None` if it is already gone.
    pub fn detach(&mut self, id: SlotId) -> Option<Attached<Q>> {
        self.drain_inbox();
        self.source(id)?;
        self.take_out(id.index)
    }

    /// Copies frames of a queue to a capture, which replaces any earlier one.
    pub fn capture(&mut self, id: SlotId, capture: &Arc<Capture>) {
        if let Some(source) = self.source(id) {
            source.capture = Some(Arc::clone(capture));
        }
        if let Some(outbox) = self.outboxes.get(id.index).filter(|outbox| outbox.id == id) {
            outbox.capture = Some(Arc::clone(capture));
        }
    }

    /// Limits what enters and leaves by a queue from now on.
    pub fn limit(&mut self, id: SlotId, limits: Limits) {
        if let Some(outbox) = self.outboxes.get(id.index).filter(|outbox| outbox.id == id) {
            outbox.limit(&limits);
        }
        if let Some(source) = self.source(id) {
            source.limit(limits);
        }
    }

    /// Sets what may enter by a queue from now on.
    pub fn set_policy(&mut self, id: SlotId, policy: &Arc<PortPolicy>) {
        if let Some(source) = self.source(id) {
            source.policy = Arc::clone(policy);
        }
    }

    /// The port of the queue in this place, if there is one.
    pub fn port_at(&self, id: SlotId) -> Option<PortId> {
        let source = self.sources.get(id.index)?.as_ref()?;
        (source.id == id).then_some(source.port_id)
    }

    /// Memory of the budget in buffers that it keeps for later frames.
    pub fn bytes_kept(&self) -> usize {
        self.pool.bytes_kept()
    }

    pub(crate) fn source(&mut self, id: SlotId) -> Option<&mut Source<Q>> {
        let source = self.sources.get_mut(id.index)?.as_mut()?;
        (source.id == id).then_some(source)
    }
}

/// The earlier of two optional times.
fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Switch time: seconds since the start.
fn ticks(since: Duration) -> Ticks {
    Ticks(u32::try_from(since.as_secs()).unwrap_or(u32::MAX))
}
