//! Copies of a port's frames for a reader.
//!
//! A port without a capture pays one check per batch. During a capture, each frame's first bytes
//! are copied, which allocates; a reader that does not keep up loses copies, never frames.

use std::time::{Instant, SystemTime};

use ringway_datapath::Frame;

use crate::sync::{ArrayQueue, AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Which way a frame went, in the switch's directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It came in from the port.
    Ingress,
    /// It leaves by the port.
    Egress,
}

/// A copy of one frame.
#[derive(Debug)]
pub struct CapturedFrame {
    /// When it passed; the same time for all frames of a round.
    pub at: SystemTime,
    /// The queue within the port.
    pub queue: u16,
    /// Its direction.
    pub passage: Passage,
    /// Its length before truncation.
    pub len: usize,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

/// A running capture, shared by the port's engines and one reader.
#[derive(Debug)]
pub struct Capture {
    frames: ArrayQueue<CapturedFrame>,
    bytes_waiting: AtomicUsize,
    lost: AtomicU64,
    is_open: AtomicBool,
    snap_len: usize,
    /// One moment on both clocks.
    began: (Instant, SystemTime),
}

/// Copies that may wait for the reader.
const WAITING_MAX: usize = 8192;
/// Their bytes.
const BYTES_WAITING_MAX: usize = 8 << 20;

impl Capture {
    /// A capture that keeps `snap_len` bytes of each frame. `now` is the present time by the
    /// engines' clock and by the wall clock.
    pub fn new(snap_len: usize, now: (Instant, SystemTime)) -> Capture {
        Capture {
            frames: ArrayQueue::new(WAITING_MAX),
            bytes_waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            is_open: AtomicBool::new(true),
            snap_len,
            began: now,
        }
    }

    /// The oldest copy that waits.
    pub fn next(&self) -> Option<CapturedFrame> {
        let frame = self.frames.pop()?;
        self.bytes_waiting.fetch_sub(frame.bytes.len(), Ordering::Relaxed);
        Some(frame)
    }

    /// Copies lost because the reader was too slow.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Ends the capture; the engines drop it when they next check.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    /// Whether the port still copies: a capture also ends with its port.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    pub(crate) fn copy<'a>(
        &self,
        passage: Passage,
        queue: u16,
        now: Instant,
        frames: impl IntoIterator<Item = &'a Frame>,
    ) {
        let (instant, wall) = self.began;
        let at = wall + now.saturating_duration_since(instant);
        for frame in frames {
            let bytes = frame.bytes();
            let kept = bytes.len().min(self.snap_len);
            // Count it before it is put in, so that the reader never subtracts bytes that were not
            // added.
            let waiting = self.bytes_waiting.fetch_add(kept, Ordering::Relaxed) + kept;
            let has_room = waiting <= BYTES_WAITING_MAX;
            let copy = || {
                let bytes_kept = bytes[..kept].to_vec();
                CapturedFrame { at, queue, passage, len: bytes.len(), bytes: bytes_kept }
            };
            if !has_room || self.frames.push(copy()).is_err() {
                self.bytes_waiting.fetch_sub(kept, Ordering::Relaxed);
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::time::Duration;

    use ringway_datapath::{FramePool, PoolBudget};

    use super::*;

    #[test]
    fn a_copy_has_the_first_bytes_and_the_time_of_its_frame() {
        let (now, wall) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let capture = Capture::new(100, (now, wall));
        let mut pool = FramePool::new(PoolBudget::new(1 << 20));
        let frame = pool.take(1000).expect("there is memory");
        let later = Duration::from_secs(5);
        capture.copy(Passage::Ingress, 3, now + later, [&frame]);
        let copy = capture.next().expect("there is room");
        assert_eq!((copy.at, copy.queue, copy.passage), (wall + later, 3, Passage::Ingress));
        assert_eq!((copy.len, copy.bytes.len()), (1000, 100));
        assert!(capture.next().is_none() && capture.is_open());
        capture.close();
        assert!(!capture.is_open());
    }

    #[test]
    #[cfg_attr(miri, ignore = "copies thousands of frames, which takes Miri minutes")]
    fn copies_for_a_reader_that_does_not_read_are_bounded_in_number() {
        let now = Instant::now();
        let capture = Capture::new(14, (now, SystemTime::now()));
        let mut pool = FramePool::new(PoolBudget::new(1 << 20));
        let frame = pool.take(60).expect("there is memory");
        for _ in 0..WAITING_MAX + 3 {
            capture.copy(Passage::Egress, 0, now, [&frame]);
        }
        assert_eq!(capture.lost(), 3);
        assert_eq!(std::iter::from_fn(|| capture.next()).count(), WAITING_MAX);
        // What was lost takes no room of later ones.
        assert_eq!(capture.bytes_waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "copies megabytes, which takes Miri minutes")]
    fn copies_for_a_reader_that_does_not_read_are_bounded_in_bytes() {
        let now = Instant::now();
        let capture = Capture::new(usize::MAX, (now, SystemTime::now()));
        let mut pool = FramePool::new(PoolBudget::new(1 << 20));
        let frame = pool.take(60_000).expect("there is memory");
        for _ in 0..1000 {
            capture.copy(Passage::Egress, 0, now, [&frame]);
        }
        let kept = u64::try_from(BYTES_WAITING_MAX / 60_000).expect("a small number");
        assert_eq!(capture.lost(), 1000 - kept);
        assert_eq!(std::iter::from_fn(|| capture.next()).count(), BYTES_WAITING_MAX / 60_000);
        // Reading entries makes room.
        capture.copy(Passage::Egress, 0, now, [&frame]);
        assert!(capture.next().is_some());
    }
}
