//! What limits a port: the same for all its queues, whichever engines own them.

use std::sync::Arc;
use std::time::Duration;

use ringway_datapath::{DropReason, Frame, segment};

use crate::credit::Credit;

/// Limits of one port. What is shared by its queues belongs to the vif, and so outlives
/// connections: one that begins brings nothing new.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// How much may enter.
    pub ingress: Option<Arc<Credit>>,
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

    /// Why a frame may not enter, if it may not.
    #[inline]
    pub(crate) fn refuse(&self, frame: &Frame) -> Option<DropReason> {
        segment::refuse(frame, self.frame_len_max.unwrap_or(usize::MAX))
    }
}

/// A [`Credit`] for frames that leave: of short intervals, because a queue that sends nothing for
/// [`STALL`](crate::gauge::STALL) counts as one that stands still.
pub fn egress_credit(bytes: u64, interval: Duration, now: std::time::Instant) -> Credit {
    let parts = u64::try_from(interval.as_micros() / STEP.as_micros()).unwrap_or(u64::MAX).max(1);
    match bytes / parts {
        0 => Credit::new(bytes, interval, now),
        part if parts > 1 => Credit::new(part, STEP, now),
        _ => Credit::new(bytes, interval, now),
    }
}

/// The interval of credit for frames that leave.
const STEP: Duration = Duration::from_millis(1);
