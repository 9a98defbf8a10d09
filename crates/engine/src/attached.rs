//! A queue on its way to an engine, or between two.

use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{Frame, FramePool, PortQueue};
use ringway_switch::PortId;

use crate::inspect::Whereabouts;
use crate::outbox::Outbox;
use crate::slot::SlotId;
pub use crate::source::AttachedParts;
use crate::source::Source;

/// A queue with everything that an engine keeps for it.
pub struct Attached<Q> {
    pub(crate) source: Source<Q>,
    pub(crate) outbox: Outbox,
}

impl<Q: PortQueue> Attached<Q> {
    /// A queue without waiting frames.
    pub fn new(parts: AttachedParts<Q>, now: Instant) -> Attached<Q> {
        let mut outbox = Outbox::new(
            parts.id,
            parts.queue_index,
            parts.queue.describe(),
            Arc::clone(&parts.counters),
            Arc::clone(&parts.gauge),
        );
        outbox.limit(&parts.limits);
        Attached { source: Source::new(parts, now), outbox }
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
        self.source.ahead.to = None;
        self.source.on(crate::state::IngressEvent::Restart);
        self.outbox.moved_to(id, now);
        self
    }

    /// Returns the queue itself. Frames that still waited are recycled, captures end, and the
    /// caller wakes the engines whose sources the queue held.
    pub fn into_queue(mut self, pool: &mut FramePool) -> Q {
        self.outbox.close(pool);
        self.source.kept.frames.drain(..).for_each(|frame| pool.recycle(frame));
        // Responses that waited for frames are sent, so that the next backend does not serve their
        // requests again. If this fails, the peer is gone.
        let _ = self.source.queue.settle(pool);
        self.source.queue
    }
}
