//! Room for long frames, which sources look for before they take such frames in.
//!
//! The end of a long frame can stay in the pages of its sender only if the frame leaves in the
//! round in which it comes in; otherwise it is copied. So a source whose last frames were long, and
//! for a queue of the same engine, takes in as many as that queue has room for. If it has none, the
//! source waits as for a full queue, within the same allowance, and the frames stay with the
//! sender.

use std::sync::Arc;

use ringway_datapath::{MIDDLE_LEN, PortQueue};

use super::{Outbox, Outboxes};
use crate::gauge::Gauge;
use crate::share::cost_of;
use crate::slot::SlotId;

/// What an outbox knows of the long frames that it gets.
#[derive(Debug, Default)]
pub(super) struct Long {
    /// The length of the last one.
    len: usize,
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
    /// Whether sources wait for room.
    pub(super) fn is_awaited(&self) -> bool {
        self.gauge.is_raised()
    }

    /// Releases the sources that wait. All are in this engine, and a round follows.
    fn release(&self) {
        self.gauge.lower();
    }

    /// Releases the sources that wait, because the outbox leaves the engine.
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
    /// The budget of bytes with which a source takes in one frame fewer than there is room for, and
    /// at least one: frames differ in length, and the one that reaches a budget is the last.
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
    /// A source with long frames has added frames for this queue. If the last one there is long,
    /// notes its length, and returns whether its end is in pages.
    pub(crate) fn note_long(&mut self, to: SlotId) -> Option<bool> {
        let outbox = self.get(to.index).filter(|outbox| outbox.id == to)?;
        let last = outbox.frames.back().filter(|last| last.len() > MIDDLE_LEN)?;
        outbox.long.len = last.len();
        Some(!last.is_complete())
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
