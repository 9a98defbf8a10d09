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
