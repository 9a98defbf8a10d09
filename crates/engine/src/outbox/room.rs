//! Room for long frames, which sources look for before they take such frames in.
//!
//! The end of a long frame can stay in the pages of its sender only if the frame leaves in the
//! round in which it comes in; otherwise it is copied. So a source whose last frames were long, and
//! for a queue of the same engine, takes in as many as that queue has room for. If it has none, the
//! source waits as for a full queue, within the same allowance, and the frames stay with the
//! sender.

use std::sync::Arc;

use ringway_datapath::{Frame, MIDDLE_LEN, PortQueue};

use super::{Outbox, OutboxSlot, Outboxes};
use crate::gauge::Gauge;
use crate::share::cost_of;
use crate::slot::SlotId;

/// What an outbox knows of the long frames that it gets.
#[derive(Debug, Default)]
pub(super) struct Long {
    /// Whether the last frame was one.
    is_last: bool,
    /// The length of the last one, and whether its end was in pages.
    len: usize,
    has_body: bool,
    /// Sources of this engine wait for it until another one has room. It shows what the queue has
    /// sent, with what there was room for when it released them.
    gauge: Arc<Gauge>,
}

/// Room for long frames.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Room {
    /// How many.
    pub(crate) frames: usize,
    /// The length of each.
    len: usize,
}

impl Long {
    /// Notes a frame that is added; `None` if it was cut for the queue, so that its pages would be
    /// of no use.
    #[inline]
    pub(super) fn note(&mut self, frame: Option<&Frame>) {
        let long = frame.filter(|frame| frame.len() > MIDDLE_LEN);
        self.is_last = long.is_some();
        if let Some(frame) = long {
            (self.len, self.has_body) = (frame.len(), frame.body().is_some());
        }
    }

    /// Whether sources wait for room.
    pub(super) fn is_awaited(&self) -> bool {
        self.gauge.is_raised()
    }

    /// Releases the sources that wait. All are in this engine, and a round follows.
    fn release(&self) {
        self.gauge.lower();
    }

    /// The same when the outbox leaves the engine.
    pub(super) fn leave(&mut self) {
        self.release();
        self.gauge = Arc::default();
    }

    /// Whether a source holds the gauge.
    fn has_waiter(&self) -> bool {
        Arc::strong_count(&self.gauge) > 1
    }
}

impl Room {
    /// The budget of bytes with which as many frames are taken in, and at least one: the frame that
    /// reaches a budget is the last.
    pub(crate) fn bytes(self) -> usize {
        (self.frames.saturating_sub(1) * self.len).max(self.len / 2).max(1)
    }
}

impl Outbox {
    /// The room for long frames behind those that wait; `None` if the queue cannot know.
    pub(crate) fn room(&mut self, queue: &mut impl PortQueue) -> Option<Room> {
        let frames = queue.room_for(self.long.len)?.saturating_sub(self.waiting().frames);
        Some(Room { frames, len: self.long.len })
    }

    /// Releases the sources that wait for room if there is some, or if the queue is stalled. True
    /// if any may go on.
    pub(super) fn release_if_room(&mut self, queue: &mut impl PortQueue) -> bool {
        if !self.long.is_awaited() {
            return false;
        }
        let room = self.room(queue);
        let is_over = room.is_none_or(|room| room.frames > 0) || self.is_stalled();
        if is_over {
            let Room { frames, len } = room.unwrap_or_default();
            // Only progress counts: a peer can withdraw its pages, and show them again.
            self.long.gauge.raise_sent(self.gauge.sent() + cost_of(frames, frames * len));
        }
        if is_over || !self.long.has_waiter() {
            self.long.release();
        }
        is_over
    }
}

impl Outboxes {
    /// Whether the last frame for this queue was long: `Some` with whether its end was in pages.
    pub(crate) fn gets_long(&self, to: SlotId) -> Option<bool> {
        match self.slots.get(to.index)? {
            OutboxSlot::Here(Outbox { id, long, .. }) if *id == to && long.is_last => {
                Some(long.has_body)
            }
            _ => None,
        }
    }

    /// The gauge that is raised until a queue has room for a long frame; `None` if the queue is
    /// stalled, so that no source waits for it.
    pub(crate) fn await_room(&mut self, to: SlotId) -> Option<Arc<Gauge>> {
        let outbox = self.get(to.index).filter(|outbox| !outbox.is_stalled())?;
        let was_active = outbox.is_active();
        outbox.long.gauge.raise_sent(outbox.gauge.sent());
        outbox.long.gauge.raise();
        let gauge = Arc::clone(&outbox.long.gauge);
        if !was_active {
            self.draining.push(to.index);
        }
        Some(gauge)
    }
}
