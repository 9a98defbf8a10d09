//! What a source keeps, and what it looks ahead at.

use ringway_datapath::{DropReason, Frame, FramePool};

use crate::slot::SlotId;

/// Frames that were taken in and have to wait, the next one first: at most a batch.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) frames: Vec<Frame>,
    /// Whether mirrors have already had their copies of the first of these.
    pub(crate) is_front_mirrored: bool,
}

impl Kept {
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Keeps a frame, and those behind it.
    pub(crate) fn keep(&mut self, first: Frame, others: impl Iterator<Item = Frame>) {
        self.frames.push(first);
        self.frames.extend(others);
    }

    /// Completes the frames whose ends are lent, so that the queue can respond to its guest. Those
    /// that cannot be read are dropped; `count` counts them.
    pub(crate) fn complete(&mut self, pool: &mut FramePool, count: impl Fn(DropReason)) {
        let mut index = 0;
        while let Some(frame) = self.frames.get_mut(index) {
            let completed = if frame.is_lent() { pool.complete(frame) } else { Ok(()) };
            if let Err(reason) = completed {
                count(reason);
                self.is_front_mirrored &= index > 0;
                pool.recycle(self.frames.remove(index));
            } else {
                index += 1;
            }
        }
    }
}

/// What a source knows of the room for its long frames: see `ahead.rs`.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The queue of this engine that its last long frame went to, once one had its end in pages.
    pub(crate) to: Option<SlotId>,
    /// Whether its last batch had a long frame, and no wait for room has timed out since.
    pub(crate) is_due: bool,
}
