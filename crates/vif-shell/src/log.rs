//! Limits the log lines that the other end of a vif can cause.

use std::time::{Duration, Instant};

/// Lines that a vif may have at once.
const BURST: u32 = 20;
/// The interval at which it may have one more.
const REFILL: Duration = Duration::from_secs(5);

/// The log lines that the other end of one vif may still cause: a peer that changes its state as
/// fast as it can must not fill the log.
#[derive(Debug)]
pub struct LogAllowance {
    lines: u32,
    refilled: Instant,
    left_out: u64,
}

impl LogAllowance {
    /// A full allowance.
    pub fn new(now: Instant) -> LogAllowance {
        LogAllowance { lines: BURST, refilled: now, left_out: 0 }
    }

    /// Whether one more line may be written; if so, with the number of lines left out before it.
    pub fn line(&mut self, now: Instant) -> Option<LeftOut> {
        let intervals = now.saturating_duration_since(self.refilled).as_secs() / REFILL.as_secs();
        if let Ok(intervals @ 1..) = u32::try_from(intervals) {
            self.lines = self.lines.saturating_add(intervals).min(BURST);
            self.refilled = now;
        }
        if self.lines == 0 {
            self.left_out += 1;
            return None;
        }
        self.lines -= 1;
        let left_out = std::mem::take(&mut self.left_out);
        Some(LeftOut((left_out > 0).then_some(left_out)))
    }
}

/// How many lines were left out, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut(pub Option<u64>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_occasional_lines_report_how_many_were_left_out() {
        let start = Instant::now();
        let mut allowance = LogAllowance::new(start);
        for _ in 0..BURST {
            assert_eq!(allowance.line(start), Some(LeftOut(None)));
        }
        for _ in 0..1000 {
            assert_eq!(allowance.line(start), None);
        }
        assert_eq!(allowance.line(start + REFILL), Some(LeftOut(Some(1000))));
        assert_eq!(allowance.line(start + REFILL), None);
        let later = start + 1000 * REFILL;
        let lines = (0..100).filter(|_| allowance.line(later).is_some()).count();
        assert_eq!(u32::try_from(lines), Ok(BURST));
    }
}
