//! Throughput from parameters: averaged over the ways in which flows fall on queues.

use ringway_stats::float;

use crate::closed::{Times, rates, total};
use crate::contention::Contention;
use crate::line::window_bps;
use crate::placement::{self, Split, typical};

/// What each flow keeps in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Its bytes.
    pub bytes: f64,
    /// The bytes that move as one: a segment before it is cut. 0 if they flow, so that nothing
    /// waits before a station is full.
    pub chunk: f64,
    /// Seconds for which nothing waits for a queue: wires, interrupts, acknowledgements.
    pub delay: f64,
}

impl Default for Window {
    /// The window of the published studies, 256 KiB, in segments of 64 KiB.
    fn default() -> Window {
        Window { bytes: 262_144.0, chunk: 65_536.0, delay: 50e-6 }
    }
}

/// Chunks of a flow's window that are distinguished.
const CHUNKS_MAX: usize = 32;

impl Window {
    /// Chunks of a flow, and bits in each.
    fn chunks(&self) -> (usize, f64) {
        let near = |count: &usize| float(*count) + 0.5 > self.bytes / self.chunk;
        let count = (1..CHUNKS_MAX).find(near).unwrap_or(CHUNKS_MAX);
        (count, self.bytes * 8.0 / float(count))
    }
}

/// How flows fall on queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Placed {
    /// Each picks its queue at random, as a hash does.
    #[default]
    Random,
    /// As evenly as possible.
    Evenly,
}

/// What one machine and its wire can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// What a busy queue carries if no other is busy, in bit/s.
    pub queue_bps: f64,
    /// What busy queues cost each other.
    pub contention: Contention,
    /// What all flows share: the wire, or CPUs; infinite without such a limit.
    pub shared_bps: f64,
    /// What each flow keeps in flight.
    pub window: Window,
}

/// What some flows should carry over some queues.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The mean over all placements, in bit/s.
    pub mean_bps: f64,
    /// The standard deviation by placement alone.
    pub sd_bps: f64,
    /// The mean number of busy queues.
    pub busy: f64,
    /// Each throughput with its probability, the least first.
    pub odds: Vec<(f64, f64)>,
}

impl Outcome {
    /// The probability of so much or more.
    pub fn reaches(&self, bps: f64) -> f64 {
        let reached = self.odds.iter().filter(|(value, _)| *value >= bps);
        // An empty sum is -0.
        0.0 + reached.map(|(_, probability)| probability).sum::<f64>()
    }
}

impl Parameters {
    /// What so many flows should carry over so many queues.
    pub fn outcome(&self, queues: usize, flows: usize, placed: Placed) -> Outcome {
        self.over(&ways(queues, flows, placed))
    }

    /// What flows should carry that were or will be split so over queues.
    pub fn over(&self, splits: &[Split]) -> Outcome {
        let mut odds = Vec::new();
        let mut busy = 0.0;
        for split in splits {
            odds.push((self.of_split(&split.parts), split.probability));
            busy += float(split.parts.len()) * split.probability;
        }
        odds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mean_bps: f64 = odds.iter().map(|(bps, part)| bps * part).sum();
        let square = |(bps, part): &(f64, f64)| (bps - mean_bps).powi(2) * part;
        let sd_bps = odds.iter().map(square).sum::<f64>().sqrt();
        Outcome { mean_bps, sd_bps, busy, odds }
    }

    /// Mean seconds for which a message that is too small to count waits in a random one of so many
    /// queues and where all share, behind flows that are split so. It sees what one chunk more
    /// would (the arrival theorem).
    pub fn waiting(&self, queues: usize, splits: &[Split]) -> f64 {
        let of_split = |parts: &[usize]| {
            let (chunks, times, _) = self.network(parts);
            let behind = |at: usize| {
                let mut more = chunks.clone();
                more.resize(chunks.len().max(at + 1), 0);
                more[at] += 1;
                float(more[at]) / rates(&more, times)[at] - times.own - times.shared - times.delay
            };
            (0..queues.max(1)).map(|at| behind(at.min(chunks.len()))).sum::<f64>()
        };
        let all = splits.iter().map(|split| of_split(&split.parts) * split.probability);
        all.sum::<f64>() / float(queues.max(1))
    }

    /// What flows carry that are split so over queues.
    fn of_split(&self, parts: &[usize]) -> f64 {
        if self.window.chunk <= 0.0 {
            return self.flowing(parts);
        }
        let (chunks, times, bits) = self.network(parts);
        total(&chunks, times) * bits
    }

    /// What they carry without any variation: each queue what it can or what windows allow, and all
    /// no more than what they share.
    fn flowing(&self, parts: &[usize]) -> f64 {
        let own = self.queue_bps * self.contention.efficiency(parts.len());
        let flow = window_bps(self.window.bytes, self.window.delay);
        let queues = parts.iter().map(|flows| own.min(float(*flows) * flow));
        queues.sum::<f64>().min(self.shared_bps)
    }

    /// Chunks of each queue, how long one takes, and its bits.
    fn network(&self, parts: &[usize]) -> (Vec<usize>, Times, f64) {
        let (per_flow, bits) = self.window.chunks();
        let total = parts.iter().sum::<usize>() * per_flow;
        // Many flows have coarser chunks, and as many bytes in flight.
        let merged = total.div_ceil(TOTAL_MAX).max(1);
        let chunks: Vec<usize> =
            parts.iter().map(|flows| (flows * per_flow).div_ceil(merged)).collect();
        let bits = bits * float(total) / float(chunks.iter().sum::<usize>().max(1));
        let own = bits / (self.queue_bps * self.contention.efficiency(parts.len()));
        let times = Times { own, shared: bits / self.shared_bps, delay: self.window.delay };
        (chunks, times, bits)
    }
}

/// Chunks of all flows that are distinguished.
const TOTAL_MAX: usize = 512;
/// Flows up to which each split counts; with more, a typical one stands for all that keep as many
/// queues busy.
const SPLIT_MAX: usize = 12;

/// The ways in which so many flows fall on so many queues.
pub fn ways(queues: usize, flows: usize, placed: Placed) -> Vec<Split> {
    if flows == 0 || queues == 0 {
        return Vec::new();
    }
    match placed {
        Placed::Evenly => vec![Split { parts: evenly(flows, queues.min(flows)), probability: 1.0 }],
        Placed::Random if flows <= SPLIT_MAX => placement::splits(flows, queues),
        Placed::Random => {
            let odds = placement::busy(flows, queues).into_iter().enumerate();
            let likely = odds.filter(|(_, probability)| *probability > UNLIKELY);
            let split = |(busy, probability)| Split { parts: typical(flows, busy), probability };
            likely.map(split).collect()
        }
    }
}

/// A number of busy queues that does not count.
const UNLIKELY: f64 = 1e-12;

fn evenly(flows: usize, queues: usize) -> Vec<usize> {
    let extra = flows.checked_rem(queues).unwrap_or(0);
    let each = flows.checked_div(queues).unwrap_or(0);
    (0..queues).map(|place| each + usize::from(place < extra)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Parameters = Parameters {
        queue_bps: 2e9,
        contention: Contention { serial: 0.0, pairwise: 0.0 },
        shared_bps: f64::INFINITY,
        window: Window { bytes: 4e6, chunk: 65_536.0, delay: 0.0 },
    };

    #[test]
    fn without_a_shared_limit_each_busy_queue_carries_its_own() {
        let outcome = PLAIN.outcome(4, 4, Placed::Random);
        let busy = placement::busy_mean(4, 4);
        assert!((outcome.busy - busy).abs() < 1e-9);
        assert!((outcome.mean_bps - busy * 2e9).abs() < 1.0, "{outcome:?}");
        let even = PLAIN.outcome(4, 4, Placed::Evenly);
        assert!((even.mean_bps - 8e9).abs() < 1.0 && even.sd_bps < 1.0);
        // All four on queues of their own: 24 of 256 ways.
        assert!((outcome.reaches(7.9e9) - 24.0 / 256.0).abs() < 1e-9);
        assert!((outcome.reaches(0.0) - 1.0).abs() < 1e-9);
        assert!(PLAIN.outcome(0, 4, Placed::Random).odds.is_empty());
    }

    #[test]
    fn more_of_anything_is_never_slower_without_pairwise_costs() {
        let limited = Parameters {
            shared_bps: 5e9,
            contention: Contention { serial: 0.1, pairwise: 0.0 },
            window: Window::default(),
            ..PLAIN
        };
        let of = |queues, flows| limited.outcome(queues, flows, Placed::Random).mean_bps;
        for queues in 1..5 {
            for flows in 1..7 {
                assert!(of(queues + 1, flows) >= of(queues, flows) - 1.0, "{queues} {flows}");
                assert!(of(queues, flows + 1) >= of(queues, flows) - 1.0, "{queues} {flows}");
                assert!(of(queues, flows) <= 5e9);
            }
        }
    }

    #[test]
    fn many_flows_continue_few() {
        let limited = Parameters { shared_bps: 9e9, window: Window::default(), ..PLAIN };
        let of = |flows| limited.outcome(4, flows, Placed::Random).mean_bps;
        assert!((of(SPLIT_MAX + 1) / of(SPLIT_MAX) - 1.0).abs() < 0.03);
        assert!((of(200) / 8e9 - 1.0).abs() < 0.05);
        // A long path is filled by windows alone, in however many chunks.
        let window = Window { delay: 1.0, ..Window::default() };
        let long = Parameters { queue_bps: 1e12, window, ..PLAIN };
        let windows = 1000.0 * window.bytes * 8.0;
        assert!((long.outcome(4, 1000, Placed::Random).mean_bps / windows - 1.0).abs() < 0.02);
        // Queues with one or two flows each, whose chunks are merged.
        let spread = long.outcome(256, 300, Placed::Evenly).mean_bps / windows * 1000.0 / 300.0;
        assert!((spread - 1.0).abs() < 0.02, "{spread}");
    }

    #[test]
    fn a_typical_split_carries_what_all_do() {
        // One flow of a millisecond does not fill its queue, and three do.
        for delay in [0.5e-3, 1e-3, 2e-3] {
            let window = Window { delay, ..Window::default() };
            let far = Parameters { queue_bps: 3e9, window, ..PLAIN };
            let all = far.over(&placement::splits(16, 8)).mean_bps;
            let typical = far.outcome(8, 16, Placed::Random).mean_bps;
            assert!((typical / all - 1.0).abs() < 0.02, "{delay}: {typical} {all}");
        }
    }

    #[test]
    fn what_flows_is_the_least_of_all_limits() {
        let window = Window { bytes: 250_000.0, chunk: 0.0, delay: 2e-3 };
        let flowing = Parameters { window, shared_bps: 3.5e9, ..PLAIN };
        // A flow has 1 Gbit/s of its window, a queue 2, and all share 3.5.
        let of = |parts: &[usize]| flowing.of_split(parts) / 1e9;
        let all = [of(&[1]), of(&[3]), of(&[2, 1]), of(&[3, 2, 1])];
        let is_near = |(one, other): (f64, f64)| (one - other).abs() < 1e-9;
        assert!(all.into_iter().zip([1.0, 2.0, 3.0, 3.5]).all(is_near), "{all:?}");
        // What three flows keep in flight takes 3 ms to pass, and the path 2.
        let waiting = flowing.waiting(1, &ways(1, 3, Placed::Random));
        assert!((waiting / 1e-3 - 1.0).abs() < 0.1, "{waiting}");
    }

    #[test]
    fn a_message_waits_behind_what_is_in_flight_on_its_queue() {
        let in_flight = 2.0 * PLAIN.window.bytes * 8.0 / PLAIN.queue_bps;
        let of = |queues| PLAIN.waiting(queues, &ways(1, 2, Placed::Random));
        assert!((of(1) / in_flight - 1.0).abs() < 0.01, "{}", of(1));
        // On one of four queues it meets them, on the others nothing.
        assert!((of(4) / of(1) - 0.25).abs() < 1e-6 && PLAIN.waiting(2, &[]).abs() < 1e-12);
    }
}
