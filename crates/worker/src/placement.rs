//! Which worker owns which queue.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

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
    /// only queue goes to the least loaded worker, and later to the worker of the port that it
    /// exchanges most frames with, as long as that worker has time for both. A saturated worker
    /// hands a queue to one with spare time.
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

/// The only queue of a port, whose frames change workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) port: PortId,
    pub(crate) worker: usize,
    /// Its load, in frames.
    pub(crate) load: u64,
    /// Those that it sent to only queues of other workers.
    pub(crate) hops: u64,
    /// The worker that most of these went to.
    pub(crate) towards: usize,
}

/// How busy workers were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Busy {
    /// During this time.
    pub(crate) elapsed: Duration,
    /// Each of them, in order.
    pub(crate) of: Vec<Duration>,
}

impl Busy {
    pub(crate) fn is_any_above(&self, percent: u32) -> bool {
        self.of.iter().any(|&busy| self.is_above(busy, percent))
    }

    fn is_above(&self, busy: Duration, percent: u32) -> bool {
        busy * 100 > self.elapsed * percent
    }
}

/// Load below which no queue is moved: a few frames do not justify a move.
const WORTH_MOVING: u64 = 1000;
/// Percentage of its time that a worker may be busy after it got a queue from another worker: well
/// below what counts as saturated, so that the queue can stay.
const GATHERED_PERCENT: u32 = 60;

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

/// The one move after which most frames no longer change workers, if it is worthwhile.
///
/// A queue moves only if at least about half of its load is frames that it sends to the other
/// worker. Its load includes the frames that it receives, so no move makes more frames change
/// workers than before.
pub(crate) fn gather(talks: &[Talk], placements: &[Placement], busy: &Busy) -> Option<Move> {
    let load_of = |worker: usize| -> u64 {
        placements.iter().filter(|p| p.worker == worker).map(|p| p.load).sum()
    };
    let has_time = |talk: &Talk| {
        let (Some(from), Some(to)) = (busy.of.get(talk.worker), busy.of.get(talk.towards)) else {
            return false;
        };
        let total = u128::from(load_of(talk.worker).max(1));
        let share = from.as_nanos() * u128::from(talk.load) / total;
        let share = Duration::from_nanos(u64::try_from(share).unwrap_or(u64::MAX));
        !busy.is_above(to.saturating_add(share), GATHERED_PERCENT)
    };
    talks
        .iter()
        .filter(|talk| talk.towards != talk.worker && talk.hops >= WORTH_MOVING)
        .filter(|talk| talk.hops >= talk.load * 15 / 32)
        .filter(|talk| has_time(talk))
        .max_by_key(|talk| talk.hops)
        .map(|talk| Move { port: talk.port, queue: 0, to: talk.towards })
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

    fn talk(port: u16, worker: usize, load: u64, hops: u64, towards: usize) -> Talk {
        Talk { port: PortId(port), worker, load, hops, towards }
    }

    fn busy(percent: &[u64]) -> Busy {
        let of = percent.iter().map(|&percent| Duration::from_millis(percent * 10)).collect();
        Busy { elapsed: Duration::from_secs(1), of }
    }

    #[test]
    fn a_queue_moves_to_the_worker_that_half_of_its_frames_go_to() {
        // Port 2 sends to port 1, which responds with few frames.
        let placements = [placed(1, 0, 12_000), placed(2, 1, 12_000), placed(3, 1, 50)];
        let talks = [talk(1, 0, 12_000, 2_000, 1), talk(2, 1, 12_000, 10_000, 0)];
        let moved = gather(&talks, &placements, &busy(&[20, 30]));
        assert_eq!(moved, Some(Move { port: PortId(2), queue: 0, to: 0 }));
        // Port 1 also serves ports of its own worker: it stays.
        assert_eq!(gather(&talks[..1], &placements, &busy(&[20, 30])), None);
    }

    #[test]
    fn no_queue_moves_to_a_worker_without_time_for_it() {
        let placements = [placed(1, 0, 10_000), placed(2, 1, 10_000), placed(3, 1, 30_000)];
        let talks = [talk(2, 1, 10_000, 10_000, 0)];
        assert!(gather(&talks, &placements, &busy(&[49, 40])).is_some(), "a quarter of 40 fits");
        assert_eq!(gather(&talks, &placements, &busy(&[51, 40])), None);
    }

    #[test]
    fn a_few_hops_move_no_queue() {
        let placements = [placed(1, 0, 900), placed(2, 1, 900)];
        assert_eq!(gather(&[talk(2, 1, 900, 900, 0)], &placements, &busy(&[1, 1])), None);
        // A port that sends most of its frames elsewhere, on its own worker.
        let talks = [talk(2, 1, 9_000, 3_000, 0)];
        assert_eq!(gather(&talks, &placements, &busy(&[1, 1])), None);
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
