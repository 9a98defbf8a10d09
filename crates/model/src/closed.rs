//! Flows with a window each, as a closed network of queues: what rounds the knee where queues fill
//! what they share.
//!
//! Each flow keeps some chunks of data moving: through its own queue, through one station that all
//! flows share, and through a delay in which nothing waits. With exponential service that network
//! has a product form, so throughput is a ratio of two sums over its states, and no simulation is
//! needed.

use std::f64::consts::E;

use ringway_stats::float;

/// Seconds that one chunk takes at each station.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// At the queue of its flow.
    pub own: f64,
    /// At the station that all share.
    pub shared: f64,
    /// In the delay.
    pub delay: f64,
}

impl Times {
    fn over(self, unit: f64) -> Times {
        let Times { own, shared, delay } = self;
        Times { own: own / unit, shared: shared / unit, delay: delay / unit }
    }
}

/// Chunks per second of each queue, in the order of `chunks`, which has how many chunks move
/// through each queue.
pub fn rates(chunks: &[usize], times: Times) -> Vec<f64> {
    let unit = unit(chunks, times);
    if unit <= 0.0 {
        return vec![f64::INFINITY; chunks.len()];
    }
    let times = times.over(unit);
    if times.shared <= 0.0 {
        return chunks.iter().map(|count| alone(*count, times) / unit).collect();
    }
    let all = constant(chunks, times);
    // Queues with equally many chunks have the same rate, and stand together in a split.
    let mut known: Option<(usize, f64)> = None;
    let rate = |at: usize| {
        let count = chunks[at];
        let rate = known.filter(|(of, _)| *of == count).map_or_else(
            || {
                let mut fewer = chunks.to_vec();
                fewer[at] = count.saturating_sub(1);
                let one_less = constant(&fewer, times);
                if count == 0 { 0.0 } else { one_less.over(all) / unit }
            },
            |(_, rate)| rate,
        );
        known = Some((count, rate));
        rate
    };
    (0..chunks.len()).map(rate).collect()
}

/// Chunks per second of all queues together. One sum says it: each chunk passes the shared station
/// once, and that works whenever it has one.
pub fn total(chunks: &[usize], times: Times) -> f64 {
    if times.shared <= 0.0 {
        return rates(chunks, times).iter().sum();
    }
    let unit = unit(chunks, times);
    let times = times.over(unit);
    let (at_shared, _) = at_shared(chunks, times);
    let working: f64 = at_shared.iter().skip(1).sum();
    working / at_shared.iter().sum::<f64>() / times.shared / unit
}

/// Seconds in which no sum over states is too large for a number, and none is 0: n chunks in the
/// delay have its n-th power over n! as their weight, and n! is about the n-th power of n / E.
fn unit(chunks: &[usize], times: Times) -> f64 {
    let most = chunks.iter().copied().max().unwrap_or(1).max(1);
    times.own.max(times.shared).max(times.delay * E / float(most))
}

/// The rate of a queue that shares nothing: the sums over its states with one chunk less, and with
/// all.
fn alone(count: usize, times: Times) -> f64 {
    let (mut fewer, mut all, mut delayed) = (0.0, 1.0, 1.0);
    for chunk in 1..=count {
        delayed *= times.delay / float(chunk);
        fewer = all;
        all = all * times.own + delayed;
    }
    fewer / all
}

/// A sum over states, as its logarithm and a number near 1.
#[derive(Debug, Clone, Copy)]
struct Scaled {
    value: f64,
    ln_scale: f64,
}

impl Scaled {
    fn over(self, other: Scaled) -> f64 {
        self.value / other.value * (self.ln_scale - other.ln_scale).exp()
    }
}

/// The normalisation constant.
fn constant(chunks: &[usize], times: Times) -> Scaled {
    let (at_shared, ln_scale) = at_shared(chunks, times);
    Scaled { value: at_shared.iter().sum(), ln_scale }
}

/// The weight of each number of chunks at the shared station, with the logarithm of what all are
/// to be multiplied by. Those chunks mix in any order: queues are added one by one, with the number
/// of ways to merge theirs into those that are there.
fn at_shared(chunks: &[usize], times: Times) -> (Vec<f64>, f64) {
    let mut at_shared = vec![1.0];
    let mut ln_scale = 0.0;
    for &count in chunks {
        let elsewhere = elsewhere(count, times);
        let mut next = vec![0.0; at_shared.len() + count];
        for (before, weight) in at_shared.iter().enumerate() {
            let mut ways = 1.0;
            let mut service = 1.0;
            for joining in 0..=count {
                if joining > 0 {
                    ways *= float(before + joining) / float(joining);
                    service *= times.shared;
                }
                next[before + joining] += weight * ways * service * elsewhere[count - joining];
            }
        }
        let largest = next.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        next.iter_mut().for_each(|weight| *weight /= largest);
        ln_scale += largest.ln();
        at_shared = next;
    }
    (at_shared, ln_scale)
}

/// For each number of chunks up to `count`: the sum over the ways in which so many are at their own
/// queue or in the delay.
fn elsewhere(count: usize, times: Times) -> Vec<f64> {
    let mut sums = vec![0.0; count + 1];
    let mut delayed = 1.0;
    for in_delay in 0..=count {
        if in_delay > 0 {
            delayed *= times.delay / float(in_delay);
        }
        let mut weight = delayed;
        for sum in &mut sums[in_delay..] {
            *sum += weight;
            weight *= times.own;
        }
    }
    sums
}
