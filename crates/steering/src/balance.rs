//! Which flows should move to other queues: where a queue cannot keep up while others of its port
//! idle, some of its flows belong there.
//!
//! Flows are moved by *bucket*: hashes with the same upper bits. A table has the queue of each
//! bucket, at first that of [`queue_of`]. When and how a bucket may move, so that no flow is
//! reordered, is a matter of the caller.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::{QueueIndex, queue_of};

/// Entries of a table: four for each queue of a port with 64.
pub const BUCKETS: usize = 1 << BITS;
const BITS: u32 = 8;

/// The bucket of a hash.
#[inline]
pub fn bucket_of(flow: u32) -> usize {
    usize::try_from(flow >> (u32::BITS - BITS)).unwrap_or_default()
}

/// The queue of a bucket at first: of all its hashes, or the first of them if there is no such
/// queue.
pub fn first_queue(bucket: usize, queues: u16) -> QueueIndex {
    let first = u32::try_from(bucket).unwrap_or_default() << (u32::BITS - BITS);
    queue_of(Some(first), queues)
}

/// An entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// Its queue.
    pub queue: u16,
    /// What was sent to it in an interval.
    pub bytes: u64,
}

/// Buckets that should leave a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relief {
    /// The queue.
    pub from: u16,
    /// Each of them, and its next queue.
    pub moves: Vec<(usize, u16)>,
}

/// What should leave a queue that cannot keep up, if others with less can: the fullest queue of
/// which something should. `saturated` says of each queue whether it cannot keep up.
///
/// The heaviest bucket stays: alone, it fills a queue wherever it is. Each other one moves if its
/// next queue then has less than this one had, by half of the bucket at least. Those without
/// traffic move, too, so that new flows begin elsewhere.
pub fn relieve(buckets: &[Bucket], saturated: &[bool]) -> Option<Relief> {
    let mut loads = vec![0; saturated.len()];
    for bucket in buckets {
        *loads.get_mut(usize::from(bucket.queue))? += bucket.bytes;
    }
    let (mut full, idle): (Vec<u16>, Vec<u16>) =
        (0..).take(saturated.len()).partition(|queue| saturated[usize::from(*queue)]);
    full.sort_by_key(|queue| Reverse(loads[usize::from(*queue)]));
    full.into_iter().find_map(|from| {
        let moves = moves_from(from, buckets, &idle, loads.clone());
        (!moves.is_empty()).then_some(Relief { from, moves })
    })
}

/// The buckets that should leave a queue for some of the idle ones.
fn moves_from(
    from: u16,
    buckets: &[Bucket],
    idle: &[u16],
    mut loads: Vec<u64>,
) -> Vec<(usize, u16)> {
    let at = usize::from(from);
    let less = |queue: &&u16| loads[usize::from(**queue)] < loads[at];
    let idle: Vec<u16> = idle.iter().filter(less).copied().collect();
    let mut own: Vec<usize> = (0..buckets.len()).filter(|it| buckets[*it].queue == from).collect();
    own.sort_by_key(|bucket| Reverse(buckets[*bucket].bytes));
    let mut in_turn = idle.iter().cycle();
    let mut moves = Vec::new();
    for bucket in own.into_iter().skip(1) {
        let bytes = buckets[bucket].bytes;
        let emptiest = || idle.iter().min_by_key(|queue| loads[usize::from(**queue)]);
        let Some(&to) = (if bytes == 0 { in_turn.next() } else { emptiest() }) else { break };
        if 2 * loads[usize::from(to)] + 3 * bytes <= 2 * loads[at] {
            loads[at] -= bytes;
            loads[usize::from(to)] += bytes;
            moves.push((bucket, to));
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of flows that each send as much, in buckets of the first queue of as many.
    fn table(queues: u16) -> Vec<Bucket> {
        let queue = |bucket| first_queue(bucket, queues).0;
        (0..BUCKETS).map(|bucket| Bucket { queue: queue(bucket), bytes: 0 }).collect()
    }

    /// Bytes of each queue.
    fn loads(buckets: &[Bucket], queues: u16) -> Vec<u64> {
        let of = |queue| buckets.iter().filter(move |it| it.queue == queue).map(|it| it.bytes);
        (0..queues).map(|queue| of(queue).sum()).collect()
    }

    /// Relieves queues that have more than `enough`, until none has to be. Returns the bytes of
    /// each.
    fn settle(buckets: &mut [Bucket], queues: u16, enough: u64) -> Vec<u64> {
        for _ in 0..64 {
            let loads = loads(buckets, queues);
            let saturated: Vec<bool> = loads.iter().map(|load| *load > enough).collect();
            let Some(Relief { from, moves }) = relieve(buckets, &saturated) else { return loads };
            for (bucket, to) in moves {
                assert_eq!(buckets[bucket].queue, from, "it was there");
                assert!(to != from && !saturated[usize::from(to)]);
                buckets[bucket].queue = to;
            }
        }
        panic!("buckets move for ever: {:?}", loads(buckets, queues));
    }

    #[test]
    fn a_table_begins_with_the_queues_of_the_default_hash() {
        for queues in [1, 2, 4, 8, 64, 256] {
            for hash in (0..=u32::MAX).step_by(0x00FF_FFF1) {
                let queue = first_queue(bucket_of(hash), queues);
                assert_eq!(queue, queue_of(Some(hash), queues), "{hash:#x} of {queues}");
            }
        }
        assert_eq!((bucket_of(u32::MAX), first_queue(BUCKETS - 1, 3)), (255, QueueIndex(2)));
        assert_eq!(first_queue(7, 0), QueueIndex(0));
    }

    #[test]
    fn eight_flows_of_one_queue_end_as_two_on_each_of_four() {
        let mut buckets = table(4);
        buckets[..8].iter_mut().for_each(|bucket| bucket.bytes = 100);
        assert_eq!(loads(&buckets, 4), [800, 0, 0, 0]);
        assert_eq!(settle(&mut buckets, 4, 100), [200; 4]);
        assert_eq!(buckets[0].queue, 0, "the first one stays");
    }

    #[test]
    fn splits_of_four_flows_on_four_queues_end_with_one_on_each() {
        for split in [&[4, 0, 0, 0][..], &[3, 1, 0, 0], &[2, 2, 0, 0], &[2, 1, 1, 0], &[1; 4]] {
            let mut buckets = table(4);
            for (queue, flows) in split.iter().enumerate() {
                buckets[queue * 64..][..*flows].iter_mut().for_each(|bucket| bucket.bytes = 10);
            }
            assert_eq!(settle(&mut buckets, 4, 10), [10; 4], "{split:?}");
        }
    }

    #[test]
    fn a_queue_that_keeps_up_or_has_one_flow_keeps_its_traffic() {
        let mut buckets = table(4);
        buckets[..8].iter_mut().for_each(|bucket| bucket.bytes = 100);
        assert_eq!(relieve(&buckets, &[false; 4]), None);
        assert_eq!(relieve(&buckets, &[true; 4]), None, "there is no idle one");
        let mut one = table(4);
        one[5].bytes = 100;
        let relief = relieve(&one, &[true, false, false, false]).expect("quiet buckets leave");
        assert!(relief.moves.iter().all(|(bucket, to)| *bucket != 5 && (1..4).contains(to)));
        assert_eq!(relief.moves.len(), 63, "so that a new flow does not join it");
        for (bucket, to) in relief.moves {
            one[bucket].queue = to;
        }
        assert_eq!(relieve(&one, &[true, false, false, false]), None);
    }

    #[test]
    fn a_flow_moves_only_where_that_makes_a_difference() {
        let mut buckets = table(2);
        (buckets[0].bytes, buckets[1].bytes) = (100, 90);
        for (other, moves) in [(0, true), (55, true), (56, false), (189, false)] {
            buckets[200].bytes = other;
            let relief = relieve(&buckets, &[true, false]).expect("quiet buckets leave");
            assert_eq!(relief.moves.contains(&(1, 1)), moves, "190 and {other}");
        }
        buckets[200].bytes = 190;
        assert_eq!(relieve(&buckets, &[true, false]), None, "it has as much");
        // A queue of which nothing can leave is no reason to leave another one full.
        let mut buckets = table(3);
        (buckets[0].bytes, buckets[90].bytes, buckets[91].bytes) = (500, 100, 100);
        (1..86).for_each(|bucket| buckets[bucket].queue = 2);
        let relief = relieve(&buckets, &[true, true, false]).expect("the second queue is full");
        assert_eq!((relief.from, relief.moves.contains(&(91, 2))), (1, true));
        assert_eq!(relieve(&buckets, &[true]), None, "a table of more queues");
    }

    /// What the fullest queue has, over the mean, approaches what it has if streams are placed.
    #[test]
    fn queues_of_random_flows_become_nearly_even() {
        let mut random = fastrand::Rng::with_seed(7);
        for (flows, queues) in [(4, 4), (8, 4), (8, 8), (16, 4), (24, 8)] {
            let (mut before, mut after) = (0, 0);
            for _ in 0..200 {
                let mut buckets = table(queues);
                (0..flows).for_each(|_| buckets[random.usize(..BUCKETS)].bytes += 1);
                before += loads(&buckets, queues).iter().max().expect("there are queues");
                let mean = flows / u64::from(queues);
                after += settle(&mut buckets, queues, mean).iter().max().expect("there are");
            }
            let ideal = 200 * flows / u64::from(queues);
            assert!(after * 100 <= ideal * 125, "{flows} on {queues}: {after}, ideal {ideal}");
            assert!(after < before, "{flows} on {queues}: {after} of {before}");
        }
    }
}
