//! Which worker owns which queue.

use std::fmt;
use std::str::FromStr;

use ringway_switch::PortId;

/// How queues are placed on workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// A thread for each queue (`multi-queue-study:interrupts`, `multi-queue-series:threads`).
    PerQueue,
    /// Permanently, by port and queue number: as the guide's hosts do with VIFs and netback threads
    /// (`throughput-guide:spread-vifs`).
    Static,
    /// By flow, then by load. Queues of the same number go to the same worker: the hash gives a
    /// flow the same number at both of its ends, so that a frame need not change workers. A port's
    /// only queue goes to the least loaded worker. A saturated worker hands a queue to one with
    /// spare time.
    #[default]
    Balanced,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::PerQueue => "per-queue",
            Policy::Static => "static",
            Policy::Balanced => "balanced",
        })
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        match text {
            "per-queue" => Ok(Policy::PerQueue),
            "static" => Ok(Policy::Static),
            "balanced" => Ok(Policy::Balanced),
            _ => Err(format!("{text:?} is not a policy: expected per-queue, static or balanced")),
        }
    }
}

/// Where a queue is, and its recent load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The queue's port.
    pub port: PortId,
    /// The queue's number within the port.
    pub queue: u16,
    /// The worker that owns it.
    pub worker: usize,
    /// Frames since load was last compared.
    pub load: u64,
}

/// A queue to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) port: PortId,
    pub(crate) queue: u16,
    pub(crate) to: usize,
}

/// Load below which no queue is moved: a few frames do not justify a move.
const WORTH_MOVING: u64 = 1000;

/// The worker for a new queue under `Static`.
pub(crate) fn static_worker(port: PortId, queue: u16, workers: usize) -> usize {
    (usize::from(port.0) + usize::from(queue)) % workers.max(1)
}

/// The worker for one of several queues under `Balanced`.
pub(crate) fn affine_worker(queue: u16, workers: usize) -> usize {
    usize::from(queue) % workers.max(1)
}

/// The least loaded worker, the lowest number among equals.
pub(crate) fn least_loaded(placements: &[Placement], workers: usize) -> usize {
    let burden = |worker: usize| {
        let own = placements.iter().filter(|placed| placed.worker == worker);
        own.fold((0_u64, 0_usize), |(load, count), placed| (load + placed.load, count + 1))
    };
    (0..workers).min_by_key(|&worker| burden(worker)).unwrap_or(0)
}

/// The one move that best balances the most and the least loaded worker, if it is worthwhile.
///
/// A queue moves only if the busiest worker stays at least as busy as the least busy one becomes,
/// so that a single busy queue never moves back and forth.
pub(crate) fn rebalance(placements: &[Placement], workers: usize) -> Option<Move> {
    let load_of = |worker: usize| -> u64 {
        placements.iter().filter(|p| p.worker == worker).map(|p| p.load).sum()
    };
    let busiest = (0..workers).max_by_key(|&worker| load_of(worker))?;
    let idlest = (0..workers).min_by_key(|&worker| load_of(worker))?;
    let gap = load_of(busiest).saturating_sub(load_of(idlest));
    if gap < WORTH_MOVING || gap < load_of(busiest) / 4 {
        return None;
    }
    placements
        .iter()
        .filter(|placed| placed.worker == busiest && placed.load > 0 && placed.load <= gap / 2)
        .max_by_key(|placed| placed.load)
        .map(|placed| Move { port: placed.port, queue: placed.queue, to: idlest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(port: u16, worker: usize, load: u64) -> Placement {
        Placement { port: PortId(port), queue: 0, worker, load }
    }

    #[test]
    fn a_new_queue_goes_to_the_least_loaded_worker() {
        let placements = [placed(1, 0, 10), placed(2, 1, 5), placed(3, 1, 0)];
        assert_eq!(least_loaded(&placements, 2), 1);
        assert_eq!(least_loaded(&placements, 3), 2);
    }

    #[test]
    fn two_busy_queues_on_one_worker_are_separated() {
        let placements = [placed(1, 0, 50_000), placed(2, 0, 50_000), placed(3, 1, 0)];
        let moved = rebalance(&placements, 2).expect("the gap is large");
        assert_eq!(moved.to, 1);
    }

    #[test]
    fn a_single_busy_queue_stays_where_it_is() {
        let placements = [placed(1, 0, 100_000), placed(2, 1, 0)];
        assert_eq!(rebalance(&placements, 2), None);
    }

    #[test]
    fn small_loads_move_no_queue() {
        let placements = [placed(1, 0, 300), placed(2, 0, 300)];
        assert_eq!(rebalance(&placements, 2), None);
    }

    #[test]
    fn rebalancing_converges() {
        let mut placements: Vec<Placement> =
            (1..=7).map(|n| placed(n, 0, u64::from(n) * 3_000)).collect();
        for _ in 0..20 {
            let Some(moved) = rebalance(&placements, 3) else { return };
            let queue = placements.iter_mut().find(|p| p.port == moved.port);
            queue.expect("a known queue moves").worker = moved.to;
        }
        panic!("still moving after 20 steps: {placements:?}");
    }
}
