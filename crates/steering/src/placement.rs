//! Streams for given queues: steering, backwards.
//!
//! How streams fall on queues is the largest systematic uncertainty of a multi-queue measurement:
//! four streams on four queues may use one queue or all of them. Here the source ports are chosen
//! so that the streams fall as wanted. For tests and measurements; it allocates and searches.

use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::{FlowTuple, QueueIndex};

/// Source ports, all different and none below `port_min`, such that stream `i` of them falls on
/// queue `wanted[i]` by `steer` (for the default algorithm, [`queue_of`](crate::queue_of) of
/// [`FlowTuple::hash`]). All else is taken from `template`, whose own source port is ignored.
///
/// `None` if the ports do not suffice, or a wanted queue does not exist.
pub fn source_ports(
    template: FlowTuple,
    wanted: &[QueueIndex],
    port_min: u16,
    steer: impl Fn(&FlowTuple) -> QueueIndex,
) -> Option<Vec<u16>> {
    let mut open: Vec<usize> = (0..wanted.len()).rev().collect();
    let mut ports = vec![0; wanted.len()];
    for port in port_min..=u16::MAX {
        if open.is_empty() {
            break;
        }
        let queue = steer(&FlowTuple { src: SocketAddr::new(template.src.ip(), port), ..template });
        // The earliest stream that still wants this queue.
        if let Some(at) = open.iter().rposition(|&stream| wanted[stream] == queue) {
            ports[open.remove(at)] = port;
        }
    }
    open.is_empty().then_some(ports)
}

/// Streams placed on queues 0, 1, … in turn: as evenly as possible.
pub fn spread(streams: usize, queues: u16) -> Vec<QueueIndex> {
    (0..queues).map(QueueIndex).cycle().take(streams).collect()
}

/// The queues that make a given split: `[2, 1, 1]` puts two streams on queue 0 and one each on
/// queues 1 and 2. Streams of one queue follow each other.
pub fn from_split(split: &[usize]) -> Vec<QueueIndex> {
    let queues = (0..u16::MAX).map(QueueIndex).zip(split);
    queues.flat_map(|(queue, &streams)| core::iter::repeat_n(queue, streams)).collect()
}

/// How streams are split over queues, the fullest first: `[2, 1, 1]` for four streams of which
/// two share a queue. Queues without streams are left out.
pub fn split_of(placement: &[QueueIndex]) -> Vec<usize> {
    let mut sorted = placement.to_vec();
    sorted.sort_unstable();
    let mut split: Vec<usize> = sorted.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
    split.sort_unstable_by(|a, b| b.cmp(a));
    split
}

#[cfg(test)]
mod tests {
    use ringway_datapath::headers::Transport;

    use super::*;
    use crate::{FlowKey, queue_of};

    const KEY: FlowKey = FlowKey::new([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);

    #[test]
    fn any_split_of_streams_can_be_enforced() {
        for transport in [Transport::Tcp, Transport::Udp] {
            for (src, dst) in [("10.0.0.1:0", "10.0.0.2:5201"), ("[fd00::1]:0", "[fd00::2]:5201")] {
                let template =
                    FlowTuple { src: src.parse().unwrap(), dst: dst.parse().unwrap(), transport };
                let most = if cfg!(miri) { 2 } else { 16 };
                for split in
                    [vec![4], vec![3, 1], vec![2, 2], vec![2, 1, 1], vec![1; 4], vec![most; most]]
                {
                    let queues = 16;
                    let wanted = from_split(&split);
                    let steer = |tuple: &FlowTuple| queue_of(Some(tuple.hash(KEY)), queues);
                    let ports = source_ports(template, &wanted, 32_768, steer).unwrap();
                    let got: Vec<QueueIndex> = ports
                        .iter()
                        .map(|&port| {
                            let src = SocketAddr::new(template.src.ip(), port);
                            steer(&FlowTuple { src, ..template })
                        })
                        .collect();
                    assert_eq!(got, wanted);
                    assert_eq!(split_of(&got), split);
                    let mut unique = ports.clone();
                    unique.sort_unstable();
                    unique.dedup();
                    assert_eq!(unique.len(), ports.len());
                    assert!(ports.iter().all(|&port| port >= 32_768));
                }
            }
        }
    }

    #[test]
    fn a_split_over_missing_queues_is_refused() {
        let template = FlowTuple {
            src: "10.0.0.1:0".parse().unwrap(),
            dst: "10.0.0.2:1".parse().unwrap(),
            transport: Transport::Tcp,
        };
        let steer = |tuple: &FlowTuple| queue_of(Some(tuple.hash(KEY)), 4);
        assert_eq!(source_ports(template, &[QueueIndex(4)], 65_000, steer), None);
        assert_eq!(source_ports(template, &[], 0, steer), Some(vec![]));
    }

    #[test]
    fn streams_are_spread_evenly() {
        assert_eq!(split_of(&spread(8, 4)), [2, 2, 2, 2]);
        assert_eq!(split_of(&spread(3, 4)), [1, 1, 1]);
        assert_eq!(spread(3, 0), []);
    }
}
