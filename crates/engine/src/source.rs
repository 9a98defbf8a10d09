//! A queue's receiving side: from the queue to a verdict for each frame.

use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, Pending, PortQueue, Probe, QueueCounters,
    QueueDown, QueueTraits, WaitReason,
};
use ringway_switch::{FloodBudget, PortId, PortPolicy, Ticks, Verdict};

use crate::allowance::Allowance;
use crate::announcement::Announcing;
use crate::bridge::{BridgeBackpressure, BridgeQueue};
use crate::capture::{Capture, Passage};
use crate::directory::Forwarding;
use crate::gauge::{Backlog, Gauge, STALL};
use crate::inspect::Whereabouts;
use crate::kept::{Ahead, Kept};
use crate::limits::Limits;
use crate::outbox::Room;
use crate::share::{Handling, Shares, Stations, cost_of};
use crate::slot::SlotId;
use crate::state::{Ingress, IngressEvent};

/// A queue, and the engine's state for taking frames in from it.
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
    pub(crate) kept: Kept,
    pub(crate) ahead: Ahead,
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
    /// For a hold that is charged: what the holding queue had sent when the hold began, and when
    /// that was.
    held_since: Option<(u64, Instant)>,
    /// The gauge that counts the load.
    gauge: Arc<Gauge>,
    /// Limits of its port.
    limits: Limits,
    pub(crate) announcing: Announcing,
    /// Where it reports to the ports that send to it through a bridge of the host, if there are
    /// any.
    bridge_queue: Option<BridgeQueue>,
    /// Turns since it last had a frame.
    empty_turns: u32,
    /// Whether it took in frames in this round that its peer waits for until they have left or are
    /// completed.
    pub(crate) has_lent: bool,
    state: Ingress,
}

/// Turns without a frame after which a queue is no longer polled in each round while others have
/// work. A poll costs some hundred instructions; an event of the peer and its handling cost as much
/// as this many polls.
const EMPTY_TURNS_MAX: u32 = 64; // not a limit: a pause of our own

/// Everything that a queue is attached with.
pub struct AttachedParts<Q> {
    /// Its place in the engine.
    pub id: SlotId,
    /// Its port.
    pub port_id: PortId,
    /// Its number within the port.
    pub queue_index: u16,
    /// How many queues the port has, which does not change while it is attached.
    pub queue_count: u16,
    /// The queue.
    pub queue: Q,
    /// Where its frames go.
    pub forwarding: Forwarding,
    /// What may enter by its port.
    pub policy: Arc<PortPolicy>,
    /// The flooding that its port may cause.
    pub flood: Arc<FloodBudget>,
    /// Its counters.
    pub counters: Arc<QueueCounters>,
    /// Its back-pressure, which the directory shows to senders.
    pub gauge: Arc<Gauge>,
    /// Limits of its port.
    pub limits: Limits,
    /// How many stations are behind its port.
    pub stations: Stations,
    /// Where it reports to the ports that send to it through a bridge of the host, if there are
    /// any.
    pub arrivals: Option<Arc<BridgeBackpressure>>,
}

/// How long a source may be held.
enum Patience {
    /// As long as necessary: all its frames are for the queue that holds it.
    Endless,
    /// As long as its allowance lasts.
    Limited,
    /// Not at all.
    None,
}

/// What the sources of an engine share, one at a time.
pub(crate) struct EngineParts<'a> {
    pub(crate) shares: &'a mut Shares,
    pub(crate) pool: &'a mut FramePool,
    pub(crate) batch: &'a mut FrameBatch,
    /// What the source may take in, if that depends on the room where its frames go.
    pub(crate) room: Option<Room>,
    pub(crate) now: Instant,
    /// Switch time.
    pub(crate) ticks: Ticks,
    /// Whether threads that sleep because of pressure must be woken.
    pub(crate) must_wake_senders: &'a mut bool,
}

impl<Q: PortQueue> Source<Q> {
    pub(crate) fn new(parts: AttachedParts<Q>, now: Instant) -> Source<Q> {
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
            kept: Kept::default(),
            ahead: Ahead::default(),
            share: 0,
            stations: parts.stations,
            policy: parts.policy,
            flood: parts.flood,
            patience,
            allowance: Allowance::new(now),
            held_since: None,
            gauge: parts.gauge,
            limits: parts.limits,
            announcing: Announcing::default(),
            bridge_queue: parts.arrivals.map(|it| BridgeQueue::new(it, parts.queue_index)),
            empty_turns: 0,
            has_lent: false,
            state: Ingress::Polling,
        }
    }

    /// Patched queues are those of a guest and of its device.
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
        if matches!(self.state, Ingress::Polling | Ingress::Armed) {
            self.counters.tx_wait.clear();
        }
    }

    /// Shows people what it waits for.
    fn show_wait(&self, now: Instant) {
        let reason = match &self.state {
            Ingress::Polling | Ingress::Armed => return,
            Ingress::Held { gauge, .. } => gauge.wait_reason(),
            Ingress::Unpaid { .. } => self.limits.awaited(now),
            Ingress::Starved => WaitReason::NoMemory,
        };
        self.counters.tx_wait.set(reason, now);
    }

    /// Ends a wait whose cause is gone.
    pub(crate) fn refresh(&mut self, now: Instant) {
        if let Some(event) = self.state.due(now) {
            self.ahead.is_due &= !matches!(event, IngressEvent::Due);
            self.charge_hold(now);
            self.on(event);
        }
    }

    /// Counts a frame for a queue of another engine.
    pub(crate) fn count_hop(&self, engine: usize) {
        self.gauge.count_hop(engine);
    }

    /// The next frame is for the queue of this gauge: whether the source waits for that queue.
    pub(crate) fn hold(&mut self, gauge: &Arc<Gauge>, now: Instant) -> Held {
        if !gauge.has_pressure() {
            return Held::NotNeeded;
        }
        match self.patience {
            Patience::Endless => self.wait_for(gauge, None, now),
            Patience::Limited => return self.hold_within_allowance(gauge, now),
            Patience::None => return Held::No,
        }
        Held::Yes
    }

    /// The next frame is for the guest of a neighbouring device on a bridge of the host. The source
    /// has other receivers, too, whatever its own device is.
    pub(crate) fn hold_for_neighbor(&mut self, gauge: &Arc<Gauge>, now: Instant) -> Held {
        match gauge.has_pressure() {
            true => self.hold_within_allowance(gauge, now),
            false => Held::NotNeeded,
        }
    }

    fn hold_within_allowance(&mut self, gauge: &Arc<Gauge>, now: Instant) -> Held {
        let Some(most) = self.allowance.begin(now) else { return Held::No };
        self.held_since = Some((gauge.sent(), now));
        self.wait_for(gauge, Some(now + most), now);
        Held::Yes
    }

    fn wait_for(&mut self, gauge: &Arc<Gauge>, until: Option<Instant>, now: Instant) {
        self.on(IngressEvent::Pressure { gauge: Arc::clone(gauge), until });
        self.show_wait(now);
        if let Some(bridge_queue) = &mut self.bridge_queue {
            bridge_queue.set_behind();
        }
    }

    /// The queue of this gauge, which gets long frames from the source, has no room for another. If
    /// that lasts, the source goes on, and the queue stalls.
    pub(crate) fn hold_for_room(&mut self, gauge: &Arc<Gauge>, now: Instant) {
        match self.patience {
            Patience::Endless => {
                self.held_since = None;
                let (gauge, until) = (Arc::clone(gauge), Some(now + STALL));
                self.on(IngressEvent::Pressure { gauge, until });
                self.show_wait(now);
            }
            Patience::Limited => {
                self.hold_within_allowance(gauge, now);
            }
            Patience::None => {}
        }
    }

    /// Whether it waits for nothing, and has no frames that go first.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, Ingress::Polling) && self.kept.is_empty()
    }

    /// The next frame met a full inbox. The source waits at no charge: an engine empties its inbox
    /// whatever guests do.
    pub(crate) fn hold_for_engine(&mut self, inbox: &Arc<Gauge>, now: Instant) {
        self.held_since = None;
        self.on(IngressEvent::Pressure { gauge: Arc::clone(inbox), until: None });
        self.show_wait(now);
    }

    /// Charges a finished hold to the allowance.
    fn charge_hold(&mut self, now: Instant) {
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

    /// Evaluates again what the source waits for, if it waits.
    pub(crate) fn restart(&mut self) {
        if !matches!(self.state, Ingress::Armed) {
            self.on(IngressEvent::Restart);
        }
    }

    /// Fills the batch with frames to be forwarded now, and finds their verdicts. Kept frames go
    /// first: while there are any, no others are taken in.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used; frames before the failure are in the
    /// batch.
    pub(crate) fn ingest(&mut self, context: &mut EngineParts<'_>) -> Result<Ingested, QueueDown> {
        match self.state {
            Ingress::Starved => self.on(IngressEvent::Due),
            _ => self.refresh(context.now),
        }
        if !self.kept.is_empty() {
            context.shares.count_busy(self.share);
            if matches!(self.state, Ingress::Polling) {
                if !self.charge_kept(context.shares) {
                    return Ok(Ingested::ShareUsed);
                }
                context.batch.extend(self.kept.frames.drain(..));
                return Ok(Ingested::Skipped);
            }
        }
        let budget = match self.budget(context) {
            Allowed::Frames(budget) => budget,
            Allowed::ShareUsed => return Ok(Ingested::ShareUsed),
            Allowed::Nothing => {
                return self.queue.settle(context.pool).map(|()| Ingested::Skipped);
            }
        };
        let ingested = match self.announcing.fill(context.pool, context.batch, &mut self.policy) {
            true => Ok(Ingested::Skipped),
            false => {
                let taken = self.queue.ingress(budget, context.pool, context.batch);
                taken.map(|()| Ingested::Polled)
            }
        };
        if context.pool.take_shortage() {
            self.on(IngressEvent::NoBuffer);
            self.show_wait(context.now);
        }
        if matches!(ingested, Ok(Ingested::Polled)) {
            self.report_arrivals(context);
        }
        self.empty_turns = self.empty_turns.saturating_add(1);
        if !context.batch.is_empty() {
            self.empty_turns = 0;
            self.ahead.is_due = false;
            self.charge(context);
            self.classify(context);
            self.announcing.watch(context.batch, &mut self.policy);
        }
        ingested
    }

    /// Charges the kept frames that may be forwarded now. False if the port has used its share of
    /// this round.
    fn charge_kept(&self, shares: &mut Shares) -> bool {
        let has_share = shares.turn(self.share).is_some();
        if has_share {
            shares.charge_frames(self.share, &self.kept.frames);
        }
        has_share
    }

    /// Refunds the charge for frames that must wait. They are charged again when they are
    /// forwarded: otherwise a port could deliver a batch from each of its queues at once, where
    /// other ports deliver one.
    pub(crate) fn refund_kept(&self, shares: &mut Shares) {
        shares.refund_frames(self.share, &self.kept.frames);
    }

    /// What may be taken in now.
    fn budget(&mut self, context: &mut EngineParts<'_>) -> Allowed {
        if let (Ingress::Polling, Some(due)) = (&self.state, self.credit_due(context.now)) {
            self.on(IngressEvent::OutOfCredit { until: due });
            self.show_wait(context.now);
        }
        if !matches!(self.state, Ingress::Polling) {
            return Allowed::Nothing;
        }
        let Some(share) = context.shares.turn(self.share) else { return Allowed::ShareUsed };
        let credit = self.limits.ingress.as_ref();
        let credit = credit.map_or(u64::MAX, |credit| credit.available(context.now));
        let bytes = share.bytes.min(usize::try_from(credit).unwrap_or(usize::MAX));
        let bytes = bytes.min(context.room.map_or(usize::MAX, Room::bytes));
        Allowed::Frames(Budget { bytes, ..share })
    }

    /// When there will be credit, if there is not now.
    fn credit_due(&self, now: Instant) -> Option<Instant> {
        let due = self.limits.due(now)?;
        // The clock cannot represent this time, so it is never reached; the limit may change
        // earlier.
        Some(now.checked_add(due).unwrap_or(now + CREDIT_WAIT_MAX))
    }

    fn charge(&self, context: &mut EngineParts<'_>) {
        let batch = &*context.batch;
        self.gauge.add_taken(u64::try_from(batch.len()).unwrap_or(u64::MAX));
        context.shares.charge_frames(self.share, batch.iter());
        self.limits.spend(batch);
    }

    /// Reports a batch to the ports that send to it through a bridge.
    fn report_arrivals(&mut self, context: &mut EngineParts<'_>) {
        let Some(bridge_queue) = &mut self.bridge_queue else { return };
        let frames = context.batch.len();
        let bytes: usize = context.batch.iter().map(Frame::len).sum();
        let is_starved = matches!(self.state, Ingress::Starved);
        // Of a device, which has nothing to arm. What it merges is less than it has read.
        let is_all = !is_starved && matches!(self.queue.arm(), Ok(Pending::Nothing));
        *context.must_wake_senders |=
            bridge_queue.report_batch(Backlog { frames, bytes }, cost_of(frames, bytes), is_all);
    }

    /// Finds the destination of each incoming frame: its verdict.
    fn classify(&mut self, context: &mut EngineParts<'_>) {
        self.complete_inspected(context);
        let EngineParts { batch, now, ticks, .. } = context;
        show(&mut self.capture, Passage::Ingress, self.queue_index, *now, batch.iter());
        //= netif.h:carrier-down
        if let Some(reason) = self.limits.shut {
            let dropped = Verdict::Drop(reason);
            // The switch learns nothing from them.
            return batch.iter_mut().for_each(|frame| frame.verdict = dropped);
        }
        match &self.forwarding {
            Forwarding::Patch(to) => {
                for frame in batch.iter_mut() {
                    let refused = self.policy.refuse_patched(frame.bytes());
                    frame.verdict = refused.map_or(Verdict::Unicast(*to), Verdict::Drop);
                }
            }
            Forwarding::Switch(switch) => {
                let (policy, flood) = (&self.policy, &self.flood);
                switch.classify(self.port_id, policy, batch, *ticks, flood);
            }
        }
        for frame in batch.iter_mut() {
            if let Some(reason) = self.limits.refuse(frame) {
                frame.verdict = Verdict::Drop(reason);
            }
        }
    }

    /// Completes the frames that are inspected as a whole, and drops those that cannot be read.
    fn complete_inspected(&mut self, context: &mut EngineParts<'_>) {
        let batch = &mut *context.batch;
        let mut index = 0;
        while let Some(frame) = batch.get_mut(index) {
            self.has_lent |= frame.is_lent();
            if !frame.is_complete() && !self.may_keep_end(frame) {
                if let Err(reason) = context.pool.complete(frame) {
                    self.count_drop(reason);
                    context.pool.recycle(batch.remove(index));
                    continue;
                }
            }
            index += 1;
        }
    }

    /// Whether the bytes in a frame's buffer are all that is inspected here.
    fn may_keep_end(&self, frame: &Frame) -> bool {
        let has_other_readers = match &self.forwarding {
            // From a port that may send anything.
            Forwarding::Patch(_) if self.policy.is_open() && !frame.is_lent() => {
                return self.capture.is_none();
            }
            Forwarding::Patch(_) => false,
            Forwarding::Switch(switch) => switch.mirrors().is_active(),
        };
        self.capture.is_none() && !has_other_readers && self.policy.accepts_head_of(frame)
    }

    /// Completes the kept frames whose ends are lent, so that the queue can respond to its guest,
    /// and drops those that cannot be read.
    pub(crate) fn complete_kept(&mut self, pool: &mut FramePool) {
        let dropped = &self.counters.dropped;
        self.kept.complete(pool, |reason| dropped.count(reason, 1));
    }

    /// Called after a turn in which the queue was polled; returns whether it has more. A queue
    /// whose descriptor reports every frame needs no second poll to find that it is empty. Any
    /// other queue is armed once it has been empty for long, unless the engine has no other work:
    /// `last_round` is what the last round found.
    ///
    /// Do not call this for a queue that was not polled: its event for frames that still wait may
    /// have come already, and the queue would sleep with these frames.
    pub(crate) fn finish_turn(&mut self, last_round: LastRound) -> Result<Pending, QueueDown> {
        let may_rest = match self.traits.probe {
            Probe::SystemCall => true,
            Probe::Memory => last_round == LastRound::Work && self.empty_turns >= EMPTY_TURNS_MAX,
        };
        if !may_rest || !self.kept.is_empty() || !matches!(self.state, Ingress::Polling) {
            return Ok(Pending::Nothing);
        }
        self.empty_turns = 0;
        self.arm()
    }

    /// Asks for an event, if it could take frames in.
    pub(crate) fn arm_if_open(&mut self, now: Instant) -> Result<Pending, QueueDown> {
        self.refresh(now);
        match self.state {
            Ingress::Held { .. } | Ingress::Unpaid { .. } => Ok(Pending::Nothing),
            _ if !self.kept.is_empty() => Ok(Pending::Work),
            _ => self.arm(),
        }
    }

    /// Asks for an event; if there is no work, the queue is then armed.
    pub(crate) fn arm(&mut self) -> Result<Pending, QueueDown> {
        let pending = self.queue.arm()?;
        if pending == Pending::Nothing {
            self.on(IngressEvent::Idle);
        }
        Ok(pending)
    }

    /// Calls `visit` with the frames that were taken in and could not be forwarded yet.
    pub(crate) fn visit_kept(&self, visit: &mut dyn FnMut(Whereabouts, &Frame)) {
        let from = self.port_id;
        self.kept.frames.iter().for_each(|frame| visit(Whereabouts::Kept { from }, frame));
    }

    /// Whether no frame may enter now.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, Ingress::Held { .. } | Ingress::Unpaid { .. })
    }

    pub(crate) fn count_drop(&self, reason: DropReason) {
        self.counters.dropped.count(reason, 1);
    }
}

/// Whether an engine found work in its last round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastRound {
    /// It did.
    Work,
    /// It found none, and polls or is about to sleep.
    Idle,
}

/// Whether a source waits for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// The queue has room.
    NotNeeded,
    /// It waits, and keeps the frame.
    Yes,
    /// It does not wait: the queue may drop the frame.
    No,
}

/// What a source may take in now.
enum Allowed {
    Frames(Budget),
    /// It has to wait.
    Nothing,
    /// Its port has used its share of this round.
    ShareUsed,
}

/// Whether a queue was polled for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ingested {
    /// It was polled, and may have had some.
    Polled,
    /// Kept frames go first, or the source must wait.
    Skipped,
    /// Its port has used its share of this round.
    ShareUsed,
}

/// How long a source waits before it computes the time again, if the clock cannot represent the
/// time at which there is credit.
// not a limit: a pause of our own
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
