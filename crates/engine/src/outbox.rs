//! A queue's sending side: frames that wait to leave by it.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{
    BATCH, DropReason, Frame, FramePool, FrameQueue, PortDown, PortQueue, QueueCounters,
    QueueTraits, segment,
};

use crate::capture::{Capture, Passage};
use crate::credit::Credit;
use crate::directory::QueueAddress;
use crate::gauge::{Admission, Backlog, Gauge, HIGH, LOW, STALL};
use crate::inbox::Parcel;
use crate::limits::Limits;
use crate::share;
use crate::slot::SlotId;
use crate::source::show;
use crate::state::{Egress, EgressEvent};

/// Frames for one queue, in the order in which they leave.
pub(crate) struct Outbox {
    pub(crate) id: SlotId,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) capture: Option<Arc<Capture>>,
    queue_index: u16,
    traits: QueueTraits,
    counters: Arc<QueueCounters>,
    frames: FrameQueue,
    /// What limits how much leaves by its port, if anything does.
    credit: Option<Arc<Credit>>,
    /// Frames that have had their credit: they leave before the others.
    paid: FrameQueue,
    bytes: usize,
    /// Memory that the frames take: their buffers may be longer.
    memory: usize,
    /// The same of the port's other queues, when this one last sent.
    memory_of_others: usize,
    state: Egress,
}

/// Memory that the frames of one queue may take, whatever others of its port have; and what a queue
/// that stands still may keep. Less where little is left: see [`memory_min`].
const MEMORY_MIN: usize = 128 << 10;
/// As a part of what one port may take: 1 in this. So there is always something left, however many
/// queues stand still.
const MIN_PART: usize = 16;
/// What a queue may take in any case: a few short frames.
const MEMORY_SURE: usize = 8 << 10;

/// How long a queue that nothing wakes is tried again before its frames are dropped: as long as
/// Linux's backend keeps frames for a guest that takes none (`rx_drain_timeout_msecs` of
/// drivers/net/xen-netback/netback.c).
const GIVE_UP: Duration = Duration::from_secs(10);

/// When a frame is added, and to how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Enqueue<'a> {
    pub(crate) now: Instant,
    /// Memory that the frames of one port may take, found by the first that needs it in a round.
    pub(crate) memory_max: &'a OnceCell<usize>,
}

impl Enqueue<'_> {
    /// Memory that the frames of one port may take: a part of what is left, so that there is
    /// always some left, however many ports are full.
    fn memory_max(&self, pool: &FramePool) -> usize {
        *self.memory_max.get_or_init(|| pool.bytes_left() / MEMORY_PART)
    }
}

/// A port's frames may take so much of the memory that is left: 1 in this.
const MEMORY_PART: usize = 4;

/// What one queue may take, where a port may take so much.
fn memory_min(memory_max: usize) -> usize {
    MEMORY_MIN.min(memory_max / MIN_PART).max(MEMORY_SURE)
}

/// What one call of [`Outbox::send`] did.
pub(crate) struct Sent {
    pub(crate) moved: usize,
    /// Pressure was lowered, and threads sleep because of it.
    pub(crate) relieved: bool,
}

impl Outbox {
    pub(crate) fn new(
        id: SlotId,
        queue_index: u16,
        traits: QueueTraits,
        counters: Arc<QueueCounters>,
        gauge: Arc<Gauge>,
    ) -> Outbox {
        Outbox {
            id,
            gauge,
            capture: None,
            queue_index,
            traits,
            counters,
            frames: FrameQueue::new(),
            credit: None,
            paid: FrameQueue::new(),
            bytes: 0,
            memory: 0,
            memory_of_others: 0,
            state: Egress::Empty,
        }
    }

    pub(crate) fn state(&self) -> Egress {
        self.state
    }

    /// How much waits to leave.
    pub(crate) fn waiting(&self) -> Backlog {
        Backlog { frames: self.paid.len() + self.frames.len(), bytes: self.bytes }
    }

    /// The frames that wait to leave, in order.
    pub(crate) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.paid.iter().chain(&self.frames)
    }

    /// Adds a frame, after doing what the far side cannot.
    pub(crate) fn enqueue(
        &mut self,
        mut frame: Frame,
        admission: Admission,
        pool: &mut FramePool,
        at: Enqueue<'_>,
    ) {
        let now = at.now;
        let mark = if self.is_stalled() { LOW } else { admission.mark() };
        if self.waiting().reaches(mark) || self.takes_too_much(|| at.memory_max(pool)) {
            self.counters.dropped.count(DropReason::QueueFull, 1);
            pool.recycle(frame);
            return;
        }
        if !self.traits.takes_bodies || self.capture.is_some() {
            frame.gather();
        }
        show(&mut self.capture, Passage::Egress, self.queue_index, now, [&frame]);
        let first = self.frames.len();
        match segment::prepare(frame, self.traits.caps, pool, &mut self.frames) {
            Ok(()) => self.count_added(first),
            Err(reason) => self.counters.dropped.count(reason, 1),
        }
        if self.state == Egress::Empty && self.waiting().frames > 0 {
            self.state = self.state.on(EgressEvent::Enqueued, now);
        }
        if !self.is_stalled() && self.waiting().reaches(HIGH) && !self.gauge.is_raised() {
            self.gauge.raise();
        }
    }

    /// Counts the frames from the `first` on, which is nearly always the last one.
    #[inline]
    fn count_added(&mut self, first: usize) {
        if let (true, Some(frame)) = (self.frames.len() == first + 1, self.frames.back()) {
            self.bytes += frame.len();
            self.memory += frame.memory();
            return;
        }
        let added = self.frames.range(first..);
        self.bytes += added.clone().map(Frame::len).sum::<usize>();
        self.memory += added.map(Frame::memory).sum::<usize>();
    }

    /// Whether another frame would take memory that others may need.
    fn takes_too_much(&self, memory_max: impl FnOnce() -> usize) -> bool {
        if self.memory < MEMORY_SURE {
            return false;
        }
        let of_port = self.memory + self.memory_of_others;
        let memory_max = memory_max();
        self.memory >= memory_min(memory_max) && (self.is_stalled() || of_port >= memory_max)
    }

    /// Sends what fits, and holds sources back or lets them go on. `of_port` are the addresses of
    /// the port's queues.
    pub(crate) fn send(
        &mut self,
        queue: &mut impl PortQueue,
        pool: &mut FramePool,
        of_port: &[QueueAddress],
        now: Instant,
    ) -> Result<Sent, PortDown> {
        let before = self.waiting();
        self.pay(now);
        let leaving = if self.credit.is_some() { &mut self.paid } else { &mut self.frames };
        queue.egress(leaving, pool)?;
        let left = self.paid.len() + self.frames.len();
        let moved = before.frames - left;
        self.bytes = self.frames().map(Frame::len).sum();
        self.memory = self.frames().map(Frame::memory).sum();
        if moved > 0 {
            self.gauge.add_load(count(moved));
            let bytes = before.bytes.saturating_sub(self.bytes);
            self.gauge.add_sent(share::cost_of(moved, bytes));
        }
        self.state = self.state.on(EgressEvent::Sent { moved, left }, now);
        if self.has_given_up(now) {
            self.drop_all(pool, now);
            // So that it stops polling for room.
            queue.egress(&mut self.frames, pool)?;
        } else if self.is_stalled() {
            self.shed(pool, now);
        }
        self.gauge.set_memory(self.memory);
        let memories = of_port.iter().map(|address| address.gauge.memory());
        self.memory_of_others = memories.sum::<usize>().saturating_sub(self.memory);
        Ok(Sent { moved, relieved: self.adjust_pressure() })
    }

    /// Limits how much leaves from now on, or no longer.
    pub(crate) fn limit(&mut self, limits: &Limits) {
        self.credit.clone_from(&limits.egress);
        if self.credit.is_none() {
            while let Some(frame) = self.paid.pop_back() {
                self.frames.push_front(frame);
            }
        }
    }

    /// Lets frames leave for which there is credit. What the last one takes beyond it is paid back
    /// before the next.
    fn pay(&mut self, now: Instant) {
        let Some(credit) = self.credit.as_ref().filter(|_| !self.frames.is_empty()) else {
            return;
        };
        let mut left = credit.available(now);
        let mut spent = 0;
        while left > 0 && self.paid.len() < BATCH {
            let Some(frame) = self.frames.pop_front() else { break };
            let len = u64::try_from(frame.len()).unwrap_or(u64::MAX);
            (left, spent) = (left.saturating_sub(len), spent + len);
            self.paid.push_back(frame);
        }
        credit.spend(spent);
    }

    /// When there will be credit for what waits, if nothing else keeps it.
    fn credit_due(&self, now: Instant) -> Option<Instant> {
        let has_room = self.paid.is_empty() && !self.frames.is_empty();
        let due = self.credit.as_ref().filter(|_| has_room)?.due(now).unwrap_or_default();
        now.checked_add(due)
    }

    /// Raises or lowers the pressure as the backlog asks for. True if threads are to be woken.
    fn adjust_pressure(&mut self) -> bool {
        let may_hold = !self.is_stalled();
        if self.gauge.is_raised() {
            (!may_hold || !self.waiting().reaches(LOW)) && self.gauge.lower()
        } else {
            if may_hold && self.waiting().reaches(HIGH) {
                self.gauge.raise();
            }
            false
        }
    }

    /// Drops everything, so that a queue need not be tried for ever.
    fn drop_all(&mut self, pool: &mut FramePool, now: Instant) {
        self.counters.dropped.count(DropReason::QueueFull, count(self.waiting().frames));
        self.recycle_all(pool);
        (self.bytes, self.memory) = (0, 0);
        self.state = self.state.on(EgressEvent::Sent { moved: 0, left: 0 }, now);
    }

    /// Drops the newest frames of a queue that stands still, down to what it may keep.
    fn shed(&mut self, pool: &mut FramePool, now: Instant) {
        let memory_min = memory_min(pool.bytes_left() / MEMORY_PART);
        while self.waiting().reaches(LOW) || self.memory > memory_min {
            let Some(frame) = self.frames.pop_back().or_else(|| self.paid.pop_back()) else {
                break;
            };
            self.bytes -= frame.len();
            self.memory -= frame.memory();
            self.counters.dropped.count(DropReason::QueueFull, 1);
            pool.recycle(frame);
        }
        // Frames that stay must not delay the responses to their senders.
        let left = self.paid.iter_mut().chain(&mut self.frames);
        left.for_each(|frame| {
            frame.set_receipt(None);
            frame.gather();
        });
        if self.waiting().frames == 0 {
            // Otherwise the next frame would join a queue that is not drained.
            self.state = self.state.on(EgressEvent::Sent { moved: 0, left: 0 }, now);
        }
    }

    /// Counts frames for it that were dropped before it came.
    pub(crate) fn count_dropped(&self, frames: u64) {
        self.counters.dropped.count(DropReason::QueueFull, frames);
    }

    fn is_stalled(&self) -> bool {
        matches!(self.state, Egress::Stalled { .. })
    }

    /// Whether it has stood still for [`GIVE_UP`], and nothing would report that it has room.
    fn has_given_up(&self, now: Instant) -> bool {
        let Egress::Stalled { since } = self.state else { return false };
        self.traits.retry.is_some() && now.saturating_duration_since(since) >= GIVE_UP
    }

    /// After how long it has to be tried again without an event. Before it stalls, that is when it
    /// might; one that has stalled waits for its event, if its queue has one for room.
    fn retry(&self) -> Option<Duration> {
        match (self.is_stalled(), self.traits.retry) {
            (false, retry) => Some(retry.map_or(STALL, |retry| retry.min(STALL))),
            (true, retry) => retry.map(|retry| retry.max(STALL)),
        }
    }

    /// The queue has a new owner, which begins a new wait for what is left.
    pub(crate) fn moved_to(&mut self, id: SlotId, now: Instant) {
        self.id = id;
        self.state = match self.waiting().frames == 0 {
            true => Egress::Empty,
            false => Egress::Draining { since: now },
        };
    }

    /// Takes everything that waits, and ends the hold on its sources.
    pub(crate) fn close(&mut self, pool: &mut FramePool) {
        // The caller nudges everyone.
        self.gauge.lower();
        if let Some(capture) = &self.capture {
            capture.close();
        }
        self.recycle_all(pool);
    }

    fn recycle_all(&mut self, pool: &mut FramePool) {
        self.paid.drain(..).chain(self.frames.drain(..)).for_each(|frame| pool.recycle(frame));
    }
}

/// A queue that is on its way here, and what was sent to it meanwhile.
pub(crate) struct Expected {
    pub(crate) id: SlotId,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) frames: FrameQueue,
    memory: usize,
    /// Frames that did not fit, which the queue counts when it comes.
    pub(crate) dropped: u64,
}

impl Expected {
    pub(crate) fn new(id: SlotId, gauge: Arc<Gauge>) -> Expected {
        Expected { id, gauge, frames: FrameQueue::new(), memory: 0, dropped: 0 }
    }

    fn enqueue(
        &mut self,
        frame: Frame,
        admission: Admission,
        pool: &mut FramePool,
        at: Enqueue<'_>,
    ) {
        let takes_too_much = self.memory >= MEMORY_MIN && self.memory >= at.memory_max(pool);
        if self.frames.len() >= admission.mark().frames || takes_too_much {
            self.dropped += 1;
            return pool.recycle(frame);
        }
        self.memory += frame.memory();
        self.frames.push_back(frame);
        if self.frames.len() >= HIGH.frames && !self.gauge.has_pressure() {
            self.gauge.raise_ahead();
        }
    }
}

/// A place for an outbox.
pub(crate) enum OutboxSlot {
    Vacant,
    Expected(Expected),
    Here(Outbox),
}

/// All outboxes of an engine, by slot.
#[derive(Default)]
pub(crate) struct Outboxes {
    slots: Vec<OutboxSlot>,
    /// Slots of those that are not empty.
    pub(crate) draining: Vec<usize>,
}

impl Outboxes {
    pub(crate) fn slot(&mut self, index: usize) -> &mut OutboxSlot {
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || OutboxSlot::Vacant);
        }
        &mut self.slots[index]
    }

    pub(crate) fn get(&mut self, index: usize) -> Option<&mut Outbox> {
        match self.slots.get_mut(index) {
            Some(OutboxSlot::Here(outbox)) => Some(outbox),
            _ => None,
        }
    }

    /// Every place.
    pub(crate) fn slots(&self) -> &[OutboxSlot] {
        &self.slots
    }

    /// After how long the first of them has to be tried again without an event.
    pub(crate) fn retry(&self) -> Option<Duration> {
        let draining = self.draining.iter().filter_map(|slot| match &self.slots[*slot] {
            OutboxSlot::Here(outbox) => outbox.retry(),
            OutboxSlot::Vacant | OutboxSlot::Expected(_) => None,
        });
        draining.min()
    }

    /// The earliest time at which one has credit that waits for nothing else.
    pub(crate) fn credit_due(&self, now: Instant) -> Option<Instant> {
        let due = |slot: &usize| match &self.slots[*slot] {
            OutboxSlot::Here(outbox) => outbox.credit_due(now),
            OutboxSlot::Vacant | OutboxSlot::Expected(_) => None,
        };
        self.draining.iter().filter_map(due).min()
    }

    /// Puts an outbox in; what waits in it is to be sent.
    pub(crate) fn insert(&mut self, outbox: Outbox) {
        let index = outbox.id.index;
        if outbox.state() != Egress::Empty {
            self.draining.push(index);
        }
        *self.slot(index) = OutboxSlot::Here(outbox);
    }

    /// Takes an outbox out.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Outbox> {
        let slot = self.slots.get_mut(index)?;
        self.draining.retain(|draining| *draining != index);
        match std::mem::replace(slot, OutboxSlot::Vacant) {
            OutboxSlot::Here(outbox) => Some(outbox),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Adds a frame to what waits for a queue.
    pub(crate) fn enqueue(&mut self, parcel: Parcel, pool: &mut FramePool, at: Enqueue<'_>) {
        let Parcel { to, frame, admission } = parcel;
        match self.slots.get_mut(to.index) {
            Some(OutboxSlot::Here(outbox)) if outbox.id == to => {
                let was_empty = outbox.state() == Egress::Empty;
                outbox.enqueue(frame, admission, pool, at);
                if was_empty && outbox.state() != Egress::Empty {
                    self.draining.push(to.index);
                }
            }
            Some(OutboxSlot::Expected(expected)) if expected.id == to => {
                expected.enqueue(frame, admission, pool, at);
            }
            // Detached since the sender looked it up: treat it as detached before.
            _ => pool.recycle(frame),
        }
    }
}

fn count(frames: usize) -> u64 {
    u64::try_from(frames).unwrap_or(u64::MAX)
}
