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
/// Exact up to `EXACT_FLOWS` flows; by how much more of them are uneven falls with the root of
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
