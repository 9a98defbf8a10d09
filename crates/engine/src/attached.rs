//! A queue on its way to an engine, or between two.

use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{Budget, Frame, FrameBatch, FramePool, PortQueue, QueueCounters};
use ringway_switch::{FloodBudget, PortId, PortPolicy};

use crate::bridge::{BridgeBackpressure, BridgeQueue};
use crate::directory::Forwarding;
use crate::gauge::Gauge;
use crate::inspect::Whereabouts;
use crate::limits::Limits;
use crate::outbox::Outbox;
use crate::share::Stations;
use crate::slot::SlotId;
use crate::source::{Source, SourceParts};

/// A queue with everything that an engine keeps for it.
pub struct Attached<Q> {
    pub(crate) source: Source<Q>,
    pub(crate) outbox: Outbox,
}

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

impl<Q: PortQueue> Attached<Q> {
    /// A queue without waiting frames.
    pub fn new(parts: AttachedParts<Q>, now: Instant) -> Attached<Q> {
        let traits = parts.queue.describe();
        let mut outbox = Outbox::new(
            parts.id,
            parts.queue_index,
            traits,
            Arc::clone(&parts.counters),
            Arc::clone(&parts.gauge),
        );
        outbox.limit(&parts.limits);
        let source = Source::new(SourceParts {
            id: parts.id,
            port_id: parts.port_id,
            queue_index: parts.queue_index,
            queue_count: parts.queue_count,
            queue: parts.queue,
            forwarding: parts.forwarding,
            policy: parts.policy,
            flood: parts.flood,
            counters: parts.counters,
            gauge: parts.gauge,
            limits: parts.limits,
            stations: parts.stations,
            bridge_queue: parts.arrivals.map(|it| BridgeQueue::new(it, parts.queue_index)),
            now,
        });
        Attached { source, outbox }
    }

    /// Its place in its engine.
    pub fn id(&self) -> SlotId {
        self.source.id
    }

    /// Its port.
    pub fn port_id(&self) -> PortId {
        self.source.port_id
    }

    /// The queue.
    pub fn queue(&self) -> &Q {
        &self.source.queue
    }

    /// Calls `visit` with every frame that waits in the queue.
    pub fn visit_frames(&self, visit: &mut dyn FnMut(Whereabouts, &Frame)) {
        self.source.visit_kept(visit);
        let (to, slot) = (self.source.port_id, self.outbox.id);
        self.outbox.frames().for_each(|frame| visit(Whereabouts::Waits { to, slot }, frame));
    }

    /// Prepares the queue for another engine, where its place is `id`.
    #[must_use]
    pub fn moved_to(mut self, id: SlotId, now: Instant) -> Attached<Q> {
        self.source.id = id;
        self.source.long_to = None;
        self.source.on(crate::state::IngressEvent::Restart);
        self.outbox.moved_to(id, now);
        self
    }

    /// Returns the queue itself. Frames that still waited are recycled, captures end, and the
    /// caller wakes the engines whose sources the queue held.
    pub fn into_queue(mut self, pool: &mut FramePool) -> Q {
        self.outbox.close(pool);
        self.source.kept.drain(..).for_each(|(frame, _)| pool.recycle(frame));
        // Responses that waited for frames are sent, so that the next backend does not serve their
        // requests again. If this fails, the peer is gone.
        let _ = self.source.queue.ingress(Budget::NOTHING, pool, &mut FrameBatch::new());
        self.source.queue
    }
}
