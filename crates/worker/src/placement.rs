//! Which worker owns which queue.

use std::time::Duration;

use ringway_datapath::words;
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
    /// only queue goes to the least loaded worker, and later to the worker that it sends most of
    /// its frames to, as long as that worker has time for it. A saturated worker hands a queue to
    /// one with spare time.
    #[default]
    Balanced,
}

words! {
    Policy { PerQueue = "per-queue", Static = "static", Balanced = "balanced" }
    else |text| format!("{text:?} is not a policy: expected per-queue, static or balanced")
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
    /// Its frames, in both directions.
    pub(crate) load: u64,
    /// Those that it sent.
    pub(crate) sent: u64,
    /// Of these, the ones for only queues of the worker `towards`.
    pub(crate) hops: u64,
    /// The other worker that most of them went to.
    pub(crate) towards: usize,
}

impl Talk {
    /// Whether fewer frames would change workers if the queue moved.
    ///
    /// If a port is the other end of all that this one sends and receives, half of its load hops.
    /// The part of its load that does not hop must be no larger, because it could begin to; the
    /// counts of both directions are not read at one instant. Of what it sends, most must hop: a
    /// port that sends the same amount to two workers would move back and forth.
    fn is_worthwhile(&self) -> bool {
        self.towards != self.worker
            && self.hops >= WORTH_MOVING
            && self.hops * 32 >= self.load * 15
            && self.hops * 4 >= self.sent * 3
    }
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

/// The one move after which most frames no longer change workers, if it is worthwhile and that
/// worker has time.
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
        .filter(|talk| talk.is_worthwhile() && has_time(talk))
        .max_by_key(|talk| talk.hops)
        .map(|talk| Move { port: talk.port, queue: 0, to: talk.towards })
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

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

    /// A port of which half of the load is sent, or as much as hops.
    fn talk(port: u16, worker: usize, load: u64, hops: u64, towards: usize) -> Talk {
        Talk { port: PortId(port), worker, load, sent: hops.max(load / 2), hops, towards }
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
    fn a_port_that_sends_to_several_workers_alike_stays() {
        let placements = [placed(1, 0, 10_000), placed(2, 1, 5_000), placed(3, 2, 5_000)];
        let half = Talk { sent: 10_000, ..talk(1, 0, 10_000, 5_000, 1) };
        assert_eq!(gather(&[half], &placements, &busy(&[9, 9, 9])), None);
        let most = Talk { hops: 7_500, ..half };
        assert!(gather(&[most], &placements, &busy(&[9, 9, 9])).is_some());
    }

    /// Ports with constant traffic between them: `sent[from][to]` frames in each comparison.
    struct Traffic {
        sent: Vec<Vec<u64>>,
        worker: Vec<usize>,
        workers: usize,
    }

    impl Traffic {
        /// Some ports that send to a few others each, and get some frames back.
        fn random(random: &mut Rng) -> Traffic {
            let workers = random.usize(2..=6);
            let ports = random.usize(2..=12);
            let mut sent = vec![vec![0; ports]; ports];
            for _ in 0..random.usize(1..=2 * ports) {
                let (from, to) = (random.usize(0..ports), random.usize(0..ports));
                if to != from {
                    let frames = random.u64(0..=4) * 5_000;
                    sent[from][to] += frames;
                    sent[to][from] += frames * random.u64(0..=2) / 2;
                }
            }
            let worker = (0..ports).map(|_| random.usize(0..workers)).collect();
            Traffic { sent, worker, workers }
        }

        fn load(&self, port: usize) -> u64 {
            self.sent[port].iter().sum::<u64>() + self.sent.iter().map(|to| to[port]).sum::<u64>()
        }

        fn sent_to_worker(&self, port: usize, worker: usize) -> u64 {
            let to = self.sent[port].iter().zip(&self.worker);
            to.filter(|(_, at)| **at == worker).map(|(frames, _)| frames).sum()
        }

        fn hops(&self) -> u64 {
            let local = (0..self.worker.len()).map(|it| self.sent_to_worker(it, self.worker[it]));
            self.sent.iter().flatten().sum::<u64>() - local.sum::<u64>()
        }

        fn talks(&self) -> Vec<Talk> {
            let talk = |port: usize| {
                let worker = self.worker[port];
                let others = (0..self.workers).filter(|other| *other != worker);
                let towards = others.max_by_key(|other| self.sent_to_worker(port, *other))?;
                Some(Talk {
                    port: PortId(u16::try_from(port).ok()?),
                    worker,
                    load: self.load(port),
                    sent: self.sent[port].iter().sum(),
                    hops: self.sent_to_worker(port, towards),
                    towards,
                })
            };
            (0..self.worker.len()).filter_map(talk).collect()
        }

        fn placements(&self) -> Vec<Placement> {
            let ports = 0..u16::try_from(self.worker.len()).expect("few ports");
            ports.map(|port| placed(port, self.worker[usize::from(port)], 100)).collect()
        }
    }

    #[test]
    fn under_constant_traffic_gathering_comes_to_rest() {
        let idle = |workers| busy(&vec![1; workers]);
        for seed in 0..2_000 {
            let mut traffic = Traffic::random(&mut Rng::with_seed(seed));
            let before = traffic.hops();
            let mut moves = 0;
            while let Some(moved) =
                gather(&traffic.talks(), &traffic.placements(), &idle(traffic.workers))
            {
                traffic.worker[usize::from(moved.port.0)] = moved.to;
                moves += 1;
                assert!(moves <= 3 * traffic.worker.len(), "seed {seed} still moves");
            }
            // The tolerance for counts that are not read at one instant allows a few more.
            let most = before + before / 8;
            assert!(traffic.hops() <= most, "seed {seed}: more frames change workers");
        }
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
