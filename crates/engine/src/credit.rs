//! A rate limit of a port: a number of bytes, or segments, per interval.
//!
//! All queues of the port share one budget, on whichever workers they are. A queue takes frames in
//! while there is credit, and pays back a debt from the last frame before it takes in the next: so
//! the rate is exact in the long run, and no frame is too long for it. A queue without credit
//! leaves its frames where they are, and its worker sleeps until there is some.
//!
//! Linux' backend gives each queue the full rate, so a guest that asks for eight queues transmits
//! eight times as much. Unused credit accumulates as there: up to one interval's bytes, or 128 KiB
//! if that is more, which lets the longest frame through. Queues on several workers that read the
//! credit at once may each use it: a debt of at most a batch each.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Ordering};

/// The least credit that may accumulate while a port is idle: two of the longest frames, as in
/// Linux's backend.
const BURST_MIN: u64 = 128 << 10;

/// The credit of one port.
#[derive(Debug)]
pub struct Credit {
    /// Bytes earned in each interval; at least 1.
    bytes: u64,
    /// The most unused credit, in bytes.
    unused_max: u64,
    interval_ns: u64,
    zero: Instant,
    /// Bytes of credit since `zero` that were spent, or that expired unused.
    spent: AtomicU64,
}

impl Credit {
    /// `bytes` per `interval`, the first of which begins now. A zero counts as the minimum: 1 byte,
    /// 1 nanosecond.
    pub fn new(bytes: u64, interval: Duration, now: Instant) -> Credit {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let unused_max = bytes.max(BURST_MIN);
        let spent = AtomicU64::new(0);
        Credit { bytes: bytes.max(1), unused_max, interval_ns, zero: now, spent }
    }

    /// A credit of this many bytes per interval, of which at most that of one interval accumulates.
    pub fn without_burst(bytes: u64, interval: Duration, now: Instant) -> Credit {
        let credit = Credit::new(bytes, interval, now);
        Credit { unused_max: credit.bytes, ..credit }
    }

    /// Bytes that may be taken in now.
    pub fn available(&self, now: Instant) -> u64 {
        let earned = self.earned(now);
        let forgone = earned.saturating_sub(self.unused_max);
        // Queues that check at the same time may each use all the credit. The excess is at most a
        // batch of each, and is paid back like any other debt.
        let spent = self.spent.fetch_max(forgone, Ordering::Relaxed).max(forgone);
        earned.saturating_sub(spent)
    }

    /// Charges what was taken in.
    pub fn spend(&self, bytes: u64) {
        self.spent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How long until there is credit; `None` if there is some.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        // An account that was never used is full; no need to read the clock.
        if self.spent.load(Ordering::Relaxed) == 0 || self.available(now) > 0 {
            return None;
        }
        let missing = self.spent.load(Ordering::Relaxed) - self.earned(now).min(u64::MAX - 1);
        // The credit must strictly exceed the debt.
        let intervals = u128::from(missing / self.bytes) + 1 + u128::from(self.intervals(now));
        let at = intervals.saturating_mul(u128::from(self.interval_ns));
        let wait = at.saturating_sub(now.saturating_duration_since(self.zero).as_nanos());
        Some(Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    fn earned(&self, now: Instant) -> u64 {
        self.intervals(now).saturating_add(1).saturating_mul(self.bytes)
    }

    /// The number of intervals that have ended.
    fn intervals(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.zero).as_nanos();
        u64::try_from(elapsed / u128::from(self.interval_ns)).unwrap_or(u64::MAX)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Bytes that pass in `time` if frames of `len` bytes always wait in `queues` queues, which are
    /// each woken late; and how often a queue checked.
    fn simulate(
        credit: &Credit,
        time: Duration,
        len: u64,
        queues: u32,
        late: Duration,
    ) -> (u64, u64) {
        let start = credit.zero;
        let (mut now, mut through, mut polls) = (start, 0, 0);
        while now < start + time {
            let mut is_idle = true;
            for _ in 0..queues {
                polls += 1;
                let mut available = credit.available(now);
                let mut taken = 0;
                while available > 0 {
                    taken += len;
                    available = available.saturating_sub(len);
                }
                credit.spend(taken);
                through += taken;
                is_idle &= taken == 0;
            }
            if is_idle {
                now += credit.due(now).expect("nothing could be taken") + late;
            }
        }
        (through, polls)
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes of arithmetic")]
    fn the_rate_limits_all_queues_together_for_any_frames() {
        let late = Duration::from_micros(300);
        for (bytes, interval_us) in
            [(6250, 50_000), (625_000, 50_000), (100, 100), (1 << 20, 10_000)]
        {
            for len in [60, 1514, 65535] {
                for queues in [1, 4] {
                    let interval = Duration::from_micros(interval_us);
                    let credit = Credit::new(bytes, interval, Instant::now());
                    let (through, polls) = simulate(&credit, 60 * SECOND, len, queues, late);
                    let allowed = 60_000_000 / interval_us * bytes;
                    let percent = through * 100 / allowed;
                    assert!((90..=110).contains(&percent), "{bytes},{interval_us} {len} {percent}");
                    // After each sleep there is work.
                    let polls_max = 2 * u64::from(queues) * (60_000_000 / interval_us + 2);
                    assert!(polls <= polls_max, "{polls} polls, at most {polls_max}");
                }
            }
        }
    }

    #[test]
    fn an_idle_port_accumulates_at_most_one_burst() {
        let start = Instant::now();
        let later = start + 3600 * SECOND;
        for (bytes, burst) in [(1000, BURST_MIN), (1 << 20, 1 << 20)] {
            let credit = Credit::new(bytes, Duration::from_millis(50), start);
            assert_eq!(credit.available(start), bytes);
            assert_eq!(credit.available(later), burst);
            credit.spend(burst);
            assert_eq!(credit.available(later), 0);
            assert_eq!(credit.due(later), Some(Duration::from_millis(50)));
        }
        let credit = Credit::without_burst(1000, Duration::from_millis(50), start);
        assert_eq!(credit.available(later), 1000);
    }

    #[test]
    fn extreme_rates_are_handled() {
        let start = Instant::now();
        for bytes in [0, 1, u64::MAX] {
            for interval in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
                let credit = Credit::new(bytes, interval, start);
                for now in [start, start + SECOND, start + 1_000_000 * SECOND] {
                    credit.spend(credit.available(now).min(1 << 30) + 65535);
                    let due = credit.due(now);
                    assert!(due.is_none_or(|due| due > Duration::ZERO));
                }
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing() {
        let now = Instant::now();
        let credit = Credit::new(1000, SECOND, now + SECOND);
        assert_eq!(credit.available(now), 1000);
        credit.spend(1000);
        assert_eq!(credit.due(now), Some(SECOND));
    }
}
