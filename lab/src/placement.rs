//! How streams fall on queues: the distribution by chance, and how to choose it instead.
//!
//! Placement is the largest systematic uncertainty of a multi-queue measurement
//! (`multi-queue-study:placement`). Our own frontend's hash maps each stream to a queue, so source
//! ports decide the placement.

pub use ringway_model::placement::{Split, splits};
use ringway_steering::placement::{from_split, source_ports, spread};
use ringway_steering::{FlowKey, FlowTuple, QueueIndex, queue_of};

pub use crate::word::Placement;

/// Ports below are left to services.
const PORT_MIN: u16 = 20_000;
/// From here on, the kernel chooses ports itself, including for the tools' own connections.
const PORT_END: u16 = 32_768;

/// As in `2+1+1`.
pub fn name(parts: &[usize]) -> String {
    parts.iter().map(usize::to_string).collect::<Vec<_>>().join("+")
}

impl Placement {
    /// The queue of each stream in a repeat. The same seed and repeat give the same queues.
    pub fn queues(self, streams: usize, queues: u16, repeat: u32, seed: u64) -> Vec<QueueIndex> {
        let mut random = fastrand::Rng::with_seed(seed ^ (u64::from(repeat) << 32));
        let wanted = match self {
            Placement::Random | Placement::Balanced => {
                return (0..streams).map(|_| QueueIndex(random.u16(..queues.max(1)))).collect();
            }
            Placement::Ideal => spread(streams, queues),
            Placement::Stratified => {
                let splits = splits(streams, usize::from(queues));
                stratum(&splits, repeat)
                    .map_or_else(|| spread(streams, queues), |split| from_split(&split.parts))
            }
        };
        // Which queues are the full ones must not matter, so each repeat shuffles them.
        let mut names: Vec<u16> = (0..queues).collect();
        random.shuffle(&mut names);
        wanted.into_iter().map(|QueueIndex(at)| QueueIndex(names[usize::from(at)])).collect()
    }
}

/// The split of a repeat: each time the one furthest behind its probability.
fn stratum(splits: &[Split], repeat: u32) -> Option<&Split> {
    let mut counts = vec![0.0; splits.len()];
    let mut chosen = None;
    for round in 0..=repeat {
        let lag = |at: usize| splits[at].probability * f64::from(round + 1) - counts[at];
        chosen = (0..splits.len()).max_by(|&a, &b| lag(a).total_cmp(&lag(b)));
        counts[chosen?] += 1.0;
    }
    splits.get(chosen?)
}

/// Source ports, handed out one after another, so that no two streams of a run share one, and no
/// stream reuses one of a connection that lingers from an earlier run.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    next: u16,
    key: FlowKey,
}

impl Ports {
    /// From the first port on, for frontends with this key of flows.
    pub fn new(key: FlowKey) -> Ports {
        Ports { next: PORT_MIN, key }
    }

    /// A port that puts a stream on a queue of a frontend with default steering; `None` if no port
    /// does. Everything except the source port is taken from `template`.
    pub fn take(&mut self, template: FlowTuple, wanted: QueueIndex, queues: u16) -> Option<u16> {
        let steer = |tuple: &FlowTuple| queue_of(Some(tuple.hash(self.key)), queues);
        let from = |first| {
            let ports = source_ports(template, &[wanted], first, steer)?;
            ports.first().copied().filter(|port| *port < PORT_END)
        };
        let port = from(self.next).or_else(|| from(PORT_MIN))?;
        self.next = port + 1;
        Some(port)
    }
}

#[cfg(test)]
mod tests {
    use ringway_datapath::headers::Transport;
    use ringway_steering::placement::split_of;

    use super::*;

    #[test]
    fn four_streams_on_four_queues_split_as_computed() {
        let splits = splits(4, 4);
        let names: Vec<String> = splits.iter().map(|split| name(&split.parts)).collect();
        assert_eq!(names, ["4", "3+1", "2+2", "2+1+1", "1+1+1+1"]);
        let of_256 = [4.0, 48.0, 36.0, 144.0, 24.0];
        for (split, ways) in splits.iter().zip(of_256) {
            assert!((split.probability - ways / 256.0).abs() < 1e-12, "{split:?}");
        }
    }

    #[test]
    fn strata_come_as_often_as_they_are_probable() {
        let splits = splits(4, 4);
        let mut counts = vec![0.0; splits.len()];
        for repeat in 0..64 {
            let placed = Placement::Stratified.queues(4, 4, repeat, 7);
            let parts = split_of(&placed);
            counts[splits.iter().position(|split| split.parts == parts).unwrap()] += 1.0;
            for (split, count) in splits.iter().zip(&counts) {
                let expected = split.probability * f64::from(repeat + 1);
                assert!((count - expected).abs() < 1.5, "{repeat}: {split:?} {count}");
            }
        }
        assert_eq!(counts, [1.0, 12.0, 9.0, 36.0, 6.0]);
    }

    #[test]
    fn random_placement_splits_as_chance_does() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..40 {
            for repeat in 0..100 {
                let parts = split_of(&Placement::Random.queues(4, 4, repeat, seed));
                *counts.entry(parts).or_insert(0.0) += 1.0 / 4_000.0;
            }
        }
        for split in splits(4, 4) {
            let share = counts.get(&split.parts).copied().unwrap_or(0.0);
            assert!((share - split.probability).abs() < 0.03, "{split:?}: {share}");
        }
    }

    #[test]
    fn ports_put_streams_where_they_are_wanted_and_are_not_used_twice() {
        let template = FlowTuple {
            src: "10.0.0.1:0".parse().unwrap(),
            dst: "10.0.0.2:5201".parse().unwrap(),
            transport: Transport::Tcp,
        };
        let key = FlowKey::new([3, 4]);
        let mut ports = Ports::new(key);
        let mut used = std::collections::BTreeSet::new();
        for placement in [Placement::Random, Placement::Stratified, Placement::Ideal] {
            for repeat in 0..5 {
                let wanted = placement.queues(8, 8, repeat, 3);
                assert_eq!(wanted, placement.queues(8, 8, repeat, 3), "a seed repeats it");
                for queue in &wanted {
                    let port = ports.take(template, *queue, 8).expect("there are enough");
                    let src = std::net::SocketAddr::new(template.src.ip(), port);
                    let hash = FlowTuple { src, ..template }.hash(key);
                    assert_eq!(queue_of(Some(hash), 8), *queue);
                    assert!(used.insert(port), "{port} twice");
                }
                if placement == Placement::Ideal {
                    assert_eq!(split_of(&wanted), [1; 8]);
                }
            }
        }
        let mut last = Ports { next: PORT_END - 1, key };
        for _ in 0..50 {
            let port = last.take(template, QueueIndex(3), 8).expect("it begins again");
            assert!((PORT_MIN..PORT_END).contains(&port));
        }
    }
}
