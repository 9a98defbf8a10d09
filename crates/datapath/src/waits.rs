//! What a side of a queue waits for, and since when, for people.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::PortId;

/// Why no frames enter by a queue, or leave by it, although there are some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// Its receiver has no room: a guest posts no buffers, or a device is full.
    NoRoom,
    /// Its port may move no more at its rate for now.
    Rate,
    /// Its port's frames would be cut into more segments than are cut at once.
    Segments,
    /// A queue of another port is full.
    Port(PortId),
    /// Another worker is behind, or another guest on the same bridge.
    Another,
    /// There is no memory for frames.
    NoMemory,
}

/// What one side of a queue waits for now. Written by its worker when that changes, readable by any
/// thread.
#[derive(Debug, Default)]
pub struct WaitCell {
    /// The first moment that was written.
    began: OnceLock<Instant>,
    /// From its highest bits on: a code of the reason, 0 for none (8 bits), a port (16), and
    /// milliseconds since `began` (40).
    packed: AtomicU64,
}

const CODE_AT: u32 = 56;
const PORT_AT: u32 = 40;

impl WaitCell {
    /// It waits for this. If it has waited for the same before, the former moment counts.
    pub fn set(&self, reason: WaitReason, since: Instant) {
        let began = self.began.get_or_init(|| since);
        let (code, port) = match reason {
            WaitReason::NoRoom => (1, 0),
            WaitReason::Rate => (2, 0),
            WaitReason::Port(port) => (3, port.0),
            WaitReason::Another => (4, 0),
            WaitReason::NoMemory => (5, 0),
            WaitReason::Segments => (6, 0),
        };
        let kind: u64 = (code << CODE_AT) | (u64::from(port) << PORT_AT);
        if self.packed.load(Relaxed) >> PORT_AT == kind >> PORT_AT {
            return;
        }
        let waited = since.saturating_duration_since(*began).as_millis();
        let waited = u64::try_from(waited).unwrap_or(u64::MAX) & ((1 << PORT_AT) - 1);
        self.packed.store(kind | waited, Relaxed);
    }

    /// It does not wait.
    #[inline]
    pub fn clear(&self) {
        self.packed.store(0, Relaxed);
    }

    /// What it waits for, and since when, to the millisecond.
    pub fn get(&self) -> Option<(WaitReason, Instant)> {
        let packed = self.packed.load(Relaxed);
        let [code, high, low, ..] = packed.to_be_bytes();
        let reason = match code {
            1 => WaitReason::NoRoom,
            2 => WaitReason::Rate,
            3 => WaitReason::Port(PortId(u16::from_be_bytes([high, low]))),
            4 => WaitReason::Another,
            5 => WaitReason::NoMemory,
            6 => WaitReason::Segments,
            _ => return None,
        };
        let waited = Duration::from_millis(packed & ((1 << PORT_AT) - 1));
        Some((reason, *self.began.get()? + waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_that_for_the_newest_reason_since_it_began() {
        let (cell, start) = (WaitCell::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(cell.get(), None);
        let reasons = [
            WaitReason::NoRoom,
            WaitReason::Rate,
            WaitReason::Port(PortId(0)),
            WaitReason::Port(PortId(u16::MAX)),
            WaitReason::Another,
            WaitReason::NoMemory,
            WaitReason::Segments,
        ];
        for (reason, at) in reasons.into_iter().zip((0..).step_by(100)) {
            cell.set(reason, after(at));
            cell.set(reason, after(at + 50));
            assert_eq!(cell.get(), Some((reason, after(at))));
        }
        cell.clear();
        assert_eq!(cell.get(), None);
        cell.set(WaitReason::NoMemory, after(1 << 30));
        assert_eq!(cell.get(), Some((WaitReason::NoMemory, after(1 << 30))));
    }
}
