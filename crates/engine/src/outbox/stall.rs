//! A queue by which no frame has left for a while.

use std::time::{Duration, Instant};

use ringway_datapath::{FramePool, WaitReason};

use super::drain::RETRY;
use super::{MEMORY_SHARE_DIVISOR, Outbox, count, queue_memory_max};
use crate::gauge::{LOW, STALL};
use crate::state::{Egress, EgressEvent};

/// How long a queue without an event for room is retried before its frames are dropped: as long as
/// Linux's backend keeps frames for a guest that receives none (`rx_drain_timeout_msecs` of
/// drivers/net/xen-netback/netback.c).
const GIVE_UP: Duration = Duration::from_secs(10);

impl Outbox {
    /// Shows people what it waits for.
    pub(super) fn show_stall(&self, since: Instant) {
        let reason = if self.awaits_credit() { WaitReason::Rate } else { WaitReason::NoRoom };
        self.counters.rx_wait.set(reason, since);
    }

    /// Drops everything, so that a queue is not retried forever.
    pub(super) fn drop_all(&mut self, pool: &mut FramePool, now: Instant) {
        self.counters.dropped.count(self.full(), count(self.waiting().frames));
        self.recycle_all(pool);
        (self.bytes, self.memory) = (0, 0);
        self.state = self.state.on(EgressEvent::Sent { moved: 0, left: 0 }, now);
        self.counters.rx_wait.clear();
    }

    /// Drops the newest frames of a stalled queue, down to what it may keep.
    pub(super) fn shed(&mut self, pool: &mut FramePool, now: Instant) {
        let queue_memory_max = queue_memory_max(pool.bytes_left() / MEMORY_SHARE_DIVISOR);
        while self.waiting().reaches(LOW) || self.memory > queue_memory_max {
            let reason = self.full();
            let Some(frame) = self.frames.pop_back().or_else(|| self.admitted.pop_back()) else {
                break;
            };
            self.bytes -= frame.len();
            self.memory -= frame.memory();
            self.counters.dropped.count(reason, 1);
            pool.recycle(frame);
        }
        // Frames that stay must not delay the responses to their senders.
        self.complete_those(pool, |_| true);
        if self.waiting().frames == 0 {
            // Otherwise the next frame would join a queue that is not drained.
            self.state = self.state.on(EgressEvent::Sent { moved: 0, left: 0 }, now);
            self.counters.rx_wait.clear();
        }
    }

    /// Whether it has made no progress for [`GIVE_UP`], and no event would report room.
    pub(super) fn has_given_up(&self, now: Instant) -> bool {
        let Egress::Stalled { since } = self.state else { return false };
        self.traits.retry.is_some() && now.saturating_duration_since(since) >= GIVE_UP
    }

    /// After how long it must be retried without an event. Before a stall, this is when it might
    /// stall; after it, the outbox waits for the event, if its queue reports room.
    pub(super) fn retry(&self) -> Option<Duration> {
        if self.drain.is_some() {
            return Some(RETRY);
        }
        match (self.is_stalled(), self.traits.retry) {
            (false, retry) => Some(retry.map_or(STALL, |retry| retry.min(STALL))),
            (true, retry) => retry.map(|retry| retry.max(STALL)),
        }
    }
}
