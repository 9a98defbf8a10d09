//! How long a source may be held by queues that drain slowly.
//!
//! A held source takes in no frames, not even frames for other queues. That is acceptable for a
//! queue that sends at a fair rate: nothing is lost, and the wait is short. It is not acceptable
//! for a queue that takes a page only occasionally: one slow guest would stop all its senders. So
//! each source has an allowance of time. Holds use it up; frames that the queue sends meanwhile
//! restore it. Without allowance a source does not wait: frames that meet pressure are dropped at a
//! mark.

use std::time::{Duration, Instant};

/// The most allowance that a source may save up.
const BURST: Duration = Duration::from_millis(50);
/// A source earns 1 in this of elapsed time: 5 %.
const EARNED_DIVISOR: u32 = 20;
/// The shortest hold that is worth beginning.
const HOLD_MIN: Duration = Duration::from_millis(1);
/// Work that a queue must send in 8 ns to hold its sources at no charge, in units of
/// [`cost`](crate::share::cost): about 1 Gbit/s of long frames, or 30,000 short frames a second.
const COST_PER_8_NS: u64 = 1;

/// The allowance of one source.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: Duration,
    refilled_at: Instant,
}

impl Allowance {
    pub(crate) fn new(now: Instant) -> Allowance {
        Allowance { left: BURST, refilled_at: now }
    }

    /// How long a hold that begins now may last; `None` if it may not begin.
    pub(crate) fn begin(&mut self, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.refilled_at);
        self.refilled_at = now;
        self.left = (self.left + elapsed / EARNED_DIVISOR).min(BURST);
        (self.left >= HOLD_MIN).then_some(self.left)
    }

    /// Charges a hold during which the holding queue sent `cost_sent`.
    pub(crate) fn charge(&mut self, held: Duration, cost_sent: u64) {
        let earned = Duration::from_nanos(cost_sent.saturating_mul(8) / COST_PER_8_NS);
        self.left = (self.left + earned).saturating_sub(held).min(BURST);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// The part of a minute for which a source is held, in thousandths, if its queue sends `cost`
    /// in each `pause` and is soon full again.
    fn held_permille(cost: u64, pause: Duration) -> u128 {
        let start = Instant::now();
        let end = start + Duration::from_secs(60);
        let mut allowance = Allowance::new(start);
        let (mut now, mut held) = (start, Duration::ZERO);
        while now < end {
            match allowance.begin(now) {
                Some(most) => {
                    let hold = most.min(pause);
                    let sent = u128::from(cost) * hold.as_nanos() / pause.as_nanos();
                    allowance.charge(hold, u64::try_from(sent).expect("a small number"));
                    held += hold;
                    now += hold;
                }
                None => now += Duration::from_micros(100),
            }
        }
        held.as_nanos() * 1000 / Duration::from_secs(60).as_nanos()
    }

    #[test]
    #[cfg_attr(miri, ignore = "a minute in steps of 100 us is too long for Miri")]
    fn a_slow_queue_holds_its_sources_for_a_twentieth_of_the_time() {
        for pause_ms in [1, 5, 45, 49, 1000] {
            let held = held_permille(4160, Duration::from_millis(pause_ms));
            assert!(held <= 60, "a page in {pause_ms} ms holds for {held} of 1000");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a minute in steps of 100 us is too long for Miri")]
    fn a_queue_with_a_fair_rate_holds_its_sources_while_it_is_full() {
        // 64 frames of 1514 bytes, or one of 64 KiB, in half a millisecond.
        for cost in [64 * (1514 + 4096), 65536 + 4096] {
            assert!(held_permille(cost, Duration::from_micros(500)) > 990);
        }
    }

    #[test]
    fn allowance_accumulates_only_up_to_a_limit() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert_eq!(allowance.begin(start + Duration::from_secs(3600)), Some(BURST));
        allowance.charge(Duration::ZERO, u64::MAX);
        assert_eq!(allowance.begin(start + Duration::from_secs(3600)), Some(BURST));
        allowance.charge(BURST, 0);
        assert_eq!(allowance.begin(start + Duration::from_secs(3600)), None);
    }
}
