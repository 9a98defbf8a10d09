//! A queue's receiving side: from the queue to a verdict for each frame.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, Pending, PortDown, PortQueue, Probe,
    QueueCounters, QueueTraits,
};
use ringway_switch::{FloodBudget, PortId, Ticks, Verdict, Verdicts};

use crate::capture::{Capture, Passage};
use crate::credit::Credit;
use crate::directory::Forwarding;
use crate::gauge::Gauge;
use crate::slot::SlotId;
use crate::state::{Ingress, IngressEvent};

/// A queue, and what the engine keeps to take frames in from it.
pub(crate) struct Source<Q> {
    pub(crate) id: SlotId,
    pub(crate) port_id: PortId,
    pub(crate) queue_index: u16,
    pub(crate) queue: Q,
    pub(crate) traits: QueueTraits,
    pub(crate) forwarding: Forwarding,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) capture: Option<Arc<Capture>>,
    /// Frames that were taken in and could not go on, the next one first: a batch at most.
    pub(crate) kept: VecDeque<(Frame, Verdict)>,
    flood: FloodBudget,
    /// Where the load is counted.
    gauge: Arc<Gauge>,
    /// What limits how much enters here, if anything does.
    credit: Option<Arc<Credit>>,
    state: Ingress,
}

/// What a source is made of.
pub(crate) struct SourceParts<Q> {
    pub(crate) id: SlotId,
    pub(crate) port_id: PortId,
    pub(crate) queue_index: u16,
    pub(crate) queue: Q,
    pub(crate) forwarding: Forwarding,
    pub(crate) flood: FloodBudget,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) credit: Option<Arc<Credit>>,
}

/// What all sources of an engine use in turn.
pub(crate) struct Intake<'a> {
    pub(crate) pool: &'a mut FramePool,
    pub(crate) batch: &'a mut FrameBatch,
    pub(crate) verdicts: &'a mut Verdicts,
    pub(crate) now: Instant,
    /// Switch time.
    pub(crate) ticks: Ticks,
}

impl<Q: PortQueue> Source<Q> {
    pub(crate) fn new(parts: SourceParts<Q>) -> Source<Q> {
        Source {
            traits: parts.queue.describe(),
            id: parts.id,
            port_id: parts.port_id,
            queue_index: parts.queue_index,
            queue: parts.queue,
            forwarding: parts.forwarding,
            counters: parts.counters,
            capture: None,
            kept: VecDeque::new(),
            flood: parts.flood,
            gauge: parts.gauge,
            credit: parts.credit,
            state: Ingress::Polling,
        }
    }

    pub(crate) fn state(&self) -> &Ingress {
        &self.state
    }

    pub(crate) fn on(&mut self, event: IngressEvent) {
        self.state = std::mem::take(&mut self.state).on(event);
    }

    /// Ends a wait whose reason is gone.
    pub(crate) fn refresh(&mut self, now: Instant) {
        if let Some(event) = self.state.due(now) {
            self.on(event);
        }
    }

    /// Limits how much enters from now on, or no longer.
    pub(crate) fn limit(&mut self, credit: Option<Arc<Credit>>) {
        self.credit = credit;
        self.refind();
    }

    /// Finds out again what it waits for, if it waits.
    pub(crate) fn refind(&mut self) {
        if !matches!(self.state, Ingress::Armed) {
            self.on(IngressEvent::Restart);
        }
    }

    /// Takes a batch in, as far as it may, and adds it to what is kept. Frames that are kept go
    /// first: while there are any, none are taken in.
    pub(crate) fn take_in(&mut self, intake: &mut Intake<'_>) -> Result<(), PortDown> {
        match self.state {
            Ingress::Starved => self.on(IngressEvent::Due),
            _ => self.refresh(intake.now),
        }
        if matches!(self.state, Ingress::Polling) && !self.kept.is_empty() {
            return Ok(());
        }
        let budget = self.budget(intake.now);
        let taken = self.queue.ingress(budget, intake.pool, intake.batch);
        if intake.pool.take_shortage() {
            self.on(IngressEvent::NoBuffer);
        }
        if !intake.batch.is_empty() {
            self.charge(intake.batch);
            self.classify(intake);
            self.kept.extend(intake.batch.drain(..).zip(intake.verdicts.drain(..)));
        }
        taken
    }

    /// What may be taken in now.
    fn budget(&mut self, now: Instant) -> Budget {
        if let (Ingress::Polling, Some(due)) = (&self.state, self.credit_due(now)) {
            self.on(IngressEvent::OutOfCredit { until: due });
        }
        match (&self.state, &self.credit) {
            (Ingress::Polling, None) => Budget::BATCH,
            (Ingress::Polling, Some(credit)) => {
                Budget::of_bytes(usize::try_from(credit.available(now)).unwrap_or(usize::MAX))
            }
            _ => Budget::NOTHING,
        }
    }

    /// When there will be credit, if there is not now.
    fn credit_due(&self, now: Instant) -> Option<Instant> {
        let due = self.credit.as_ref()?.due(now)?;
        // A time beyond the clock's end is never reached; the limit may be changed before.
        Some(now.checked_add(due).unwrap_or(now + FAR_OFF))
    }

    fn charge(&self, batch: &FrameBatch) {
        self.gauge.add_load(u64::try_from(batch.len()).unwrap_or(u64::MAX));
        if let Some(credit) = &self.credit {
            let bytes: usize = batch.iter().map(Frame::len).sum();
            credit.spend(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// Finds where frames that came in go: one verdict for each.
    fn classify(&mut self, intake: &mut Intake<'_>) {
        let Intake { batch, verdicts, now, ticks, .. } = intake;
        show(&mut self.capture, Passage::Ingress, self.queue_index, *now, batch.iter());
        match &self.forwarding {
            Forwarding::Patch(to) => {
                verdicts.clear();
                verdicts.extend(batch.iter().map(|_| Verdict::Unicast(*to)));
            }
            Forwarding::Switch(switch) => {
                switch.classify(self.port_id, batch, *ticks, &mut self.flood, verdicts);
            }
        }
    }

    /// After a turn: a queue whose descriptor reports every frame needs no second call to find
    /// that it is empty. Whether it has more.
    pub(crate) fn rest(&mut self) -> Result<Pending, PortDown> {
        let reports_all = self.traits.probe == Probe::SystemCall && self.kept.is_empty();
        if !reports_all || !matches!(self.state, Ingress::Polling) {
            return Ok(Pending::Nothing);
        }
        self.arm()
    }

    /// Asks for an event; without work, the queue is armed then.
    pub(crate) fn arm(&mut self) -> Result<Pending, PortDown> {
        let pending = self.queue.arm()?;
        if pending == Pending::Nothing {
            self.on(IngressEvent::Idle);
        }
        Ok(pending)
    }

    /// Whether nothing may enter, whatever waits.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, Ingress::Held(_) | Ingress::Unpaid { .. })
    }

    pub(crate) fn count_drop(&self, reason: DropReason) {
        self.counters.dropped.count(reason, 1);
    }
}

/// Further off than any limit is set for.
const FAR_OFF: std::time::Duration = std::time::Duration::from_secs(3600);

/// Copies frames for the reader of a capture, and drops a capture that has ended.
pub(crate) fn show<'a>(
    capture: &mut Option<Arc<Capture>>,
    passage: Passage,
    queue_index: u16,
    now: Instant,
    frames: impl IntoIterator<Item = &'a Frame>,
) {
    match capture {
        Some(open) if open.is_open() => open.copy(passage, queue_index, now, frames),
        Some(_) => *capture = None,
        None => {}
    }
}
