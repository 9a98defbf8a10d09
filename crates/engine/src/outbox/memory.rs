//! The memory that frames may take while they wait to leave.

use std::cell::OnceCell;
use std::time::Instant;

use ringway_datapath::FramePool;

/// Memory that the frames of one queue may take, whatever its port's other queues hold, and that a
/// stalled queue may keep. Less if little memory is left: see [`queue_memory_max`].
pub(super) const MEMORY_MIN: usize = 128 << 10;
/// Of the memory that one port may take, 1 in this is for the frames of one queue, if that is less.
/// So some memory is always left, however many queues are stalled.
const MIN_PART: usize = 16;
/// Memory that a queue may always take: a few short frames.
pub(super) const MEMORY_GUARANTEED: usize = 8 << 10;

/// The time at which a frame is added, and the memory that is allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Enqueue<'a> {
    pub(crate) now: Instant,
    /// Memory that the frames of one port may take, computed on first use in a round.
    pub(crate) memory_max: &'a OnceCell<usize>,
}

impl Enqueue<'_> {
    /// Memory that the frames of one port may take: a part of what is left, so that some is always
    /// left, however many ports are full.
    pub(crate) fn memory_max(&self, pool: &FramePool) -> usize {
        *self.memory_max.get_or_init(|| pool.bytes_left() / MEMORY_SHARE_DIVISOR)
    }
}

/// A port's frames may take 1 in this of the memory that is left.
pub(super) const MEMORY_SHARE_DIVISOR: usize = 4;

/// Memory that one queue may take, if its port may take `memory_max`.
pub(super) fn queue_memory_max(memory_max: usize) -> usize {
    MEMORY_MIN.min(memory_max / MIN_PART).max(MEMORY_GUARANTEED)
}
