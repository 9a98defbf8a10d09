//! Copies of a port's frames for someone who watches.
//!
//! A capture costs its port one look per batch while it is off. While it is on, each frame's first
//! bytes are copied, which allocates; a reader that does not keep up loses copies, never frames.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use crossbeam_queue::ArrayQueue;
use ringway_datapath::Frame;

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
    /// When it passed; one time for a batch.
    pub at: SystemTime,
    /// The queue within the port.
    pub queue: u16,
    /// Which way.
    pub passage: Passage,
    /// Its length before it was cut.
    pub len: usize,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

/// A capture under way, shared by the port's workers and one reader.
#[derive(Debug)]
pub struct Capture {
    frames: ArrayQueue<CapturedFrame>,
    lost: AtomicU64,
    is_open: AtomicBool,
    snap_len: usize,
}

/// Copies that may wait for the reader.
const WAITING_MAX: usize = 8192;

impl Capture {
    /// A capture that keeps `snap_len` bytes of each frame.
    pub fn new(snap_len: usize) -> Capture {
        Capture {
            frames: ArrayQueue::new(WAITING_MAX),
            lost: AtomicU64::new(0),
            is_open: AtomicBool::new(true),
            snap_len,
        }
    }

    /// The oldest copy that waits.
    pub fn next(&self) -> Option<CapturedFrame> {
        self.frames.pop()
    }

    /// Copies lost because the reader was too slow.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Ends the capture; the workers forget it when they next look.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    /// Whether the port still copies: it ends with the port, too.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    pub(crate) fn copy<'a>(
        &self,
        passage: Passage,
        queue: u16,
        frames: impl IntoIterator<Item = &'a Frame>,
    ) {
        let at = SystemTime::now();
        for frame in frames {
            let bytes = frame.bytes();
            let kept = bytes[..bytes.len().min(self.snap_len)].to_vec();
            let copy = CapturedFrame { at, queue, passage, len: bytes.len(), bytes: kept };
            if self.frames.push(copy).is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
