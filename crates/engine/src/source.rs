//! A queue's receiving side: from the queue to a verdict for each frame.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, Pending, PortDown, PortQueue, Probe,
    QueueCounters, QueueTraits,
};
use ringway_switch::{FloodBudget, PortId, PortPolicy, Ticks, Verdict, Verdicts};

use crate::allowance::Allowance;
use crate::bridge::Arriving;
use crate::capture::{Capture, Passage};
use crate::directory::Forwarding;
use crate::gauge::{Backlog, Gauge};
use crate::inspect::Whereabouts;
use crate::limits::Limits;
use crate::share::{Handling, Shares, Stations, cost_of};
use crate::slot::SlotId;
use crate::state::{Ingress, IngressEvent};

/// A queue, and what the engine keeps to take frames in from it.
pub(crate) struct Source<Q> {
    pub(crate) id: SlotId,
    pub(crate) port_id: PortId,
    pub(crate) queue_index: u16,
    /// Queues of its port.
    pub(crate) queue_count: u16,
    pub(crate) queue: Q,
    pub(crate) traits: QueueTraits,
    pub(crate) forwarding: Forwarding,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) capture: Option<Arc<Capture>>,
    /// Frames that were taken in and could not go on, the next one first: a batch at most.
    pub(crate) kept: VecDeque<(Frame, Verdict)>,
    /// Whether mirrors have had their copies of the first of them.
    pub(crate) is_front_mirrored: bool,
    /// Index of its port's share of the engine.
    pub(crate) share: usize,
    pub(crate) stations: Stations,
    /// What may enter here.
    pub(crate) policy: Arc<PortPolicy>,
    flood: Arc<FloodBudget>,
    /// How long it may be held by the queues that the switch sends its frames to.
    patience: Patience,
    /// The time for which it may be held, where that is limited.
    allowance: Allowance,
    /// Where the hold is charged: what the queue that holds it had sent when the hold began, and
    /// when that was.
    held_since: Option<(u64, Instant)>,
    /// Where the load is counted.
    gauge: Arc<Gauge>,
    /// What limits its port.
    limits: Limits,
    /// Where it reports to those who send to it by a bridge of the host's, if any do.
    arriving: Option<Arriving>,
    /// Turns since it last had a frame.
    empty_turns: u32,
    state: Ingress,
}

/// Turns without a frame after which a queue is no longer asked in each round while others have
/// work. Asking costs some hundred instructions, an event of the peer and its handling as much as
/// that many turns.
const EMPTY_TURNS_MAX: u32 = 64;

/// What a source is made of.
pub(crate) struct SourceParts<Q> {
    pub(crate) id: SlotId,
    pub(crate) port_id: PortId,
    pub(crate) queue_index: u16,
    pub(crate) queue_count: u16,
    pub(crate) queue: Q,
    pub(crate) forwarding: Forwarding,
    pub(crate) policy: Arc<PortPolicy>,
    pub(crate) flood: Arc<FloodBudget>,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) limits: Limits,
    pub(crate) stations: Stations,
    pub(crate) arriving: Option<Arriving>,
    pub(crate) now: Instant,
}

/// For how long a source lets itself be held.
enum Patience {
    /// As long as it takes: what it holds up is for the queue that holds it, and no other.
    Endless,
    /// As long as its allowance lasts.
    Limited,
    /// Not at all.
    None,
}

/// What all sources of an engine use in turn.
pub(crate) struct Intake<'a> {
    pub(crate) shares: &'a mut Shares,
    pub(crate) pool: &'a mut FramePool,
    pub(crate) batch: &'a mut FrameBatch,
    pub(crate) verdicts: &'a mut Verdicts,
    pub(crate) now: Instant,
    /// Switch time.
    pub(crate) ticks: Ticks,
    /// Whether threads are to be woken that sleep because of pressure.
    pub(crate) has_relieved: &'a mut bool,
}

impl<Q: PortQueue> Source<Q> {
    pub(crate) fn new(parts: SourceParts<Q>) -> Source<Q> {
        let patience = match (&parts.forwarding, parts.stations) {
            (_, Stations::Many) => Patience::None,
            (Forwarding::Patch(_), Stations::One(_) | Stations::Bridge(_)) => Patience::Endless,
            (Forwarding::Switch(_), Stations::One(_) | Stations::Bridge(_)) => Patience::Limited,
        };
        Source {
            traits: parts.queue.describe(),
            id: parts.id,
            port_id: parts.port_id,
            queue_index: parts.queue_index,
            queue_count: parts.queue_count,
            queue: parts.queue,
            forwarding: parts.forwarding,
            counters: parts.counters,
            capture: None,
            kept: VecDeque::new(),
            is_front_mirrored: false,
            share: 0,
            stations: parts.stations,
            policy: parts.policy,
            flood: parts.flood,
            patience,
            allowance: Allowance::new(parts.now),
            held_since: None,
            gauge: parts.gauge,
            limits: parts.limits,
            arriving: parts.arriving,
            empty_turns: 0,
            state: Ingress::Polling,
        }
    }

    /// Patched queues are a guest's and those of its device.
    pub(crate) fn handling(&self) -> Handling {
        match self.forwarding {
            Forwarding::Patch(_) => Handling::Device,
            Forwarding::Switch(_) => Handling::Memory,
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
            self.pay_for_hold(now);
            self.on(event);
        }
    }

    /// A frame of it is for this queue: whether the source waits for it.
    pub(crate) fn hold(&mut self, gauge: &Arc<Gauge>, now: Instant) -> Held {
        if !gauge.has_pressure() {
            return Held::NotNeeded;
        }
        match self.patience {
            Patience::Endless => self.wait_for(gauge, None),
            Patience::Limited => return self.hold_within_allowance(gauge, now),
            Patience::None => return Held::No,
        }
        Held::Yes
    }

    /// A frame of it is for the guest of a neighbouring device on a bridge of the host's, which is
    /// not its only receiver, whatever its own device is.
    pub(crate) fn hold_for_neighbor(&mut self, gauge: &Arc<Gauge>, now: Instant) -> Held {
        match gauge.has_pressure() {
            true => self.hold_within_allowance(gauge, now),
            false => Held::NotNeeded,
        }
    }

    fn hold_within_allowance(&mut self, gauge: &Arc<Gauge>, now: Instant) -> Held {
        let Some(most) = self.allowance.begin(now) else { return Held::No };
        self.held_since = Some((gauge.sent(), now));
        self.wait_for(gauge, Some(now + most));
        Held::Yes
    }

    fn wait_for(&mut self, gauge: &Arc<Gauge>, until: Option<Instant>) {
        self.on(IngressEvent::Pressure { gauge: Arc::clone(gauge), until });
        if let Some(arriving) = &mut self.arriving {
            arriving.fall_behind();
        }
    }

    /// A frame of it met a full inbox. The source waits at no charge: an engine empties its inbox
    /// whatever guests do.
    pub(crate) fn hold_for_engine(&mut self, inbox: &Arc<Gauge>) {
        self.held_since = None;
        self.on(IngressEvent::Pressure { gauge: Arc::clone(inbox), until: None });
    }

    /// Charges a hold that ends to the allowance.
    fn pay_for_hold(&mut self, now: Instant) {
        let (Ingress::Held { gauge, .. }, Some((sent, since))) = (&self.state, self.held_since)
        else {
            return;
        };
        let held = now.saturating_duration_since(since);
        self.allowance.charge(held, gauge.sent().wrapping_sub(sent));
        self.held_since = None;
    }

    /// Limits what enters from now on.
    pub(crate) fn limit(&mut self, limits: Limits) {
        self.limits = limits;
        self.restart();
    }

    /// Evaluates again what it waits for, if it waits.
    pub(crate) fn restart(&mut self) {
        if !matches!(self.state, Ingress::Armed) {
            self.on(IngressEvent::Restart);
        }
    }

    /// Takes a batch in, as far as it may, and adds it to what is kept. Frames that are kept go
    /// first: while there are any, none are taken in.
    ///
    /// # Errors
    /// [`PortDown`] when the queue can no longer be used; what came before is among the kept.
    pub(crate) fn take_in(&mut self, intake: &mut Intake<'_>) -> Result<Taken, PortDown> {
        match self.state {
            Ingress::Starved => self.on(IngressEvent::Due),
            _ => self.refresh(intake.now),
        }
        if !self.kept.is_empty() {
            intake.shares.count_busy(self.share);
            if matches!(self.state, Ingress::Polling) {
                return Ok(match self.charge_kept(intake.shares) {
                    true => Taken::NotAsked,
                    false => Taken::NoShare,
                });
            }
        }
        let Some(budget) = self.budget(intake) else { return Ok(Taken::NoShare) };
        let taken = self.queue.ingress(budget, intake.pool, intake.batch);
        if intake.pool.take_shortage() {
            self.on(IngressEvent::NoBuffer);
        }
        self.report_arrivals(budget, intake);
        self.empty_turns = self.empty_turns.saturating_add(1);
        if !intake.batch.is_empty() {
            self.empty_turns = 0;
            self.charge(intake);
            self.classify(intake);
            self.kept.extend(intake.batch.drain(..).zip(intake.verdicts.drain(..)));
        }
        let asked = if budget.is_nothing() { Taken::NotAsked } else { Taken::Asked };
        taken.map(|()| asked)
    }

    /// Charges the frames that waited and may go on now. False if the port has had its share of
    /// this round.
    fn charge_kept(&self, shares: &mut Shares) -> bool {
        let has_share = shares.turn(self.share).is_some();
        if has_share {
            shares.charge_frames(self.share, self.kept.iter().map(|(frame, _)| frame));
        }
        has_share
    }

    /// Gives back what was charged for frames that have to wait. They are charged when they go on:
    /// else a port would have a batch of each of its queues there at once, where others have one.
    pub(crate) fn refund_kept(&self, shares: &mut Shares) {
        shares.refund_frames(self.share, self.kept.iter().map(|(frame, _)| frame));
    }

    /// What may be taken in now; `None` if its port has had its share of this round.
    fn budget(&mut self, intake: &mut Intake<'_>) -> Option<Budget> {
        if let (Ingress::Polling, Some(due)) = (&self.state, self.credit_due(intake.now)) {
            self.on(IngressEvent::OutOfCredit { until: due });
        }
        if !matches!(self.state, Ingress::Polling) {
            return Some(Budget::NOTHING);
        }
        let share = intake.shares.turn(self.share)?;
        let credit = self.limits.ingress.as_ref();
        let credit = credit.map_or(u64::MAX, |credit| credit.available(intake.now));
        let bytes = share.bytes.min(usize::try_from(credit).unwrap_or(usize::MAX));
        Some(Budget { bytes, ..share })
    }

    /// When there will be credit, if there is not now.
    fn credit_due(&self, now: Instant) -> Option<Instant> {
        let due = self.limits.due(now)?;
        // A time that the clock cannot represent is never reached; the limit may change before.
        Some(now.checked_add(due).unwrap_or(now + CREDIT_WAIT_MAX))
    }

    fn charge(&self, intake: &mut Intake<'_>) {
        let batch = &*intake.batch;
        self.gauge.add_load(u64::try_from(batch.len()).unwrap_or(u64::MAX));
        intake.shares.charge_frames(self.share, batch.iter());
        self.limits.spend(batch);
    }

    /// Reports a batch, of so much at most, to those who send to it by a bridge.
    fn report_arrivals(&mut self, budget: Budget, intake: &mut Intake<'_>) {
        let Some(arriving) = self.arriving.as_mut().filter(|_| !budget.is_nothing()) else {
            return;
        };
        let frames = intake.batch.len();
        let bytes: usize = intake.batch.iter().map(Frame::len).sum();
        let is_starved = matches!(self.state, Ingress::Starved);
        let is_all = !is_starved && frames < budget.frames && bytes < budget.bytes;
        *intake.has_relieved |=
            arriving.took(Backlog { frames, bytes }, cost_of(frames, bytes), is_all);
    }

    /// Finds where frames that came in go: one verdict for each.
    fn classify(&mut self, intake: &mut Intake<'_>) {
        let Intake { batch, verdicts, now, ticks, .. } = intake;
        // Of frames of a patched port that may send anything, only the heads are inspected.
        let is_unseen = matches!(self.forwarding, Forwarding::Patch(_)) && self.policy.is_open();
        if !is_unseen || self.capture.is_some() {
            batch.iter_mut().for_each(Frame::gather);
        }
        show(&mut self.capture, Passage::Ingress, self.queue_index, *now, batch.iter());
        match &self.forwarding {
            Forwarding::Patch(to) => {
                verdicts.clear();
                let policy = &*self.policy;
                verdicts.extend(batch.iter().map(|frame| {
                    let refused = policy.refuse_patched(frame.bytes());
                    refused.map_or(Verdict::Unicast(*to), Verdict::Drop)
                }));
            }
            Forwarding::Switch(switch) => {
                let (policy, flood) = (&self.policy, &self.flood);
                switch.classify(self.port_id, policy, batch, *ticks, flood, verdicts);
            }
        }
        for (frame, verdict) in batch.iter().zip(verdicts.iter_mut()) {
            if let Some(reason) = self.limits.refuse(frame) {
                *verdict = Verdict::Drop(reason);
            }
        }
    }

    /// After a turn in which it was asked for frames. A queue whose descriptor reports every frame
    /// needs no second call to find that it is empty. Any other is to send an event once it has had
    /// nothing for long, if it is not all that the engine has to do: `others` is what the last
    /// round found. Whether it has more.
    ///
    /// One that was not asked must not get here: it may have had its event already, for frames that
    /// still wait, and would sleep on them.
    pub(crate) fn rest(&mut self, others: Others) -> Result<Pending, PortDown> {
        let may_rest = match self.traits.probe {
            Probe::SystemCall => true,
            Probe::Memory => others == Others::Work && self.empty_turns >= EMPTY_TURNS_MAX,
        };
        if !may_rest || !self.kept.is_empty() || !matches!(self.state, Ingress::Polling) {
            return Ok(Pending::Nothing);
        }
        self.empty_turns = 0;
        self.arm()
    }

    /// Asks for an event, if it could take something in.
    pub(crate) fn arm_if_open(&mut self, now: Instant) -> Result<Pending, PortDown> {
        self.refresh(now);
        match self.state {
            Ingress::Held { .. } | Ingress::Unpaid { .. } => Ok(Pending::Nothing),
            _ if !self.kept.is_empty() => Ok(Pending::Work),
            _ => self.arm(),
        }
    }

    /// Asks for an event; without work, the queue is armed then.
    pub(crate) fn arm(&mut self) -> Result<Pending, PortDown> {
        let pending = self.queue.arm()?;
        if pending == Pending::Nothing {
            self.on(IngressEvent::Idle);
        }
        Ok(pending)
    }

    /// Shows the frames that it has taken in and that could not go on.
    pub(crate) fn visit_kept(&self, visit: &mut dyn FnMut(Whereabouts, &Frame)) {
        let from = self.port_id;
        self.kept.iter().for_each(|(frame, _)| visit(Whereabouts::Kept { from }, frame));
    }

    /// Whether nothing may enter, whatever waits.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, Ingress::Held { .. } | Ingress::Unpaid { .. })
    }

    pub(crate) fn count_drop(&self, reason: DropReason) {
        self.counters.dropped.count(reason, 1);
    }
}

/// Whether an engine found work in its last round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// It did.
    Work,
    /// It did not, and polls or is about to sleep.
    Idle,
}

/// Whether a source waits for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// The queue has room.
    NotNeeded,
    /// It does, and keeps the frame.
    Yes,
    /// It does not: the frame is for a queue that may drop it.
    No,
}

/// Whether a queue was asked for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was, and may have had some.
    Asked,
    /// Frames that are kept go first, or it has to wait.
    NotAsked,
    /// Its port has had its share of this round.
    NoShare,
}

/// How long a source waits for credit that no clock reaches, before it computes the time again.
const CREDIT_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

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
