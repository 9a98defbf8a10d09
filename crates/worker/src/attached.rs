//! One queue in a worker's care.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, FrameQueue, PortDown, PortQueue, Probe,
    QueueCounters, QueueTraits, segment,
};
use ringway_switch::{FloodBudget, PortId, Ticks, Verdict, Verdicts};

use crate::capture::{Capture, Passage};
use crate::credit::Credit;
use crate::directory::{Forwarding, SlotId};
use crate::gauge::{Backlog, Gauge, HIGH, LIMIT, LOW, STALL};

/// A port's queue and all that the worker keeps for it.
pub(crate) struct Attached<Q> {
    pub(crate) id: SlotId,
    pub(crate) port_id: PortId,
    pub(crate) queue_index: u16,
    pub(crate) queue: Q,
    pub(crate) forwarding: Forwarding,
    pub(crate) flood: FloodBudget,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) gauge: Arc<Gauge>,
    /// What our next frame goes to, while it is under pressure: no ingress until it is relieved.
    pub(crate) held_by: Option<Arc<Gauge>>,
    /// Frames that were taken in and could not go on, the next one first: a batch at most.
    pub(crate) kept: VecDeque<(Frame, Verdict)>,
    /// Someone who watches.
    pub(crate) capture: Option<Arc<Capture>>,
    /// What limits how much enters here, if anything does.
    credit: Option<Arc<Credit>>,
    /// In the list of queues that are polled.
    pub(crate) is_active: bool,
    /// In the list of queues whose backlog is to be sent.
    pub(crate) has_backlog: bool,
    traits: QueueTraits,
    backlog: FrameQueue,
    backlog_bytes: usize,
    /// When the backlog last moved.
    progress: Instant,
    /// It has not moved for too long.
    is_stalled: bool,
}

impl<Q: PortQueue> Attached<Q> {
    #[expect(clippy::too_many_arguments, reason = "the parts of an attachment, named at the call")]
    pub(crate) fn new(
        id: SlotId,
        port_id: PortId,
        queue_index: u16,
        queue: Q,
        forwarding: Forwarding,
        flood: FloodBudget,
        counters: Arc<QueueCounters>,
        gauge: Arc<Gauge>,
        now: Instant,
    ) -> Attached<Q> {
        let traits = queue.describe();
        Attached {
            id,
            port_id,
            queue_index,
            queue,
            forwarding,
            flood,
            counters,
            gauge,
            held_by: None,
            kept: VecDeque::new(),
            capture: None,
            credit: None,
            is_active: false,
            has_backlog: false,
            traits,
            backlog: FrameQueue::new(),
            backlog_bytes: 0,
            progress: now,
            is_stalled: false,
        }
    }

    /// What ingress has to wait for.
    pub(crate) fn holder(&mut self) -> Option<&Gauge> {
        if self.held_by.as_ref().is_some_and(|gauge| !gauge.has_pressure()) {
            self.held_by = None;
        }
        self.held_by.as_deref()
    }

    /// Whether ingress has to wait.
    pub(crate) fn is_held(&mut self) -> bool {
        self.holder().is_some()
    }

    /// Limits how much enters from now on, or no longer.
    pub(crate) fn limit(&mut self, credit: Option<Arc<Credit>>) {
        self.credit = credit;
    }

    /// How long ingress has to wait for credit, if it has to. What was taken in has been paid.
    pub(crate) fn credit_due(&self, now: Instant) -> Option<Duration> {
        let credit = self.credit.as_deref().filter(|_| self.kept.is_empty())?;
        credit.due(now)
    }

    /// Takes a batch in, as far as there is credit.
    pub(crate) fn ingress(
        &mut self,
        pool: &mut FramePool,
        batch: &mut FrameBatch,
        now: Instant,
    ) -> Result<(), PortDown> {
        let Some(credit) = &self.credit else {
            return self.queue.ingress(Budget::BATCH, pool, batch);
        };
        let available = usize::try_from(credit.available(now)).unwrap_or(usize::MAX);
        let taken = self.queue.ingress(Budget::of_bytes(available), pool, batch);
        let bytes: usize = batch.iter().map(Frame::len).sum();
        credit.spend(u64::try_from(bytes).unwrap_or(u64::MAX));
        taken
    }

    /// Finds where frames that came in go: `verdicts` becomes one for each.
    pub(crate) fn classify(&mut self, batch: &FrameBatch, verdicts: &mut Verdicts, now: Ticks) {
        self.gauge.add_load(u64::try_from(batch.len()).unwrap_or(u64::MAX));
        self.show(Passage::Ingress, batch);
        match &self.forwarding {
            Forwarding::Patch(to) => {
                verdicts.clear();
                verdicts.extend(batch.iter().map(|_| Verdict::Unicast(*to)));
            }
            Forwarding::Switch(switch) => {
                switch.classify(self.port_id, batch, now, &mut self.flood, verdicts);
            }
        }
    }

    /// Copies frames for whoever watches.
    pub(crate) fn show<'a>(
        &mut self,
        passage: Passage,
        frames: impl IntoIterator<Item = &'a Frame>,
    ) {
        match &self.capture {
            Some(capture) if capture.is_open() => capture.copy(passage, self.queue_index, frames),
            Some(_) => self.capture = None,
            None => {}
        }
    }

    /// Adds a frame to what is to leave here, after doing what the far side cannot.
    pub(crate) fn enqueue(&mut self, frame: Frame, pool: &mut FramePool) {
        let limit = if self.is_stalled { LOW } else { LIMIT };
        if self.waiting().reaches(limit) {
            self.counters.dropped.count(DropReason::QueueFull, 1);
            pool.recycle(frame);
            return;
        }
        self.show(Passage::Egress, [&frame]);
        let len = frame.len();
        match segment::prepare(frame, self.traits.caps, pool, &mut self.backlog) {
            // Segments repeat headers: a little more than counted, corrected by the next egress.
            Ok(()) => self.backlog_bytes += len,
            Err(reason) => self.counters.dropped.count(reason, 1),
        }
        if !self.is_stalled && self.waiting().reaches(HIGH) && !self.gauge.is_raised() {
            self.gauge.raise();
        }
    }

    /// Sends what fits, and tells sources to hold back or go on. True if frames are left.
    pub(crate) fn egress(
        &mut self,
        pool: &mut FramePool,
        now: Instant,
    ) -> Result<Egress, PortDown> {
        let before = self.backlog.len();
        self.queue.egress(&mut self.backlog, pool)?;
        let left = self.backlog.len();
        let moved = before - left;
        if moved > 0 {
            self.progress = now;
            self.gauge.add_load(u64::try_from(moved).unwrap_or(u64::MAX));
        }
        self.backlog_bytes = self.backlog.iter().map(Frame::len).sum();
        self.is_stalled = left > 0 && now.duration_since(self.progress) >= STALL;
        if self.is_stalled {
            self.shed(pool);
        }
        let had_pressure = self.gauge.is_raised();
        let mut relieved = false;
        if had_pressure && (self.is_stalled || !self.waiting().reaches(LOW)) {
            relieved = self.gauge.lower();
        } else if !had_pressure && !self.is_stalled && self.waiting().reaches(HIGH) {
            self.gauge.raise();
        }
        Ok(Egress { moved, left, relieved })
    }

    /// Drops the newest frames of a queue that stands still, down to what it may keep.
    fn shed(&mut self, pool: &mut FramePool) {
        while self.waiting().reaches(LOW) {
            let Some(frame) = self.backlog.pop_back() else { break };
            self.backlog_bytes -= frame.len();
            self.counters.dropped.count(DropReason::QueueFull, 1);
            pool.recycle(frame);
        }
        // Nor may what stays hold up those who wait for it.
        self.backlog.iter_mut().for_each(|frame| frame.set_receipt(None));
    }

    /// Whether everything it has was taken in and its descriptor tells, unasked, of what comes.
    pub(crate) fn tells_of_all(&self) -> bool {
        self.traits.probe == Probe::SystemCall && self.kept.is_empty()
    }

    /// Whether its backlog has to be looked at again without an event: until it counts as stalled,
    /// and always for a port that has no event for room.
    pub(crate) fn has_clock(&self) -> bool {
        !self.is_stalled || self.traits.probe == Probe::SystemCall
    }

    /// How much waits to leave here.
    pub(crate) fn waiting(&self) -> Backlog {
        Backlog { frames: self.backlog.len(), bytes: self.backlog_bytes }
    }

    /// Notes that a backlog begins now, for the stall clock.
    pub(crate) fn begin_backlog(&mut self, now: Instant) {
        self.has_backlog = true;
        self.progress = now;
    }

    /// Readies the queue for another owner, who attaches it as `id`.
    pub(crate) fn moved_to(mut self: Box<Self>, id: SlotId, now: Instant) -> Box<Self> {
        self.id = id;
        self.held_by = None;
        self.is_active = false;
        self.has_backlog = false;
        self.progress = now;
        self
    }

    /// Takes the port out. Frames that still waited are recycled.
    pub(crate) fn into_queue(mut self, pool: &mut FramePool) -> Q {
        // The caller nudges everyone, whoever waits.
        self.gauge.lower();
        if let Some(capture) = &self.capture {
            capture.close();
        }
        let kept = self.kept.drain(..).map(|(frame, _)| frame);
        for frame in self.backlog.drain(..).chain(kept) {
            pool.recycle(frame);
        }
        self.queue
    }
}

/// What one egress did.
pub(crate) struct Egress {
    pub(crate) moved: usize,
    pub(crate) left: usize,
    /// Pressure was lowered, and workers sleep because of it.
    pub(crate) relieved: bool,
}
