//! A histogram of durations, as it is shown.

use std::ops::Range;
use std::time::Duration;

use ringway_datapath::TimeCounters;
use serde::{Deserialize, Serialize};

/// The number of durations of each size, in ascending order; empty sizes are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Times(pub Vec<Bucket>);

/// Durations of a similar size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The lower bound of each, in nanoseconds.
    pub from_ns: u64,
    /// The exclusive upper bound, in nanoseconds. The last possible bucket, below 2^30, also
    /// contains all longer ones.
    pub below_ns: u64,
    /// How many.
    pub count: u64,
}

impl Times {
    /// Reads counters.
    pub fn read(counters: &TimeCounters) -> Times {
        let bucket = |(range, count): (Range<u64>, u64)| Bucket {
            from_ns: range.start,
            below_ns: range.end,
            count,
        };
        Times(counters.snapshot().map(bucket).collect())
    }

    /// The durations counted since an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Times) -> Times {
        let then = |now: &Bucket| before.0.iter().find(|then| then.from_ns == now.from_ns);
        let added = self.0.iter().map(|now| Bucket {
            count: now.count.saturating_sub(then(now).map_or(0, |then| then.count)),
            ..*now
        });
        Times(added.filter(|bucket| bucket.count > 0).collect())
    }

    /// Both together.
    #[must_use]
    pub fn with(&self, other: &Times) -> Times {
        let mut all = self.clone();
        for bucket in &other.0 {
            match all.0.binary_search_by_key(&bucket.from_ns, |one| one.from_ns) {
                Ok(index) => all.0[index].count += bucket.count,
                Err(index) => all.0.insert(index, *bucket),
            }
        }
        all
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|bucket| bucket.count).sum()
    }

    /// The duration below which `percent` percent of all are, accurate to a quarter of it; `None`
    /// without samples.
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let wanted = (self.count() * u64::from(percent)).div_ceil(100).max(1);
        let mut before = 0;
        for Bucket { from_ns, below_ns, count } in &self.0 {
            if before + count >= wanted {
                // As if the durations of a bucket were spread evenly over it.
                let part = (below_ns - from_ns) * (wanted - before) / count;
                return Some(Duration::from_nanos(from_ns + part));
            }
            before += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(us: impl IntoIterator<Item = u64>) -> Times {
        let counters = TimeCounters::default();
        us.into_iter().for_each(|us| counters.count(Duration::from_micros(us)));
        Times::read(&counters)
    }

    #[test]
    fn percentiles_are_accurate_to_a_quarter() {
        let all = times(1..=1000);
        assert_eq!(all.count(), 1000);
        for (percent, exact_us) in [(1, 10), (50, 500), (99, 990), (100, 1000)] {
            let (exact, found) = (Duration::from_micros(exact_us), all.percentile(percent));
            let is_near = found.is_some_and(|found| found.abs_diff(exact) * 4 < exact);
            assert!(is_near, "{percent} %: {found:?}");
        }
        assert_eq!(times([]).percentile(50), None);
    }

    #[test]
    fn the_difference_of_two_readings_is_the_change_between_them() {
        let (before, added) = ([3, 3, 70], [3, 500]);
        let all = times(before.into_iter().chain(added));
        assert_eq!(all.since(&times(before)), times(added));
        assert_eq!(times(before).with(&times(added)), all);
    }
}
