//! The limits of a port, shared by all its queues, whichever engines own them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{DropReason, Frame, FrameBatch, MulticastFilter, WaitReason, segment};

use crate::credit::Credit;

/// Limits of one port. The credits shared by its queues belong to the vif and outlive connections:
/// a new connection brings no new credit.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Why all frames are dropped, those that would enter and those that would leave, if they are.
    pub shut: Option<DropReason>,
    /// The multicast frames that leave, if the guest wants only some. The others are no drops.
    pub multicast: Option<Arc<MulticastFilter>>,
    /// Whether frames leave as they would be on a wire, whatever their receiver takes: with their
    /// checksums, and as segments.
    pub is_plain: bool,
    /// How much may enter.
    pub ingress: Option<Arc<Credit>>,
    /// How many segments may enter beyond what senders usually ask for: see
    /// [`Frame::excess_segments`].
    pub segments: Option<Arc<Credit>>,
    /// How much may leave. Frames without credit wait in their queue, and are dropped as in any
    /// full queue.
    pub egress: Option<Arc<Credit>>,
    /// Bytes of the longest frame that may enter, from the Ethernet header on; for a frame with
    /// pending segmentation, of the longest segment.
    pub frame_len_max: Option<usize>,
}

impl Limits {
    /// How long until frames may enter again; `None` if they may now.
    pub(crate) fn due(&self, now: Instant) -> Option<Duration> {
        let due = |credit: &Option<Arc<Credit>>| credit.as_ref()?.due(now);
        due(&self.ingress).max(due(&self.segments))
    }

    /// What frames wait for that may not enter.
    pub(crate) fn awaited(&self, now: Instant) -> WaitReason {
        let due = |credit: &Option<Arc<Credit>>| credit.as_ref()?.due(now);
        match due(&self.segments) > due(&self.ingress) {
            true => WaitReason::Segments,
            false => WaitReason::Rate,
        }
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
/// Cutting a frame into a thousand segments, often in the host's kernel, takes milliseconds, during
/// which that worker sends nothing else. A share of rounds does not help: in a round in which
/// others wait for acknowledgements, the vif would be alone.
pub fn segment_credit(now: Instant) -> Credit {
    Credit::without_burst(SEGMENTS_PER_STEP, SEGMENTS_STEP, now)
}

/// Excess segments of a vif in each [`SEGMENTS_STEP`]: 50,000 per second, which a kernel makes into
/// frames in about a sixth of a core's time.
const SEGMENTS_PER_STEP: u64 = 500;
/// See [`SEGMENTS_PER_STEP`].
const SEGMENTS_STEP: Duration = Duration::from_millis(10);

/// A [`Credit`] for frames that leave: with short intervals, because a queue that sends nothing for
/// [`STALL`](crate::gauge::STALL) counts as stalled.
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
