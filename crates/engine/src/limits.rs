//! What limits a port: the same for all its queues, whichever engines own them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{DropReason, Frame, FrameBatch, segment};

use crate::credit::Credit;

/// Limits of one port. What is shared by its queues belongs to the vif, and so outlives
/// connections: one that begins brings nothing new.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// How much may enter.
    pub ingress: Option<Arc<Credit>>,
    /// How many segments may enter beyond those that senders usually ask for: see
    /// [`Frame::excess_segments`].
    pub segments: Option<Arc<Credit>>,
    /// How much may leave. What finds no credit waits in its queue, and is dropped as for any queue
    /// that is full.
    pub egress: Option<Arc<Credit>>,
    /// Bytes of the longest frame that may enter, from the Ethernet header on; of one that is to be
    /// cut, of its segments.
    pub frame_len_max: Option<usize>,
}

impl Limits {
    /// Limits of what enters alone.
    pub fn of_ingress(credit: Option<&Arc<Credit>>) -> Limits {
        Limits { ingress: credit.cloned(), ..Limits::default() }
    }

    /// How long until frames may enter again; `None` if they may now.
    pub(crate) fn due(&self, now: Instant) -> Option<Duration> {
        let due = |credit: &Option<Arc<Credit>>| credit.as_ref()?.due(now);
        due(&self.ingress).max(due(&self.segments))
    }

    /// Charges a batch that entered.
    pub(crate) fn spend(&self, batch: &FrameBatch) {
        let spend = |credit: &Option<Arc<Credit>>, of_frame: fn(&Frame) -> usize| {
            let Some(credit) = credit else { return };
            let amount: usize = batch.iter().map(of_frame).sum();
            if amount > 0 {
                credit.spend(u64::try_from(amount).unwrap_or(u64::MAX));
            }
        };
        spend(&self.ingress, Frame::len);
        spend(&self.segments, Frame::excess_segments);
    }

    /// Why a frame may not enter, if it may not.
    #[inline]
    pub(crate) fn refuse(&self, frame: &Frame) -> Option<DropReason> {
        segment::refuse(frame, self.frame_len_max.unwrap_or(usize::MAX))
    }
}

/// A [`Credit`] for the excess segments of one vif.
///
/// Cutting a frame into them, which is often left to the host's kernel, takes milliseconds for
/// one of a thousand; nothing else leaves by that worker meanwhile. A share of rounds is no remedy:
/// in a round in which others wait for acknowledgements, the vif would be alone.
pub fn segment_credit(now: Instant) -> Credit {
    Credit::without_burst(SEGMENTS_PER_STEP, SEGMENTS_STEP, now)
}

/// Excess segments of a vif in each [`SEGMENTS_STEP`]: 50,000 in a second, of which a kernel makes
/// frames in about a sixth of a core's time.
const SEGMENTS_PER_STEP: u64 = 500;
/// See [`SEGMENTS_PER_STEP`].
const SEGMENTS_STEP: Duration = Duration::from_millis(10);

/// A [`Credit`] for frames that leave: of short intervals, because a queue that sends nothing for
/// [`STALL`](crate::gauge::STALL) counts as one that stands still.
pub fn egress_credit(bytes: u64, interval: Duration, now: Instant) -> Credit {
    let parts = u64::try_from(interval.as_micros() / STEP.as_micros()).unwrap_or(u64::MAX).max(1);
    match bytes / parts {
        0 => Credit::new(bytes, interval, now),
        part if parts > 1 => Credit::new(part, STEP, now),
        _ => Credit::new(bytes, interval, now),
    }
}

/// The interval of credit for frames that leave.
const STEP: Duration = Duration::from_millis(1);
