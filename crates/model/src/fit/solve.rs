//! How parameters are found in points, and what the points leave open.

use std::collections::BTreeSet;

use ringway_stats::float;

use super::{
    AMPLE, Capacity, Data, FULL, MISS_MAX, NEARLY, Named, Point, SERIAL_MAX, Shifted, Station,
    most_flows,
};
use crate::contention::Contention;
use crate::estimate::Estimate;
use crate::predict::{Parameters, Window};
use crate::search::{last_below, least, root};

/// The parameter that is a queue's.
const CAPACITY: &str = "capacity of a queue";

/// What fits, and what else may be.
pub(super) struct Solved {
    pub(super) best: Parameters,
    pub(super) possible: Vec<Parameters>,
    pub(super) other_form: Option<Parameters>,
    pub(super) capacity: Capacity,
    /// Whether a point with few flows shows their delay.
    shows_delay: bool,
    /// How many different numbers of busy queues were measured: one shows the size of contention,
    /// two its form as well.
    numbers: usize,
}

pub(super) fn solve(data: &Data, base: &Point, stations: &[Station]) -> Solved {
    let shared_bps = stations.first().map_or(f64::INFINITY, |station| station.bps);
    let free = Contention::default();
    let start =
        Parameters { queue_bps: base.bps, contention: free, shared_bps, window: data.window };
    let of_base = |it: &Parameters| it.over(&base.splits).mean_bps;
    if base.bps >= shared_bps * FULL {
        let (best, shows_delay) = filled(data, base, start);
        let (possible, capacity) = (Vec::new(), Capacity::FillsShared);
        return Solved { best, possible, other_form: None, capacity, shows_delay, numbers: 0 };
    }
    let usual = calibrated(base, start);
    let delayed = delayed(data, base, usual);
    let best = delayed.unwrap_or(usual);
    // A queue that could do more must be able to show it.
    let alone = Parameters { shared_bps: f64::INFINITY, ..best };
    let twice = Parameters { queue_bps: best.queue_bps * 2.0, ..alone };
    let is_shown = of_base(&twice) > of_base(&alone) * SHOWN;
    let capacity = if is_shown { Capacity::Known } else { Capacity::InWindows };
    // Only queues that are busy at the same time show what they cost each other.
    let (full, several): (Vec<&Point>, Vec<&Point>) = data
        .points
        .iter()
        .filter(|point| point.busy_most() > 1)
        .partition(|point| point.bps >= shared_bps * FULL);
    let law = |contention| Parameters { contention, ..best };
    let serial = |pairwise| {
        let miss = |serial: f64| misses(&law(Contention { serial, pairwise }), &several, 1);
        Contention { serial: root(0.0, SEARCH_MAX, |serial| -miss(serial)), pairwise }
    };
    let numbers: BTreeSet<usize> = several.iter().map(|point| point.busy_most()).collect();
    let (contention, mut possible, other_form) = match numbers.len() {
        0 => {
            // Points that fill what is shared bound contention from above.
            let lock = |serial| law(Contention { serial, pairwise: 0.0 });
            let lacks = |serial| lack(&lock(serial), FULL, full.iter().copied());
            let is_open = lacks(SERIAL_MAX) < 0.0;
            let serial = if is_open { SERIAL_MAX } else { root(0.0, SERIAL_MAX, lacks) };
            (free, vec![law(free), lock(serial)], None)
        }
        1 => {
            let miss = |pairwise| misses(&law(Contention { serial: 0.0, pairwise }), &several, 1);
            let pairwise = root(0.0, SEARCH_MAX, |pairwise| -miss(pairwise));
            let other = Contention { serial: 0.0, pairwise };
            (serial(0.0), Vec::new(), Some(law(other)))
        }
        _ => {
            let squares = |pairwise| misses(&law(serial(pairwise)), &several, 2);
            let pairwise = least(0.0, PAIRWISE_MAX, squares);
            (serial(pairwise), Vec::new(), None)
        }
    };
    let (best, numbers) = (law(contention), numbers.len());
    if capacity == Capacity::InWindows {
        possible.push(Parameters { queue_bps: f64::INFINITY, ..best });
    }
    let shows_delay = capacity == Capacity::Known && delayed.is_some();
    Solved { best, possible, other_form, capacity, shows_delay, numbers }
}

/// Where one queue fills what is shared, only that is known, and the delay of a flow if fewer flows
/// show one: nothing else explains why they carry so much less.
fn filled(data: &Data, base: &Point, start: Parameters) -> (Parameters, bool) {
    let of = |it: &Parameters, point: &Point| it.over(&point.splits).mean_bps;
    let window = |delay| Window { delay, ..start.window };
    let with = |delay| {
        let ample = |shared_bps| {
            let queue_bps = shared_bps * AMPLE;
            Parameters { queue_bps, shared_bps, window: window(delay), ..start }
        };
        ample(root(base.bps, base.bps * 2.0, |bps| of(&ample(bps), base) - base.bps))
    };
    let usual = with(start.window.delay);
    let is_less = |few: &&Point| few.bps * (1.0 + MISS_MAX) < of(&usual, few);
    let Some(few) = few(data, base).filter(is_less) else { return (usual, false) };
    let miss = |delay| few.bps - of(&with(delay), few);
    let found = with(root(0.0, longest(few, start.window), miss));
    // Many flows with that delay must carry what they did.
    let is_possible = of(&found, base) * (1.0 + MISS_MAX) > base.bps;
    if is_possible { (found, true) } else { (usual, false) }
}

/// By how much a point grows at least that depends on the capacity of a queue, if that doubles.
const SHOWN: f64 = 1.1;

/// What fits with the longest delay of a flow that no point excludes; nothing where it is known.
pub(super) fn slow(
    data: &Data,
    base: &Point,
    stations: &[Station],
    solved: &Solved,
) -> Option<Parameters> {
    if data.is_delay_known || solved.shows_delay {
        return None;
    }
    let with = |it: &Parameters, delay| Parameters { window: Window { delay, ..it.window }, ..*it };
    let longest = longest(base, data.window);
    match solved.capacity {
        Capacity::InWindows => None,
        Capacity::FillsShared => {
            let reached = reached(data, &solved.best);
            let of = |delay| with(&solved.best, delay);
            let lacks = |delay| lack(&of(delay), NEARLY, &reached);
            Some(of(root(solved.best.window.delay, longest, lacks)))
        }
        Capacity::Known => {
            let start = Parameters { contention: Contention::default(), ..solved.best };
            let reached = reached(data, &start);
            let calibrated = |delay| calibrated(base, with(&start, delay));
            let lacks = |delay| lack(&calibrated(delay), NEARLY, &reached);
            let window = with(&start, last_below(start.window.delay, longest, lacks)).window;
            Some(solve(&Data { window, ..data.clone() }, base, stations).best)
        }
    }
}

/// What fits with the least capacity of a queue that no point excludes, and then the most
/// contention, where one queue fills what is shared: few flows get less of these than of a line.
pub(super) fn narrow(data: &Data, base: &Point, solved: &Solved) -> Option<Parameters> {
    if solved.capacity != Capacity::FillsShared {
        return None;
    }
    let reached = reached(data, &solved.best);
    let of = |queue_bps| Parameters { queue_bps, ..solved.best };
    let exceeds = |queue_bps| -lack(&of(queue_bps), NEARLY, &reached);
    let narrow = of(root(base.bps, solved.best.queue_bps, exceeds));
    let several = || reached.iter().filter(|it| it.busy_most() > 1);
    let lock = |serial| Parameters { contention: Contention { serial, pairwise: 0.0 }, ..narrow };
    Some(lock(root(0.0, SERIAL_MAX, |serial| lack(&lock(serial), NEARLY, several()))))
}

/// What fits if nothing varies: a few chunks on the way between two stations that are nearly as
/// fast as each other then fill the slower one.
pub(super) fn steady(data: &Data, base: &Point, stations: &[Station]) -> Parameters {
    let window = Window { chunk: 0.0, ..data.window };
    solve(&Data { window, ..data.clone() }, base, stations).best
}

/// The points, none above what fits best.
fn reached(data: &Data, best: &Parameters) -> Vec<Point> {
    let most = |point: &Point| point.bps.min(best.over(&point.splits).mean_bps);
    let of = |point: &Point| Point { bps: most(point), ..point.clone() };
    data.points.iter().map(of).collect()
}

/// The most by which a part of a point is above what is predicted; below 0 if all are reached.
fn lack<'a>(
    parameters: &Parameters,
    part: f64,
    points: impl IntoIterator<Item = &'a Point>,
) -> f64 {
    let of = |point: &Point| point.bps * part - parameters.over(&point.splits).mean_bps;
    points.into_iter().map(of).fold(f64::NEG_INFINITY, f64::max)
}

/// The delay with which the windows of a point's flows carry no more than what was measured.
fn longest(point: &Point, window: Window) -> f64 {
    float(point.flows) * window.bytes * 8.0 / point.bps
}

/// The capacity of a queue that fits with the delay of a flow.
fn calibrated(base: &Point, start: Parameters) -> Parameters {
    let of = |queue_bps| Parameters { queue_bps, ..start };
    let miss = |queue_bps| of(queue_bps).over(&base.splits).mean_bps - base.bps;
    of(root(base.bps, base.bps * AMPLE, miss))
}

/// What fits with the delay that a point with few flows on one queue shows: one flow alone does,
/// and more where they clearly do not carry what they would with the usual delay. Else a little
/// noise would be a long delay.
fn delayed(data: &Data, base: &Point, usual: Parameters) -> Option<Parameters> {
    let few = few(data, base)?;
    let of = |it: &Parameters| it.over(&few.splits).mean_bps;
    if few.flows > 1 && (few.bps / of(&usual) - 1.0).abs() <= MISS_MAX {
        return None;
    }
    let window = |delay| Window { delay, ..usual.window };
    let with = |delay| calibrated(base, Parameters { window: window(delay), ..usual });
    let miss = |delay| few.bps - of(&with(delay));
    Some(with(root(0.0, longest(few, usual.window), miss)))
}

/// The point with the fewest flows, all on one queue, if it has fewer than the base.
fn few<'a>(data: &'a Data, base: &Point) -> Option<&'a Point> {
    let ones = data.points.iter().filter(|it| it.busy_most() == 1 && it.flows < base.flows);
    ones.min_by_key(|point| point.flows)
}

/// Where searches for contention end.
const SEARCH_MAX: f64 = 4.0;
const PAIRWISE_MAX: f64 = 0.5;

/// By which part of itself a point without an interval is wrong as well.
const ERROR: f64 = 0.01;

/// By how much all points together are predicted too high, each relative to what was measured and
/// raised to a power; the wider its interval is, the less it weighs.
fn misses(parameters: &Parameters, points: &[&Point], power: i32) -> f64 {
    let of = |point: &&Point| {
        let miss = parameters.over(&point.splits).mean_bps / point.bps - 1.0;
        miss.powi(power) / (ERROR.powi(2) + (point.half_width_bps / point.bps).powi(2))
    };
    points.iter().map(of).sum()
}

/// The run that shows what so many queues cost each other.
fn apart(data: &Data, queues: usize) -> String {
    let flows = most_flows(data).max(2 * queues);
    let is_full = data.points.iter().any(|it| it.queues == queues && it.flows >= flows);
    let how = if is_full { "with a faster line or more CPUs" } else { "below the line" };
    format!("{queues} queues with {flows} flows, {how}")
}

impl Solved {
    /// The capacity of a queue, or what it is at least and what to measure to know it.
    fn queue(&self, known: Estimate, base: &Point) -> (Estimate, Option<String>) {
        let (bps, run) = match self.capacity {
            Capacity::Known => return (known, None),
            Capacity::FillsShared => {
                (self.best.shared_bps, "fewer flows, or with a faster line or more CPUs")
            }
            Capacity::InWindows => (base.bps, "more flows, or with larger windows"),
        };
        (Estimate::range(bps, f64::INFINITY), Some(format!("1 queue with {run}")))
    }

    pub(super) fn named(
        &self,
        shifted: &[Shifted],
        data: &Data,
        base: &Point,
        slow: Option<&Parameters>,
    ) -> Vec<Named> {
        let spread = |of: fn(&Parameters) -> f64| {
            let value = of(&self.best);
            let square = |it: &Shifted| it.most(value, of).powi(2);
            let half = shifted.iter().map(square).sum::<f64>().sqrt();
            Estimate { value: Some(value), low: (value - half).max(0.0), high: value + half }
        };
        let range = Estimate::range;
        // Where a search ends, a number would be its end.
        let below = |end: f64, it: Estimate| match it.high < end * NEARLY {
            true => it,
            false => range(it.low, f64::INFINITY),
        };
        let queue = self.queue(spread(|it| it.queue_bps), base);
        let apart = |queues| apart(data, queues);
        let (serial, pairwise) = match self.numbers {
            0 => {
                let fills = self.capacity == Capacity::FillsShared;
                let missing = if fills { apart(4) } else { apart(2) };
                let most = |it: &Parameters| it.contention.serial;
                let most = self.possible.iter().map(most).reduce(f64::max).unwrap_or(SERIAL_MAX);
                // Two busy queues lose as much by half of it for each pair.
                let pairwise = PAIRWISE_MAX.min(most / 2.0);
                ((range(0.0, most), Some(missing.clone())), (range(0.0, pairwise), Some(missing)))
            }
            1 => {
                let pairwise = self.other_form.map_or(0.0, |it| it.contention.pairwise);
                let missing = Some(apart(4));
                let serial = self.best.contention.serial;
                ((range(0.0, serial), missing.clone()), (range(0.0, pairwise), missing))
            }
            _ => (
                (below(SEARCH_MAX, spread(|it| it.contention.serial)), None),
                (below(PAIRWISE_MAX, spread(|it| it.contention.pairwise)), None),
            ),
        };
        let delay = match self.shows_delay || data.is_delay_known {
            true => (spread(|it| it.window.delay), None),
            false => {
                let longest = slow.map_or(longest(base, data.window), |it| it.window.delay);
                let is_one = |it: &Point| it.flows == 1;
                let run = match (data.points.iter().any(is_one), self.capacity) {
                    (false, _) => "1 flow",
                    (true, Capacity::FillsShared) => "1 flow and a smaller window",
                    (true, _) if base.flows == 1 => "8 flows",
                    (true, _) => "more flows",
                };
                (range(0.0, longest), Some(format!("1 queue with {run}")))
            }
        };
        let named = |name, unit, (estimate, missing)| Named { name, unit, estimate, missing };
        vec![
            named(CAPACITY, "bit/s", queue),
            named("serial part of the work", "", serial),
            named("cost of each pair of queues", "", pairwise),
            named("delay of a flow", "s", delay),
        ]
    }
}
