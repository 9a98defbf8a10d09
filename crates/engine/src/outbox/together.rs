//! Frames that are added to an outbox together: one check of their sums instead of one of each
//! frame, which is most of what adding a short frame costs.

use ringway_datapath::{Ends, Frame, FramePool, FrameVlan, segment};

use super::{Enqueue, Gate, MEMORY_GUARANTEED, Outbox, OutboxSlot, Outboxes};
use crate::gauge::{Backlog, HIGH};
use crate::slot::SlotId;
use crate::state::EgressEvent;

/// The sums of frames that a queue takes as they are, if it takes their ends: untagged, and with
/// nothing left to do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    backlog: Backlog,
    memory: usize,
    ends: Ends,
}

impl Sums {
    /// `None` if one of the frames is of another kind.
    #[inline]
    pub(crate) fn of(frames: &[Frame]) -> Option<Sums> {
        let mut sums = Sums::default();
        for frame in frames {
            let is_untagged = frame.vlan == FrameVlan::None;
            if !is_untagged || !segment::is_ready(frame) {
                return None;
            }
            sums.backlog.bytes += frame.len();
            sums.memory += frame.memory();
            sums.ends = sums.ends | frame.ends();
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
            && matches!(self.gate, Gate::Open)
            && !self.is_stalled()
            && self.capture.is_none()
            && self.traits.takes.has(sums.ends)
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
        outbox.has_lent |= sums.ends.are_lent();
        if !outbox.is_draining() {
            outbox.state = outbox.state.on(EgressEvent::Enqueued, at.now);
        }
        if !was_active {
            self.draining.push(to.index);
        }
        true
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::any::Any;
    use std::cell::OnceCell;
    use std::sync::Arc;
    use std::time::{Instant, SystemTime};

    use ringway_datapath::{DropReason, OffloadCaps, Pages, PoolBudget, QueueTraits};

    use super::*;
    use crate::capture::Capture;
    use crate::gauge::STALL;

    /// Memory of a guest that no test reads.
    #[derive(Debug)]
    struct Guest;

    impl Pages for Guest {
        fn copy_to(&self, _: usize, _: &mut [u8]) -> Result<(), DropReason> {
            Err(DropReason::GrantCopy)
        }

        fn kind(&self) -> Ends {
            Ends::MAPPED
        }

        fn memory(&self) -> &dyn Any {
            self
        }
    }

    const TO: SlotId = SlotId { index: 0, generation: 0 };

    fn outboxes(takes: Ends) -> Outboxes {
        let traits = QueueTraits { takes, ..QueueTraits::in_memory(OffloadCaps::ALL) };
        let mut outboxes = Outboxes::default();
        outboxes.insert(Outbox::new(TO, 0, traits, Arc::default(), Arc::default()));
        outboxes
    }

    fn pool() -> FramePool {
        FramePool::new(PoolBudget::new(64 << 20))
    }

    /// Adds as many frames, with their numbers as bytes. Returns how many were taken.
    fn add(outboxes: &mut Outboxes, pool: &mut FramePool, numbers: std::ops::Range<u8>) -> usize {
        let frame = |number| {
            let mut frame = pool.take(60).expect("there is memory");
            frame.bytes_mut().fill(number);
            frame
        };
        let frames: Vec<Frame> = numbers.map(frame).collect();
        add_frames(outboxes, pool, frames)
    }

    fn add_frames(outboxes: &mut Outboxes, pool: &FramePool, frames: Vec<Frame>) -> usize {
        let sums = Sums::of(&frames).expect("plain frames");
        let memory_max = OnceCell::new();
        let at = Enqueue { now: Instant::now(), memory_max: &memory_max };
        let count = frames.len();
        let mut frames = frames.into_iter();
        let are_added = outboxes.enqueue_together(TO, &mut frames, sums, pool, &at);
        assert_eq!(frames.len(), if are_added { 0 } else { count }, "all or none");
        count - frames.len()
    }

    #[test]
    fn frames_are_added_in_order_and_the_outbox_drains_once() {
        let (mut outboxes, mut pool) = (outboxes(Ends::NONE), pool());
        assert_eq!(add(&mut outboxes, &mut pool, 0..5), 5);
        assert_eq!(add(&mut outboxes, &mut pool, 5..9), 4);
        assert_eq!(outboxes.draining, [0]);
        let outbox = outboxes.get(0).expect("it is there");
        assert!(outbox.frames().map(|frame| frame.bytes()[0]).eq(0..9));
        assert_eq!((outbox.waiting(), outbox.has_lent), (Backlog { frames: 9, bytes: 540 }, false));
        assert_eq!(outbox.memory, outbox.frames().map(Frame::memory).sum());
    }

    #[test]
    fn frames_that_would_reach_the_mark_are_added_one_by_one() {
        let (mut outboxes, mut pool) = (outboxes(Ends::NONE), pool());
        for _ in 0..HIGH.frames / 64 - 1 {
            assert_eq!(add(&mut outboxes, &mut pool, 0..64), 64);
        }
        let left =
            u8::try_from(HIGH.frames - outboxes.get(0).map_or(0, |outbox| outbox.waiting().frames))
                .expect("a batch");
        assert_eq!(add(&mut outboxes, &mut pool, 0..left), 0);
        assert_eq!(add(&mut outboxes, &mut pool, 0..left - 1), usize::from(left) - 1);
    }

    #[test]
    fn a_capture_and_a_stall_see_each_frame() {
        let (mut outboxes, mut pool) = (outboxes(Ends::NONE), pool());
        let outbox = outboxes.get(0).expect("it is there");
        let capture = Capture::new(usize::MAX, (Instant::now(), SystemTime::now()));
        outbox.capture = Some(Arc::new(capture));
        assert_eq!(add(&mut outboxes, &mut pool, 0..3), 0);
        outboxes.get(0).expect("it is there").capture = None;
        assert_eq!(add(&mut outboxes, &mut pool, 0..3), 3);

        let outbox = outboxes.get(0).expect("it is there");
        let (none_moved, begun) = (EgressEvent::Sent { moved: 0, left: 3 }, Instant::now());
        outbox.state = outbox.state.on(none_moved, begun + 2 * STALL);
        assert!(outbox.is_stalled());
        assert_eq!(add(&mut outboxes, &mut pool, 0..3), 0);
    }

    #[test]
    fn frames_that_take_too_much_memory_are_added_one_by_one() {
        let mut outboxes = outboxes(Ends::NONE);
        // The port may take a quarter of what is left.
        let mut pool = FramePool::new(PoolBudget::new(256 << 10));
        assert_eq!(add(&mut outboxes, &mut pool, 0..4), 4);
        assert_eq!(add(&mut outboxes, &mut pool, 0..60), 0);
    }

    #[test]
    fn frames_with_ends_are_added_where_these_are_taken() {
        for takes in [Ends::NONE, Ends::OWN, Ends::MAPPED, Ends::OWN | Ends::MAPPED] {
            let (mut outboxes, mut pool) = (outboxes(takes), pool());
            let pages: Arc<dyn Pages> = Arc::new(Guest);
            let lender = pool.lender(&pages);
            let mut frame = pool.take(600).expect("there is memory");
            frame.lend(100, lender, 0);
            let is_taken = takes.has(Ends::MAPPED);
            assert_eq!(add_frames(&mut outboxes, &pool, vec![frame]), usize::from(is_taken));
            assert_eq!(outboxes.get(0).expect("it is there").has_lent, is_taken);
        }
    }
}
