//! Frames with known bytes, and counts of dropped frames.

use ringway_datapath::{DropReason, Frame, FramePool, Offload, QueueCounters};

/// Bytes that differ from any others of the same test.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from((n * 7 + n / 251 + seed * 31) % 256).expect("a byte")).collect()
}

/// A frame with these bytes.
pub(crate) fn frame(pool: &mut FramePool, bytes: &[u8], offload: Offload) -> Frame {
    let mut frame = pool.take(bytes.len()).expect("the pool has room");
    frame.bytes_mut().copy_from_slice(bytes);
    frame.offload = offload;
    frame
}

/// How many were dropped for a reason.
pub(crate) fn dropped(counters: &QueueCounters, reason: DropReason) -> u64 {
    let mut counters = counters.dropped.snapshot();
    counters.find(|(name, _)| *name == reason).map_or(0, |(_, count)| count)
}
