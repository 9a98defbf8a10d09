//! What was read in one batch for a guest that takes frames with pending segmentation, from a
//! network that has none. Nothing waits for a later batch.

use core::{iter, mem};

use arrayvec::ArrayVec;

use super::{Place, Run};
use crate::headers::{Headers, IpVersion};
use crate::{Checksum, Frame, FrameBatch, FramePool, Offload};

/// The longest whole: the longest frame that netif can describe.
const WHOLE_LEN_MAX: usize = 65_535; // not a limit: others stay apart

/// Flows that are merged at a time: each frame is compared with one frame of each.
const FLOWS: usize = 8;

/// A run whose first frame is in the batch.
struct Growing {
    run: Run,
    /// The place of its first frame in the batch.
    at: usize,
    others: FrameBatch,
}

/// Merges TCP frames that are as they were on a wire, among those from `start` on, if `takes` says
/// so of their version of IP: of each run, the whole is in place of the first frame. Frames of a
/// flow keep their order. A frame with a wrong checksum stays as it is.
pub fn merge_batch(
    batch: &mut FrameBatch,
    start: usize,
    pool: &mut FramePool,
    takes: impl Fn(IpVersion) -> bool,
) {
    let mut growing: ArrayVec<Growing, FLOWS> = ArrayVec::new();
    let frames: FrameBatch = batch.drain(start..).collect();
    for frame in frames {
        match frame.headers().filter(|headers| takes(headers.version)) {
            Some(headers) => add(&mut growing, frame, headers, batch, pool),
            None => batch.push(frame),
        }
    }
    growing.drain(..).for_each(|it| it.finish(batch, pool));
}

/// Adds a frame to the run that it continues, or to the batch.
fn add(
    growing: &mut ArrayVec<Growing, FLOWS>,
    frame: Frame,
    headers: Headers,
    batch: &mut FrameBatch,
    pool: &mut FramePool,
) {
    let mut index = 0;
    while index < growing.len() {
        match growing[index].run.place_of(&frame, &headers) {
            Place::Next => return growing[index].others.push(frame),
            Place::Elsewhere => index += 1,
            Place::Behind => growing.remove(index).finish(batch, pool),
        }
    }
    if let Some(run) = Run::begin_plain(&frame, headers, WHOLE_LEN_MAX) {
        if growing.is_full() {
            growing.remove(0).finish(batch, pool);
        }
        growing.push(Growing { run, at: batch.len(), others: FrameBatch::new() });
    }
    batch.push(frame);
}

impl Growing {
    /// Puts the whole in place of the first frame. Without memory for it, its frames stay apart.
    fn finish(self, batch: &mut FrameBatch, pool: &mut FramePool) {
        let Growing { run, at, others } = self;
        if others.is_empty() {
            return;
        }
        let gso = Some(run.gso);
        let Some(mut whole) = pool.take(run.head.len() + run.payload) else {
            return batch.extend(others);
        };
        let (_, head) = run.finish();
        let (start, mut rest) = whole.bytes_mut().split_at_mut(head.len());
        start.copy_from_slice(&head);
        for frame in iter::once(&batch[at]).chain(&others) {
            let data = &frame.bytes()[head.len()..];
            let (own, behind) = mem::take(&mut rest).split_at_mut(data.len());
            own.copy_from_slice(data);
            rest = behind;
        }
        whole.offload = Offload { checksum: Checksum::Blank, gso };
        let first = mem::replace(&mut batch[at], whole);
        iter::once(first).chain(others).for_each(|frame| pool.recycle(frame));
    }
}
