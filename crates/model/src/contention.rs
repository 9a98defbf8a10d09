//! What several busy queues cost each other.

use ringway_stats::float;

/// The contention law: the capacity of a queue is divided by 1 + a (k - 1) + b k (k - 1), where k
/// queues are busy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Contention {
    /// The part of the work that only one queue can do at a time, as under a lock: a.
    pub serial: f64,
    /// What each pair of queues costs, as by cache lines that travel between CPUs: b. Above 0, more
    /// queues end up slower than fewer.
    pub pairwise: f64,
}

impl Contention {
    /// What is left of a queue's capacity where so many are busy.
    pub fn efficiency(&self, busy: usize) -> f64 {
        let others = float(busy.saturating_sub(1));
        1.0 / (1.0 + self.serial * others + self.pairwise * float(busy) * others)
    }

    /// The number of busy queues from which each further one makes all slower together.
    pub fn busy_best(&self) -> Option<f64> {
        let ratio = (1.0 - self.serial).max(0.0) / self.pairwise;
        let is_retrograde = self.serial > 1.0 || self.pairwise > 0.0;
        is_retrograde.then(|| ratio.sqrt().max(1.0))
    }
}

/// By how many times throughput changes where another mean number of queues is busy, as an
/// interval: queues that only wait for each other carry no more than one, and those that never do
/// as many times more.
pub fn gain(busy: f64, busy_after: f64) -> [f64; 2] {
    let free = busy_after / busy;
    [free.min(1.0), free.max(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_bounds_all_queues_and_pairs_of_queues_turn_the_gain_around() {
        let together = |law: Contention, busy: usize| float(busy) * law.efficiency(busy);
        let lock = Contention { serial: 0.5, pairwise: 0.0 };
        assert!((together(lock, 1) - 1.0).abs() < 1e-12);
        assert!(together(lock, 64) < 2.0 && together(lock, 64) > together(lock, 8));
        assert_eq!((lock.busy_best(), Contention::default().efficiency(9)), (None, 1.0));
        for serial in [0.0, 0.3, 1.0] {
            let law = Contention { serial, pairwise: 0.0 };
            let times = together(law, 8) / together(law, 2);
            let [low, high] = gain(2.0, 8.0);
            assert!(low <= times + 1e-9 && times <= high + 1e-9, "{serial}: {times}");
        }
        assert_eq!((gain(2.0, 8.0), gain(8.0, 2.0)), ([1.0, 4.0], [0.25, 1.0]));
        let pairs = Contention { serial: 0.1, pairwise: 0.1 };
        assert_eq!(pairs.busy_best(), Some(3.0));
        let worse = Contention { serial: 1.5, pairwise: 0.0 };
        assert_eq!(worse.busy_best(), Some(1.0));
        assert!(together(pairs, 3) > together(pairs, 2) && together(pairs, 3) > together(pairs, 4));
    }
}
