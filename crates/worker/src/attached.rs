//! One queue in a worker's care.

use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{
    DropReason, Frame, FramePool, FrameQueue, OffloadCaps, Port, PortDown, QueueCounters, segment,
};
use ringway_switch::{FloodBudget, PortId};

use crate::capture::{Capture, Passage};
use crate::directory::{Forwarding, SlotId};
use crate::gauge::{Backlog, Gauge, HIGH, LIMIT, LOW, STALL};

/// A port's queue and all that the worker keeps for it.
pub(crate) struct Attached<P> {
    pub(crate) id: SlotId,
    pub(crate) port_id: PortId,
    pub(crate) queue_index: u16,
    pub(crate) port: P,
    pub(crate) forwarding: Forwarding,
    pub(crate) flood: FloodBudget,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) gauge: Arc<Gauge>,
    /// A queue under pressure that our frames go to: no ingress until it is relieved.
    pub(crate) held_by: Option<Arc<Gauge>>,
    /// Someone who watches.
    pub(crate) capture: Option<Arc<Capture>>,
    /// In the list of queues that are polled.
    pub(crate) is_active: bool,
    /// In the list of queues whose backlog is to be sent.
    pub(crate) has_backlog: bool,
    caps: OffloadCaps,
    backlog: FrameQueue,
    backlog_bytes: usize,
    /// When the backlog last moved.
    progress: Instant,
    /// It has not moved for too long.
    is_stalled: bool,
}

impl<P: Port> Attached<P> {
    #[expect(clippy::too_many_arguments, reason = "the parts of an attachment, named at the call")]
    pub(crate) fn new(
        id: SlotId,
        port_id: PortId,
        queue_index: u16,
        port: P,
        forwarding: Forwarding,
        flood: FloodBudget,
        counters: Arc<QueueCounters>,
        gauge: Arc<Gauge>,
        now: Instant,
    ) -> Attached<P> {
        let caps = port.offload_caps();
        Attached {
            id,
            port_id,
            queue_index,
            port,
            forwarding,
            flood,
            counters,
            gauge,
            held_by: None,
            capture: None,
            is_active: false,
            has_backlog: false,
            caps,
            backlog: FrameQueue::new(),
            backlog_bytes: 0,
            progress: now,
            is_stalled: false,
        }
    }

    /// Whether ingress has to wait for a queue that our frames go to.
    pub(crate) fn is_held(&mut self) -> bool {
        if self.held_by.as_ref().is_some_and(|gauge| !gauge.has_pressure()) {
            self.held_by = None;
        }
        self.held_by.is_some()
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
        match segment::prepare(frame, self.caps, pool, &mut self.backlog) {
            // Segments repeat headers: a little more than counted, corrected by the next egress.
            Ok(()) => self.backlog_bytes += len,
            Err(reason) => self.counters.dropped.count(reason, 1),
        }
    }

    /// Sends what fits, and tells sources to hold back or go on. True if frames are left.
    pub(crate) fn egress(
        &mut self,
        pool: &mut FramePool,
        now: Instant,
    ) -> Result<Egress, PortDown> {
        let before = self.backlog.len();
        self.port.egress(&mut self.backlog, pool)?;
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
        let had_pressure = self.gauge.has_pressure();
        let relieved = had_pressure && (self.is_stalled || !self.waiting().reaches(LOW));
        if relieved {
            self.gauge.set_pressure(false);
        } else if !had_pressure && !self.is_stalled && self.waiting().reaches(HIGH) {
            self.gauge.set_pressure(true);
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
    pub(crate) fn into_port(mut self, pool: &mut FramePool) -> P {
        self.gauge.set_pressure(false);
        if let Some(capture) = &self.capture {
            capture.close();
        }
        for frame in self.backlog.drain(..) {
            pool.recycle(frame);
        }
        self.port
    }
}

/// What one egress did.
pub(crate) struct Egress {
    pub(crate) moved: usize,
    pub(crate) left: usize,
    /// Pressure was lowered: sources may sleep because of it.
    pub(crate) relieved: bool,
}
