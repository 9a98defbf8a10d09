//! A queue's sending side: frames that wait to leave by it.

use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{
    BATCH, DropReason, Frame, FramePool, FrameQueue, MacAddr, MulticastFilter, OffloadCaps,
    PortQueue, QueueCounters, QueueDown, QueueTraits, segment,
};

use crate::capture::{Capture, Passage};
use crate::credit::Credit;
use crate::directory::QueueAddress;
use crate::gauge::{Admission, Backlog, Gauge, HIGH, LOW};
use crate::inbox::Parcel;
use crate::limits::Limits;
use crate::parked::Parked;
use crate::share;
use crate::slot::SlotId;
use crate::source::show;
use crate::state::{Egress, EgressEvent};

mod drain;
mod memory;
mod room;
mod stall;
mod together;

use drain::Drain;
pub(crate) use memory::Enqueue;
use memory::{MEMORY_GUARANTEED, MEMORY_MIN, MEMORY_SHARE_DIVISOR, queue_memory_max};
use room::Long;
pub(crate) use room::Room;
pub(crate) use together::Sums;

/// Frames for one queue, in the order in which they leave.
pub(crate) struct Outbox {
    pub(crate) id: SlotId,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) capture: Option<Arc<Capture>>,
    queue_index: u16,
    traits: QueueTraits,
    /// What frames may still ask for when they are added: what the queue takes, or nothing.
    caps: OffloadCaps,
    counters: Arc<QueueCounters>,
    frames: FrameQueue,
    /// The limit of what leaves by its port, if there is one.
    credit: Option<Arc<Credit>>,
    gate: Gate,
    /// Frames that are already paid for: they leave before the others.
    admitted: FrameQueue,
    bytes: usize,
    /// Memory that the frames take: their buffers may be longer than the frames.
    memory: usize,
    /// Memory that the frames of the port's other queues took when this one last sent.
    memory_of_others: usize,
    /// Whether frames that came since the last call of [`send`](Outbox::send) have ends that a peer
    /// has lent.
    has_lent: bool,
    /// What it knows of the long frames that it gets.
    long: Long,
    /// Buckets of flows that are leaving its queue.
    drain: Option<Box<Drain>>,
    state: Egress,
}

/// Which frames may be added.
enum Gate {
    /// All.
    Open,
    /// Those that the guest wants.
    Filtered(Arc<MulticastFilter>),
    /// None, for this reason.
    Shut(DropReason),
}

/// The result of one call of [`Outbox::send`].
pub(crate) struct Sent {
    pub(crate) moved: usize,
    /// Pressure was lowered, and threads may sleep because of it.
    pub(crate) must_wake_senders: bool,
    /// Sources that waited for room may go on.
    pub(crate) has_released: bool,
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
            caps: traits.caps,
            counters,
            frames: FrameQueue::new(),
            credit: None,
            gate: Gate::Open,
            admitted: FrameQueue::new(),
            bytes: 0,
            memory: 0,
            memory_of_others: 0,
            has_lent: false,
            long: Long::default(),
            drain: None,
            state: Egress::Empty,
        }
    }

    /// Whether frames wait.
    #[inline]
    fn is_draining(&self) -> bool {
        !matches!(self.state, Egress::Empty)
    }

    /// Whether it must be called in each round.
    pub(crate) fn is_active(&self) -> bool {
        self.is_draining() || self.long.is_awaited() || self.drain.is_some()
    }

    /// How much waits to leave.
    pub(crate) fn waiting(&self) -> Backlog {
        Backlog { frames: self.admitted.len() + self.frames.len(), bytes: self.bytes }
    }

    /// The frames that wait to leave, in order.
    pub(crate) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.admitted.iter().chain(&self.frames)
    }

    /// Adds frames, after doing the offloaded work that the far side cannot do.
    fn enqueue_all(
        &mut self,
        frames: impl Iterator<Item = Frame>,
        admission: Admission,
        pool: &mut FramePool,
        at: &Enqueue<'_>,
    ) {
        let filter = match &self.gate {
            Gate::Open => None,
            Gate::Filtered(filter) => Some(Arc::clone(filter)),
            //= netif.h:carrier-down
            Gate::Shut(reason) => {
                let reason = *reason;
                return frames.for_each(|frame| self.refuse(frame, reason, pool));
            }
        };
        let mark = if self.is_stalled() { LOW } else { admission.mark() };
        let mut memory_max = MEMORY_GUARANTEED;
        for frame in frames {
            if filter.as_ref().is_some_and(|filter| !is_wanted(&frame, filter)) {
                pool.recycle(frame);
                continue;
            }
            if self.memory >= memory_max {
                memory_max = self.memory_max(at.memory_max(pool));
            }
            match self.waiting().reaches(mark) || self.memory >= memory_max {
                true => self.refuse(frame, self.full(), pool),
                false => self.add(frame, pool, at.now),
            }
        }
        if !self.is_draining() && self.waiting().frames > 0 {
            self.state = self.state.on(EgressEvent::Enqueued, at.now);
        }
    }

    /// Always inlined: a call would cost a third of what it does.
    #[inline(always)]
    fn add(&mut self, mut frame: Frame, pool: &mut FramePool, now: Instant) {
        if !frame.is_complete() && !self.takes_end_of(&frame) {
            if let Err(reason) = pool.complete(&mut frame) {
                self.counters.dropped.count(reason, 1);
                return pool.recycle(frame);
            }
        }
        if self.capture.is_some() {
            show(&mut self.capture, Passage::Egress, self.queue_index, now, [&frame]);
        }
        self.has_lent |= frame.is_lent();
        if segment::is_ready(&frame) {
            self.bytes += frame.len();
            self.memory += frame.memory();
            self.frames.push_back(frame);
        } else {
            self.add_offloaded(frame, pool);
        }
        if self.waiting().reaches(HIGH) && !self.is_stalled() && !self.gauge.is_raised() {
            self.gauge.raise();
        }
    }

    /// Whether a frame may leave with its end where it is.
    fn takes_end_of(&self, frame: &Frame) -> bool {
        self.traits.takes.has(frame.ends()) && self.capture.is_none()
    }

    /// Adds a frame that asks for something: as it is, or what it becomes.
    #[inline(never)]
    fn add_offloaded(&mut self, frame: Frame, pool: &mut FramePool) {
        let first = self.frames.len();
        match segment::prepare(frame, self.caps, pool, &mut self.frames) {
            Ok(()) => {
                let added = self.frames.range(first..);
                self.bytes += added.clone().map(Frame::len).sum::<usize>();
                self.memory += added.map(Frame::memory).sum::<usize>();
            }
            Err(reason) => self.counters.dropped.count(reason, 1),
        }
    }

    /// Drops a frame that is not added.
    #[cold]
    fn refuse(&mut self, frame: Frame, reason: DropReason, pool: &mut FramePool) {
        self.counters.dropped.count(reason, 1);
        pool.recycle(frame);
    }

    /// Why there is no room.
    fn full(&self) -> DropReason {
        if self.awaits_credit() { DropReason::RateLimit } else { DropReason::QueueFull }
    }

    /// Memory at which another frame would take what others may need, if the port may take
    /// `of_port`.
    fn memory_max(&self, of_port: usize) -> usize {
        match self.is_stalled() {
            true => queue_memory_max(of_port),
            false => queue_memory_max(of_port).max(of_port.saturating_sub(self.memory_of_others)),
        }
    }

    /// Sends what fits, and holds or releases sources. `of_port` are the addresses of the port's
    /// queues.
    pub(crate) fn send(
        &mut self,
        queue: &mut impl PortQueue,
        pool: &mut FramePool,
        of_port: &[QueueAddress],
        now: Instant,
    ) -> Result<Sent, QueueDown> {
        let before = self.waiting();
        self.admit(now);
        let leaving = if self.credit.is_some() { &mut self.admitted } else { &mut self.frames };
        queue.egress(leaving, pool)?;
        let are_some_left = !leaving.is_empty();
        let moved = before.frames - self.waiting().frames;
        if moved > 0 {
            if self.is_stalled() {
                self.counters.rx_wait.clear();
            }
            self.bytes = self.frames().map(Frame::len).sum();
            self.memory = self.frames().map(Frame::memory).sum();
            self.gauge.add_delivered(count(moved));
            let bytes = before.bytes.saturating_sub(self.bytes);
            self.gauge.add_sent(share::cost_of(moved, bytes));
        }
        self.complete_lent(pool);
        let left = self.waiting().frames;
        self.state = self.state.on(EgressEvent::Sent { moved, left }, now);
        if self.has_given_up(now) {
            self.drop_all(pool, now);
        } else if let Egress::Stalled { since } = self.state {
            self.show_stall(since);
            self.shed(pool, now);
        }
        let leaving = if self.credit.is_some() { &mut self.admitted } else { &mut self.frames };
        if are_some_left && leaving.is_empty() {
            // So that it stops polling for room, of which it may have plenty by now.
            queue.egress(leaving, pool)?;
        }
        self.gauge.set_memory(self.memory);
        let memories = of_port.iter().map(|address| address.gauge.memory());
        self.memory_of_others = memories.sum::<usize>().saturating_sub(self.memory);
        if self.drain.is_some() {
            self.advance_drain(queue, moved, now);
        }
        let must_wake_senders = self.adjust_pressure();
        Ok(Sent { moved, must_wake_senders, has_released: self.release_if_room(queue) })
    }

    /// Sets or removes the limits of what leaves. Frames that wait already may still leave.
    pub(crate) fn limit(&mut self, limits: &Limits) {
        self.caps = if limits.is_plain { OffloadCaps::NONE } else { self.traits.caps };
        self.gate = match (limits.shut, &limits.multicast) {
            (Some(reason), _) => Gate::Shut(reason),
            (None, None) => Gate::Open,
            (None, Some(filter)) => Gate::Filtered(Arc::clone(filter)),
        };
        self.credit.clone_from(&limits.egress);
        if self.credit.is_none() {
            while let Some(frame) = self.admitted.pop_back() {
                self.frames.push_front(frame);
            }
        }
    }

    /// Releases frames for which there is credit. A debt from the last frame is paid back before
    /// the next one leaves.
    fn admit(&mut self, now: Instant) {
        let Some(credit) = self.credit.as_ref().filter(|_| !self.frames.is_empty()) else {
            return;
        };
        let mut left = credit.available(now);
        let mut spent = 0;
        while left > 0 && self.admitted.len() < BATCH {
            let Some(frame) = self.frames.pop_front() else { break };
            let len = u64::try_from(frame.len()).unwrap_or(u64::MAX);
            (left, spent) = (left.saturating_sub(len), spent + len);
            self.admitted.push_back(frame);
        }
        credit.spend(spent);
    }

    /// When there will be credit for the waiting frames, if they wait for nothing else.
    fn credit_due(&self, now: Instant) -> Option<Instant> {
        let credit = self.credit.as_ref().filter(|_| self.awaits_credit())?;
        now.checked_add(credit.due(now).unwrap_or_default())
    }

    /// Whether frames wait for credit, and none for the receiver.
    fn awaits_credit(&self) -> bool {
        self.credit.is_some() && self.admitted.is_empty() && !self.frames.is_empty()
    }

    /// Raises or lowers the pressure according to the backlog. True if threads must be woken.
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

    /// Completes the frames that came since the last call of [`send`](Outbox::send), so that they
    /// do not delay the responses to their senders.
    fn complete_lent(&mut self, pool: &mut FramePool) {
        if std::mem::take(&mut self.has_lent) {
            self.complete_those(pool, Frame::is_lent);
        }
    }

    /// Completes some of the waiting frames, and drops those that cannot be read.
    fn complete_those(&mut self, pool: &mut FramePool, are_meant: fn(&Frame) -> bool) {
        for queue in [&mut self.admitted, &mut self.frames] {
            for _ in 0..queue.len() {
                let Some(mut frame) = queue.pop_front() else { break };
                let len = frame.len();
                let completed = if are_meant(&frame) { pool.complete(&mut frame) } else { Ok(()) };
                match completed {
                    Ok(()) => queue.push_back(frame),
                    Err(reason) => {
                        self.bytes -= len;
                        self.memory -= frame.memory();
                        self.counters.dropped.count(reason, 1);
                        pool.recycle(frame);
                    }
                }
            }
        }
    }

    /// Counts frames that were dropped before the queue arrived.
    pub(crate) fn count_dropped(&self, frames: u64) {
        self.counters.dropped.count(DropReason::QueueFull, frames);
    }

    fn is_stalled(&self) -> bool {
        matches!(self.state, Egress::Stalled { .. })
    }

    /// Prepares it for a new owner, which starts a new wait for the remaining frames.
    pub(crate) fn moved_to(&mut self, id: SlotId, now: Instant) {
        self.id = id;
        self.counters.rx_wait.clear();
        self.state = match self.waiting().frames == 0 {
            true => Egress::Empty,
            false => Egress::Draining { since: now },
        };
    }

    /// Recycles everything that waits, and ends the hold on its sources.
    pub(crate) fn close(&mut self, pool: &mut FramePool) {
        // The caller nudges all engines.
        self.gauge.lower();
        if let Some(capture) = &self.capture {
            capture.close();
        }
        self.recycle_all(pool);
    }

    fn recycle_all(&mut self, pool: &mut FramePool) {
        self.admitted.drain(..).chain(self.frames.drain(..)).for_each(|frame| pool.recycle(frame));
    }
}

#[inline(never)]
fn is_wanted(frame: &Frame, filter: &MulticastFilter) -> bool {
    frame.bytes().first_chunk().is_none_or(|to| filter.passes(MacAddr(*to)))
}

/// A queue that is on its way here, and the frames sent to it meanwhile.
pub(crate) struct Expected {
    pub(crate) id: SlotId,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) frames: FrameQueue,
    memory: usize,
    /// Frames that did not fit; the queue counts them when it arrives.
    pub(crate) dropped: u64,
}

impl Expected {
    pub(crate) fn new(id: SlotId, gauge: Arc<Gauge>) -> Expected {
        Expected { id, gauge, frames: FrameQueue::new(), memory: 0, dropped: 0 }
    }

    fn enqueue(
        &mut self,
        mut frame: Frame,
        admission: Admission,
        pool: &mut FramePool,
        at: &Enqueue<'_>,
    ) {
        let takes_too_much = self.memory >= MEMORY_MIN && self.memory >= at.memory_max(pool);
        let is_full = self.frames.len() >= admission.mark().frames || takes_too_much;
        let is_lost = frame.is_lent() && !is_full && pool.complete(&mut frame).is_err();
        if is_full || is_lost {
            self.dropped += 1;
            return pool.recycle(frame);
        }
        self.memory += frame.memory();
        self.frames.push_back(frame);
        if self.frames.len() >= HIGH.frames && !self.gauge.has_pressure() {
            self.gauge.raise_at_destination();
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
    /// Frames that wait until it is known which outbox they are for.
    pub(crate) parked: Parked,
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

    /// Completes every frame whose end is lent.
    pub(crate) fn complete_lent(&mut self, pool: &mut FramePool) {
        for slot in &mut self.slots {
            if let OutboxSlot::Here(outbox) = slot {
                outbox.complete_lent(pool);
            }
        }
    }

    /// After how long the first of them must be retried without an event.
    pub(crate) fn retry(&self) -> Option<Duration> {
        let draining = self.draining.iter().filter_map(|slot| match &self.slots[*slot] {
            OutboxSlot::Here(outbox) => outbox.retry(),
            OutboxSlot::Vacant | OutboxSlot::Expected(_) => None,
        });
        let parked = (!self.parked.is_empty()).then_some(drain::RETRY);
        draining.chain(parked).min()
    }

    /// The earliest time at which an outbox that waits only for credit has some.
    pub(crate) fn credit_due(&self, now: Instant) -> Option<Instant> {
        let due = |slot: &usize| match &self.slots[*slot] {
            OutboxSlot::Here(outbox) => outbox.credit_due(now),
            OutboxSlot::Vacant | OutboxSlot::Expected(_) => None,
        };
        self.draining.iter().filter_map(due).min()
    }

    /// Inserts an outbox and schedules its waiting frames.
    pub(crate) fn insert(&mut self, outbox: Outbox) {
        let index = outbox.id.index;
        if outbox.is_active() {
            self.draining.push(index);
        }
        *self.slot(index) = OutboxSlot::Here(outbox);
    }

    /// Removes an outbox, and releases the sources that wait for its room.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Outbox> {
        let slot = self.slots.get_mut(index)?;
        self.draining.retain(|draining| *draining != index);
        match std::mem::replace(slot, OutboxSlot::Vacant) {
            OutboxSlot::Here(mut outbox) => {
                outbox.long.leave();
                Some(outbox)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Adds a frame to those that wait for a queue.
    pub(crate) fn enqueue(&mut self, parcel: Parcel, pool: &mut FramePool, at: &Enqueue<'_>) {
        let Parcel { to, frame, admission } = parcel;
        self.enqueue_all(to, iter::once(frame), admission, pool, at);
    }

    /// Adds frames to those that wait for a queue.
    pub(crate) fn enqueue_all(
        &mut self,
        to: SlotId,
        frames: impl Iterator<Item = Frame>,
        admission: Admission,
        pool: &mut FramePool,
        at: &Enqueue<'_>,
    ) {
        match self.slots.get_mut(to.index) {
            Some(OutboxSlot::Here(outbox)) if outbox.id == to => {
                let was_active = outbox.is_active();
                outbox.enqueue_all(frames, admission, pool, at);
                if !was_active && outbox.is_active() {
                    self.draining.push(to.index);
                }
            }
            Some(OutboxSlot::Expected(expected)) if expected.id == to => {
                frames.for_each(|frame| expected.enqueue(frame, admission, pool, at));
            }
            // Detached after the sender looked it up: handle the frames as if that had happened
            // before.
            _ => frames.for_each(|frame| pool.recycle(frame)),
        }
    }
}

fn count(frames: usize) -> u64 {
    u64::try_from(frames).unwrap_or(u64::MAX)
}
