//! How flows fall on queues if each picks its queue at random, exactly.

use std::cmp::Ordering;

use ringway_stats::float;

/// With more flows there are more splits than a figure can show.
pub const FLOWS_MAX: usize = 24;

/// One way in which flows can be split over queues.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// Flows per queue, the fullest first, without empty queues: 2, 1, 1.
    pub parts: Vec<usize>,
    /// How probable it is.
    pub probability: f64,
}

/// All splits of flows over queues, the most uneven first; their probabilities sum to 1. Empty for
/// more than [`FLOWS_MAX`] flows, or without queues.
pub fn splits(flows: usize, queues: usize) -> Vec<Split> {
    if flows == 0 || flows > FLOWS_MAX || queues == 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    partitions(flows, flows, queues, &mut Vec::new(), &mut found);
    let split = |parts: Vec<usize>| Split { probability: probability(&parts, queues), parts };
    found.into_iter().map(split).collect()
}

/// Ways to write `left` as at most `queues` parts, none above `part_max`.
fn partitions(
    left: usize,
    part_max: usize,
    queues: usize,
    parts: &mut Vec<usize>,
    found: &mut Vec<Vec<usize>>,
) {
    if left == 0 {
        found.push(parts.clone());
    } else if queues > 0 {
        for part in (1..=part_max.min(left)).rev() {
            parts.push(part);
            partitions(left - part, part, queues - 1, parts, found);
            parts.pop();
        }
    }
}

/// Ways to deal the flows to the parts, times ways to assign the parts to queues, divided by all
/// ways to place flows on queues.
fn probability(parts: &[usize], queues: usize) -> f64 {
    let flows: usize = parts.iter().sum();
    let dealt: f64 = parts.iter().map(|part| ln_factorial(*part)).sum();
    let alike: f64 = parts.chunk_by(|a, b| a == b).map(|group| ln_factorial(group.len())).sum();
    let empty = ln_factorial(queues - parts.len());
    let ways = ln_factorial(flows) - dealt + ln_factorial(queues) - alike - empty;
    (ways - float(flows) * float(queues).ln()).exp()
}

fn ln_factorial(n: usize) -> f64 {
    (2..=n).map(|factor| float(factor).ln()).sum()
}

/// The mean number of queues that have any flow.
pub fn busy_mean(flows: usize, queues: usize) -> f64 {
    if queues == 0 {
        return 0.0;
    }
    let missed = (1.0 - 1.0 / float(queues)).powf(float(flows));
    float(queues) * (1.0 - missed)
}

/// The probability of each number of queues that have any flow, from 0 to `queues`. Flows are added
/// one by one: each falls on a queue that is busy already, or on another.
pub fn busy(flows: usize, queues: usize) -> Vec<f64> {
    let mut odds = vec![0.0; queues + 1];
    odds[0] = 1.0;
    for _ in 0..flows.min(queues * FLOWS_PER_QUEUE_MAX) {
        for count in (0..=queues).rev() {
            let stays = odds[count] * float(count) / float(queues);
            let joins = match count {
                0 => 0.0,
                _ => odds[count - 1] * float(queues + 1 - count) / float(queues),
            };
            odds[count] = stays + joins;
        }
    }
    odds
}

/// The split in the middle of all that keep so many queues busy, the fullest first: the quantiles
/// of what a queue has, which is one flow, and of all others those that fall on it.
pub fn typical(flows: usize, busy: usize) -> Vec<usize> {
    let busy = busy.min(flows);
    if busy < 2 {
        return vec![flows; busy];
    }
    let (others, chance) = (flows - busy, 1.0 / float(busy));
    // In logarithms, because the least of many probabilities are 0 else.
    let (mut taken, mut ln_odds) = (0, float(others) * (1.0 - chance).ln());
    let mut below = ln_odds.exp();
    let mut parts = Vec::with_capacity(busy);
    for place in 0..busy {
        let quantile = (float(place) + 0.5) / float(busy);
        while taken < others && below < quantile {
            let ratio = float(others - taken) / float(taken + 1) * chance / (1.0 - chance);
            ln_odds += ratio.ln();
            below += ln_odds.exp();
            taken += 1;
        }
        parts.push(1 + taken);
    }
    parts.reverse();
    // Rounding leaves a few flows over, or has taken too many.
    for place in (0..busy).cycle() {
        match parts.iter().sum::<usize>().cmp(&flows) {
            Ordering::Equal => break,
            Ordering::Less => parts[place] += 1,
            Ordering::Greater => parts[place] = (parts[place] - 1).max(1),
        }
    }
    parts.sort_unstable_by(|a, b| b.cmp(a));
    parts
}

/// With more flows for each queue, all queues are busy as far as a number can say.
const FLOWS_PER_QUEUE_MAX: usize = 100;

/// What the fullest of `queues` carries over the mean, on average, if all flows have the same rate.
/// Exact up to [`EXACT_FLOWS`] flows; by how much more of them are uneven falls with the root of
/// their number.
pub fn fullest_mean(flows: usize, queues: usize) -> f64 {
    if flows > EXACT_FLOWS {
        let exact = fullest_mean(EXACT_FLOWS, queues);
        return 1.0 + (exact - 1.0) * (float(EXACT_FLOWS) / float(flows)).sqrt();
    }
    let above = (0..flows).map(|most| 1.0 - none_above(flows, queues, most));
    let fullest: f64 = above.take_while(|probability| *probability > NEVER).sum();
    fullest * float(queues) / float(flows)
}

/// Flows up to which the fullest queue is counted: with more, that takes milliseconds.
const EXACT_FLOWS: usize = 128;
/// A probability that does not count.
const NEVER: f64 = 1e-12;

/// The probability that no queue has more than `most` flows. What queues have are independent
/// Poisson numbers of which the sum is known: so it is the probability of that sum where none of
/// them is above `most`, over that of the sum.
fn none_above(flows: usize, queues: usize, most: usize) -> f64 {
    let mut one = poisson(float(flows) / float(queues), flows);
    one[most + 1..].fill(0.0);
    sums(one, queues)[flows] / poisson(float(flows), flows)[flows]
}

/// The probability of each Poisson number up to `most`.
fn poisson(mean: f64, most: usize) -> Vec<f64> {
    let mut last = (-mean).exp();
    let next = |number: usize| {
        if number > 0 {
            last *= mean / float(number);
        }
        last
    };
    (0..=most).map(next).collect()
}

/// The probability of each sum of so many numbers, of which each has these probabilities.
fn sums(one: Vec<f64>, count: usize) -> Vec<f64> {
    let mut all = vec![0.0; one.len()];
    all[0] = 1.0;
    // Of 1, 2, 4 and more numbers.
    let (mut some, mut left) = (one, count);
    while left > 0 {
        if left % 2 == 1 {
            all = added(&all, &some);
        }
        some = added(&some, &some);
        left /= 2;
    }
    all
}

/// The probability of each sum of two numbers.
fn added(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; one.len()];
    for (at, first) in one.iter().enumerate() {
        sums[at..].iter_mut().zip(other).for_each(|(sum, second)| *sum += first * second);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flows of each queue, the fullest first, for every way to place them.
    fn every_way(flows: u32, queues: usize) -> Vec<Vec<usize>> {
        let place = |mut way: usize| {
            let mut parts = vec![0; queues];
            for _ in 0..flows {
                parts[way % queues] += 1;
                way /= queues;
            }
            parts.sort_unstable_by(|a, b| b.cmp(a));
            parts
        };
        (0..queues.pow(flows)).map(place).collect()
    }

    const SMALL: [(u32, usize); 6] = [(1, 1), (1, 4), (2, 2), (4, 4), (5, 3), (6, 4)];

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn all_odds_agree_with_counting_every_way() {
        for (flows, queues) in SMALL {
            let ways = every_way(flows, queues);
            let part = |count: usize| float(count) / float(ways.len());
            let flows = usize::try_from(flows).expect("small");
            for split in splits(flows, queues) {
                let mut padded = split.parts.clone();
                padded.resize(queues, 0);
                let counted = ways.iter().filter(|parts| **parts == padded).count();
                assert!(close(split.probability, part(counted)), "{split:?}");
            }
            let busy_of = |parts: &[usize]| parts.iter().filter(|part| **part > 0).count();
            for (number, odds) in busy(flows, queues).iter().enumerate() {
                let counted = ways.iter().filter(|parts| busy_of(parts) == number).count();
                assert!(close(*odds, part(counted)), "{number} of {queues} busy");
            }
            let busy: usize = ways.iter().map(|parts| busy_of(parts)).sum();
            assert!(close(busy_mean(flows, queues), part(busy)));
            let fullest: usize = ways.iter().map(|parts| parts[0]).sum();
            let over_mean = part(fullest) * float(queues) / float(flows);
            assert!(close(fullest_mean(flows, queues), over_mean), "{flows} on {queues}");
        }
    }

    #[test]
    fn odds_sum_to_one_and_splits_have_the_same_busy_queues() {
        for (flows, queues) in [(1, 8), (8, 4), (8, 8), (12, 3), (24, 8)] {
            let splits = splits(flows, queues);
            let sum: f64 = splits.iter().map(|split| split.probability).sum();
            assert!(close(sum, 1.0), "{flows} on {queues}: {sum}");
            for (number, odds) in busy(flows, queues).iter().enumerate() {
                let with = splits.iter().filter(|split| split.parts.len() == number);
                assert!(close(*odds, with.map(|split| split.probability).sum()));
            }
        }
        assert!(splits(FLOWS_MAX + 1, 2).is_empty() && splits(2, 0).is_empty());
        assert_eq!((busy(3, 0), busy(0, 2)), (vec![1.0], vec![1.0, 0.0, 0.0]));
        assert!(close(busy(usize::MAX, 4)[4], 1.0));
        assert!(close(busy_mean(3, 0), 0.0));
    }

    #[test]
    fn a_typical_split_has_all_flows_and_is_as_uneven_as_most() {
        for (flows, busy) in [(1, 1), (3, 3), (13, 8), (24, 7), (1000, 64), (10_000, 2)] {
            let parts = typical(flows, busy);
            assert_eq!((parts.len(), parts.iter().sum::<usize>()), (busy, flows), "{parts:?}");
            assert!(parts.is_sorted_by(|a, b| a >= b) && parts[busy - 1] > 0, "{parts:?}");
        }
        assert_eq!(typical(16, 7), [4, 3, 3, 2, 2, 1, 1]);
        assert_eq!((typical(2, 5), typical(0, 5), typical(5, 0)), (vec![1, 1], vec![], vec![]));
    }

    #[test]
    fn the_fullest_of_many_flows_is_counted_and_of_more_continues_that() {
        // By coefficients of powers of exponential series that end.
        for (flows, queues, mean) in [(32, 8, 1.761_946), (64, 4, 1.262_623), (128, 64, 2.983_661)]
        {
            let found = fullest_mean(flows, queues);
            assert!((found - mean).abs() < 1e-5, "{flows} on {queues}: {found}");
        }
        for queues in [2, 8, 64, 1 << 30] {
            let [exact, near] = [0, 1].map(|more| fullest_mean(EXACT_FLOWS + more, queues));
            assert!(near < exact && near > exact * 0.99, "{queues}: {exact} {near}");
        }
    }
}
