//! An outbox whose queue some buckets of flows are leaving: whether their frames have left it, and
//! the guest has taken them.

use std::time::{Duration, Instant};

use ringway_datapath::PortQueue;

use super::Outbox;
use crate::balance::Departure;
use crate::gauge::STALL;

/// How often the guest's progress is read if nothing wakes the engine.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// How long a guest may need from the ring to its network stack: as long as its GRO keeps a packet,
/// while it is busy, for others of the flow.
const STEPS: Duration = Duration::from_millis(2);

/// Buckets that are leaving, and what is before their last frame.
pub(super) struct Drain {
    departure: Departure,
    left: Left,
    /// When the buckets stay; known when it was advanced once.
    until: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Left {
    /// Frames that wait to leave, at most.
    Frames(usize),
    /// Buffers up to this mark of the queue, which the guest has to take.
    Buffers(u16),
    /// What the guest does with the last of them before it takes others from another ring.
    Steps { until: Instant },
}

impl Outbox {
    /// Buckets of the port are leaving its queue, and none of their frames follows those that wait.
    pub(crate) fn begin_drain(&mut self, departure: Departure) {
        // With a limit, frames may wait for credit, of which another queue has no more.
        if self.credit.is_none() {
            let left = Left::Frames(self.waiting().frames);
            self.drain = Some(Box::new(Drain { departure, left, until: None }));
        }
    }

    /// Ends the departure once the guest has taken all before it, or if that takes too long. `sent`
    /// frames have left since the last call.
    pub(super) fn advance_drain(&mut self, queue: &mut impl PortQueue, sent: usize, now: Instant) {
        let Some(mut drain) = self.drain.take() else { return };
        let is_late = now >= *drain.until.get_or_insert(now + STALL);
        let Some(progress) = queue.peer_progress().filter(|_| !is_late) else { return };
        if let Left::Frames(frames) = drain.left {
            // The newest of those that wait may have been dropped: then later ones count for them.
            let left = if self.waiting().frames > 0 { frames.saturating_sub(sent) } else { 0 };
            drain.left = if left > 0 { Left::Frames(left) } else { Left::Buffers(progress.mark()) };
        }
        if matches!(drain.left, Left::Buffers(mark) if progress.has_taken(mark)) {
            drain.left = Left::Steps { until: now + STEPS };
        }
        match drain.left {
            Left::Steps { until } if now >= until => drain.departure.finish(),
            _ => self.drain = Some(drain),
        }
    }
}
