//! A histogram of durations: written by one worker, readable by any thread.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// Each doubling has four buckets, so that a bucket's ends are at most 25 % apart.
const PART_BITS: u32 = 2;
const PARTS: u32 = 1 << PART_BITS;
/// Durations below 2^7 ns, about the cost of reading the clock, are in the first bucket.
const SHORTEST_BITS: u32 = 7;
/// Durations above 2^30 ns, about a second, are in the last bucket.
const LONGEST_BITS: u32 = 30;
const BUCKETS: usize = 1 + 23 * 4;

/// How many durations each bucket has counted.
#[derive(Debug)]
pub struct TimeCounters([AtomicU64; BUCKETS]);

impl Default for TimeCounters {
    fn default() -> TimeCounters {
        TimeCounters([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl TimeCounters {
    /// Counts a duration. Only the owning worker calls this, so a load and a store are enough.
    pub fn count(&self, time: Duration) {
        let bucket = &self.0[bucket(time)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The nonempty buckets, as ranges in nanoseconds in ascending order, and their counts.
    pub fn snapshot(&self) -> impl Iterator<Item = (Range<u64>, u64)> + '_ {
        let counts = self.0.iter().enumerate();
        let counts = counts.map(|(index, count)| (bounds(index), count.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }
}

fn bucket(time: Duration) -> usize {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min((1 << LONGEST_BITS) - 1);
    if ns < 1 << SHORTEST_BITS {
        return 0;
    }
    let bits = ns.ilog2();
    let part = (ns >> (bits - PART_BITS)) % u64::from(PARTS);
    let before = 1 + (bits - SHORTEST_BITS) * PARTS;
    usize::try_from(u64::from(before) + part).expect("the longest are cut")
}

fn bounds(bucket: usize) -> Range<u64> {
    let Some(index) = bucket.checked_sub(1) else { return 0..1 << SHORTEST_BITS };
    let index = u32::try_from(index).expect("there are few buckets");
    let (bits, part) = (SHORTEST_BITS + index / PARTS, index % PARTS);
    let end = |part: u32| u64::from(PARTS + part) << (bits - PART_BITS);
    end(part)..end(part + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_bucket_that_contains_it() {
        for ns in (0..1 << 13).chain((13..30).flat_map(|bits| [1 << bits, (3 << bits) - 1])) {
            let range = bounds(bucket(Duration::from_nanos(ns)));
            assert!(range.contains(&ns) || ns >= 1 << LONGEST_BITS, "{ns}: {range:?}");
        }
    }

    #[test]
    fn buckets_follow_each_other_and_are_a_quarter_wide_at_most() {
        for index in 1..BUCKETS {
            let (before, here) = (bounds(index - 1), bounds(index));
            assert_eq!(before.end, here.start);
            assert!((here.end - here.start) * 4 <= here.start, "{here:?}");
        }
        assert_eq!(bounds(BUCKETS - 1).end, 1 << LONGEST_BITS);
    }

    #[test]
    fn very_long_durations_are_in_the_last_bucket() {
        let times = TimeCounters::default();
        [Duration::from_secs(9), Duration::MAX].into_iter().for_each(|time| times.count(time));
        let all: Vec<_> = times.snapshot().collect();
        assert_eq!(all, [(bounds(BUCKETS - 1), 2)]);
    }
}
