//! What flows get that want different rates: max-min fair shares of their queues and of the line.

use ringway_stats::float;

use crate::estimate::Estimate;
use crate::fit::{Fit, Shifted};
use crate::line::window_bps;
use crate::predict::Parameters;

impl Fit {
    /// What each flow gets on average, by chance over so many queues, that wants no more than what
    /// `wanted` has for it in bit/s; with ranges over the parameters that the data leave possible.
    /// The number of placements is that of the ways to divide flows into groups: 115,975 for ten.
    pub fn shares(&self, queues: usize, wanted: &[f64]) -> Vec<Estimate> {
        let of = |it: &Parameters| means(it, queues, wanted);
        let all: Vec<Vec<f64>> = self.possible().map(of).collect();
        let of_ends = |it: &Shifted| it.ends.each_ref().map(of);
        let shifted: Vec<[Vec<f64>; 2]> = self.shifted.iter().map(of_ends).collect();
        let of_flow = |flow: usize| {
            let Estimate { value, low, high } = Estimate::over(all.iter().map(|it| it[flow]));
            let likeliest = all.first().map_or(0.0, |best| best[flow]);
            let delta = |it: &Vec<f64>| (it[flow] - likeliest).abs();
            let most = |[low, high]: &[Vec<f64>; 2]| delta(low).max(delta(high));
            let half = shifted.iter().map(|it| most(it).powi(2)).sum::<f64>().sqrt();
            let (low, high) = ((low - half).max(0.0), (high + half).min(wanted[flow]));
            Estimate { value, low, high }
        };
        (0..wanted.len()).map(of_flow).collect()
    }
}

/// The mean rate of each flow over all placements.
fn means(parameters: &Parameters, queues: usize, wanted: &[f64]) -> Vec<f64> {
    // No flow is faster than its window allows.
    let most = window_bps(parameters.window.bytes, parameters.window.delay);
    let wanted: Vec<f64> = wanted.iter().map(|bps| bps.min(most)).collect();
    let mut means = vec![0.0; wanted.len()];
    // Placements of the first flows with their probabilities, on queues that are numbered in the
    // order of their first flow.
    let mut open = vec![(Vec::new(), 1.0)];
    while let Some((queue, probability)) = open.pop() {
        let busy = queue.iter().max().map_or(0, |last| last + 1);
        if queue.len() == wanted.len() {
            let own = parameters.queue_bps * parameters.contention.efficiency(busy);
            let rates = max_min(&wanted, &queue, &vec![own; busy], parameters.shared_bps);
            means.iter_mut().zip(rates).for_each(|(mean, rate)| *mean += probability * rate);
            continue;
        }
        for place in 0..queues.min(busy + 1) {
            let ways = if place < busy { 1 } else { queues - busy };
            let next = queue.iter().copied().chain([place]).collect();
            open.push((next, probability * float(ways) / float(queues)));
        }
    }
    means
}

/// The rate of each flow: `wanted` has what each wants at most, and `queue` on which queue it is.
/// All rates rise together; a flow stops where it has what it wants, or where its queue or the line
/// is full. Queues without a capacity carry nothing.
pub fn max_min(wanted: &[f64], queue: &[usize], queue_bps: &[f64], line_bps: f64) -> Vec<f64> {
    let mut rates = vec![0.0; wanted.len()];
    let flows = 0..wanted.len().min(queue.len());
    let mut open: Vec<usize> = flows.filter(|flow| queue[*flow] < queue_bps.len()).collect();
    let (mut line, mut queues) = (line_bps.max(0.0), queue_bps.to_vec());
    // Each round closes at least one flow.
    while !open.is_empty() {
        let on = |place: usize| open.iter().filter(|flow| queue[**flow] == place).count();
        let shares = queues.iter().enumerate().filter(|(place, _)| on(*place) > 0);
        let of_queues = shares.map(|(place, left)| left / float(on(place)));
        let of_flows = open.iter().map(|flow| wanted[*flow] - rates[*flow]);
        let of_line = line / float(open.len());
        let step = of_queues.chain(of_flows).fold(of_line, f64::min).max(0.0);
        for &flow in &open {
            rates[flow] += step;
            line -= step;
            queues[queue[flow]] -= step;
        }
        let before = open.len();
        let is_full = |left: f64, of: f64| left.is_finite() && left <= of * FULL;
        let is_line_full = is_full(line, line_bps);
        open.retain(|&flow| {
            let place = queue[flow];
            let is_satisfied = is_full(wanted[flow] - rates[flow], wanted[flow]);
            !is_line_full && !is_satisfied && !is_full(queues[place], queue_bps[place])
        });
        if open.len() == before {
            break;
        }
    }
    rates
}

/// The part of a capacity that rounding may leave.
const FULL: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contention::Contention;
    use crate::predict::Window;

    fn close(rates: &[f64], expected: &[f64]) -> bool {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
        rates.len() == expected.len() && rates.iter().zip(expected).all(near)
    }

    #[test]
    fn shares_are_those_of_every_placement() {
        let parameters = Parameters {
            queue_bps: 6.0,
            contention: Contention { serial: 0.2, pairwise: 0.0 },
            shared_bps: 11.0,
            window: Window::default(),
        };
        let (queues, wanted) = (3, [1.0, 9.0, 9.0]);
        let mut sums = [0.0; 3];
        for at in 0..27 {
            let queue = [at % 3, at / 3 % 3, at / 9];
            let busy = (0..3).filter(|place| queue.contains(place)).count();
            let own = 6.0 / (1.0 + 0.2 * float(busy - 1));
            let rates = max_min(&wanted, &queue, &[own; 3], 11.0);
            sums.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate / 27.0);
        }
        let found = means(&parameters, queues, &wanted);
        assert!(close(&found, &sums), "{found:?} {sums:?}");
        assert!(found[0] > 0.999 && found[1] < 6.0, "the small flow has all that it wants");
        assert_eq!(means(&parameters, queues, &[]), []);
        // On a long path a flow has its window for each round trip: 2 bit/s here.
        let window = Window { bytes: 1.0, delay: 4.0, ..Window::default() };
        let found = means(&Parameters { window, ..parameters }, queues, &wanted);
        assert!(close(&found, &[1.0, 2.0, 2.0]), "{found:?}");
    }
}
