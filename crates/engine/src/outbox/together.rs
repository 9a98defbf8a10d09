//! Frames that are added to an outbox together: one check of their sums instead of one of each
//! frame, which is most of what adding a short frame costs.

use ringway_datapath::{Frame, FramePool, FrameVlan, segment};

use super::{Enqueue, MEMORY_GUARANTEED, Outbox, OutboxSlot, Outboxes};
use crate::gauge::{Backlog, HIGH};
use crate::slot::SlotId;
use crate::state::EgressEvent;

/// The sums of frames that most queues take as they are: untagged, with nothing left to do, and
/// without bodies.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    backlog: Backlog,
    memory: usize,
    has_loans: bool,
}

impl Sums {
    /// `None` if one of the frames is of another kind.
    #[inline]
    pub(crate) fn of(frames: &[Frame]) -> Option<Sums> {
        let mut sums = Sums::default();
        for frame in frames {
            let is_untagged = frame.vlan == FrameVlan::None;
            if !is_untagged || !segment::is_ready(frame) || frame.body().is_some() {
                return None;
            }
            sums.backlog.bytes += frame.len();
            sums.memory += frame.memory();
            sums.has_loans |= !frame.is_complete();
        }
        sums.backlog.frames = frames.len();
        Some(sums)
    }
}

impl Outbox {
    /// Whether frames with these sums can be added, and no source needs to be held then.
    fn has_room_for(&self, sums: Sums, pool: &FramePool, at: &Enqueue<'_>) -> bool {
        let waiting = self.waiting();
        let backlog = Backlog {
            frames: waiting.frames + sums.backlog.frames,
            bytes: waiting.bytes + sums.backlog.bytes,
        };
        let memory = self.memory + sums.memory;
        !backlog.reaches(HIGH)
            && !self.is_stalled()
            && self.capture.is_none()
            && (!sums.has_loans || self.traits.takes_loans)
            && (memory <= MEMORY_GUARANTEED || memory < self.memory_max(at.memory_max(pool)))
    }
}

impl Outboxes {
    /// Adds frames with these sums to those that wait for a queue. If each of them must be checked
    /// instead, takes none and returns false.
    #[inline]
    pub(crate) fn enqueue_together(
        &mut self,
        to: SlotId,
        frames: &mut impl Iterator<Item = Frame>,
        sums: Sums,
        pool: &FramePool,
        at: &Enqueue<'_>,
    ) -> bool {
        let Some(OutboxSlot::Here(outbox)) = self.slots.get_mut(to.index) else { return false };
        if outbox.id != to || !outbox.has_room_for(sums, pool, at) {
            return false;
        }
        let was_active = outbox.is_active();
        outbox.frames.extend(frames);
        outbox.bytes += sums.backlog.bytes;
        outbox.memory += sums.memory;
        outbox.has_lent |= sums.has_loans;
        if !outbox.is_draining() {
            outbox.state = outbox.state.on(EgressEvent::Enqueued, at.now);
        }
        if !was_active {
            self.draining.push(to.index);
        }
        true
    }
}
