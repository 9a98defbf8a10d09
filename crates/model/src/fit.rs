//! Parameters from measurements, and only those that the measurements identify.
//!
//! Each parameter has the runs that identify it: the capacity of a queue one with a single queue,
//! contention one with several, the form of contention two with different numbers of queues, the
//! delay of a flow one with a single queue and few flows. What they do not identify stays a range,
//! and so does each prediction that depends on it.

mod solve;

use std::collections::{BTreeMap, BTreeSet};

use ringway_stats::float;
use serde::Serialize;

use self::solve::{Solved, narrow, slow, solve, steady};
use crate::estimate::{Estimate, SPREAD_MAX};
use crate::line::Line;
use crate::placement::Split;
use crate::predict::{Outcome, Parameters, Placed, Window, ways};

/// What was measured at one point.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Its name for people.
    pub name: String,
    /// Queues.
    pub queues: usize,
    /// Flows.
    pub flows: usize,
    /// How these fell on those, as far as that is known; else by their odds.
    pub splits: Vec<Split>,
    /// The mean throughput in bit/s.
    pub bps: f64,
    /// Half of its 95 % interval, if that is known.
    pub half_width_bps: f64,
    /// CPUs in use, by station, if they were measured.
    pub cpus_used: BTreeMap<String, f64>,
    /// By which part of itself each may be wrong: half of its 95 % interval, if that is known.
    pub cpus_error: BTreeMap<String, f64>,
}

impl Point {
    /// The most queues that were busy at the same time, as far as that is known.
    fn busy_most(&self) -> usize {
        busy_most(&self.splits)
    }
}

/// The most queues that are busy at the same time.
fn busy_most(splits: &[Split]) -> usize {
    splits.iter().map(|split| split.parts.len()).max().unwrap_or(0)
}

/// All that is known of a machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Data {
    /// What was measured.
    pub points: Vec<Point>,
    /// The most payload of the wire in bit/s, if there is one.
    pub line_bps: Option<f64>,
    /// That wire, if its frames are known.
    pub line: Option<Line>,
    /// What each flow keeps in flight.
    pub window: Window,
    /// Whether the bytes in `window` were set, and are not only those of the published studies.
    pub is_window_known: bool,
    /// Whether the delay of a flow in `window` was set or measured, and is not only usual.
    pub is_delay_known: bool,
    /// The CPUs of each station.
    pub cpus: BTreeMap<String, f64>,
}

/// A parameter for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// Its unit, if it has one.
    pub unit: &'static str,
    /// What is known of it.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The run that would identify it, if it is not identified.
    pub missing: Option<String>,
}

/// A limit that all flows share.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Station {
    /// What it is.
    pub name: String,
    /// The most that passes it, in bit/s.
    pub bps: f64,
    /// CPUs in use for each bit/s; 0 for a wire.
    pub cpus_per_bps: f64,
    /// By which part of itself that may be wrong.
    pub cpus_error: f64,
    /// How many CPUs it has; 0 for a wire, infinite if that is not known.
    pub cpus: f64,
}

/// Why nothing can be fitted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// What no fit can do without.
    #[error(
        "no point has one queue: measure {} flows over 1 queue, which shows its capacity",
        .flows
    )]
    NoSingleQueue {
        /// The most flows of any point.
        flows: usize,
    },
    /// A point contradicts what is said of the wire or of its flows.
    #[error("{name}: {:.2} Gbit/s is above the {:.2} Gbit/s {why}", .bps / 1e9, .most_bps / 1e9)]
    Above {
        /// The point.
        name: String,
        /// Its throughput.
        bps: f64,
        /// The most that is possible.
        most_bps: f64,
        /// What carries no more, and what to check.
        why: &'static str,
    },
    /// A point without a meaning.
    #[error("{name}: `{field}` must be above 0")]
    Zero {
        /// The point.
        name: String,
        /// The field.
        field: &'static str,
    },
}

/// A fitted machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// What is known of each parameter.
    pub parameters: Vec<Named>,
    /// The limits that all flows share, the tightest first.
    pub stations: Vec<Station>,
    /// The parameters that fit best.
    pub best: Parameters,
    /// Others that the data leave possible, of which none is likelier: the ends of a range.
    possible: Vec<Parameters>,
    /// Another form of contention, a longer delay, less capacity, and flows without variation, that
    /// fit as well. Their predictions only widen the interval: `best` assumes that queues wait for
    /// each other, as under a lock, a short path, that a queue which fills what all share could do
    /// far more, and that chunks take more time and less by chance.
    others: Vec<Parameters>,
    pub(crate) shifted: Vec<Shifted>,
    /// The nearest end of what was measured over what fits best, by the point.
    missed: Vec<(String, f64)>,
    capacity: Capacity,
    /// The most busy queues of any point.
    busy_most: usize,
    /// The bytes that a flow keeps in flight, if the data say that.
    in_flight: Option<f64>,
}

/// What fits if one point is at either end of its interval.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shifted {
    name: String,
    pub(crate) ends: [Parameters; 2],
}

impl Shifted {
    /// By how much a number is farther from its likeliest at one of both ends: where a parameter is
    /// as small as it can be, only one of them moves it.
    fn most(&self, likeliest: f64, of: impl Fn(&Parameters) -> f64) -> f64 {
        let [low, high] = self.ends.each_ref().map(|it| (of(it) - likeliest).abs());
        low.max(high)
    }
}

/// What the points say of the capacity of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Capacity {
    Known,
    /// One queue fills what all share.
    FillsShared,
    /// The windows of the flows bound the point with one queue.
    InWindows,
}

/// A prediction.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// In bit/s; without a value if the parameters that it depends on are not identified.
    pub throughput: Estimate,
    /// For the best parameters.
    pub outcome: Outcome,
    /// The point whose interval widens the prediction's most, with the half-width in bit/s.
    pub least_certain: Option<(String, f64)>,
    /// The parameter without which there is no value.
    pub missing: Option<Named>,
}

/// What measurements may differ from the parameters that fit them, relative.
const MISS_MAX: f64 = 0.1;
/// What predictions of more busy queues than were measured may miss, relative: more than those of
/// the published figures do.
const BEYOND: f64 = 0.05;
/// The part of a point that a fit must reach.
pub(crate) const NEARLY: f64 = 0.995;
/// The part of a point that is its lower end, if its interval is wider than itself.
const LEAST: f64 = 0.01;
/// The fraction of the shared limit from which a measurement says nothing about queues.
const FULL: f64 = 0.97;
/// The most serial work that a range allows: as many queues carry no more than one.
const SERIAL_MAX: f64 = 1.0;
/// What a flow keeps in flight if nothing says it: a segment, up to what Linux lets a socket have
/// (the default maximum of `tcp_wmem`).
const WINDOWS: [f64; 2] = [65_536.0, 4_194_304.0];
/// The station that is the wire.
pub const LINE: &str = "line";
/// A capacity that stands for any that is larger than what is shared, as a multiple of that.
const AMPLE: f64 = 10.0;

impl Fit {
    /// Fits a machine.
    ///
    /// # Errors
    /// A run is missing that nothing replaces, or a point is impossible.
    pub fn of(data: &Data) -> Result<Fit, FitError> {
        check(data)?;
        let base = single(data)?;
        let stations = stations(data, base);
        let solved = solve(data, base, &stations);
        let fitted = |point: &Point| solved.best.over(&point.splits).mean_bps;
        if fitted(base) * (1.0 + MISS_MAX) < base.bps {
            let why = "that the windows of its flows carry: check `window` and `delay`";
            let (name, bps, most_bps) = (base.name.clone(), base.bps, fitted(base));
            return Err(FitError::Above { name, bps, most_bps, why });
        }
        let missed = |it: &Point| {
            let (fits, half) = (fitted(it), it.half_width_bps);
            (it.name.clone(), fits.max(it.bps - half).min(it.bps + half) / fits)
        };
        let missed = data.points.iter().map(missed).collect();
        let end = |at: usize, share: f64| {
            let mut moved = data.clone();
            let point = &mut moved.points[at];
            point.bps = (point.bps + share * point.half_width_bps).max(point.bps * LEAST);
            let base = single(&moved).unwrap_or(base);
            solve(&moved, base, &stations).best
        };
        let uncertain = data.points.iter().enumerate().filter(|(_, it)| it.half_width_bps > 0.0);
        let both = |(at, point): (usize, &Point)| Shifted {
            name: point.name.clone(),
            ends: [-1.0, 1.0].map(|share| end(at, share)),
        };
        let shifted: Vec<Shifted> = uncertain.map(both).collect();
        let slow = slow(data, base, &stations, &solved);
        let narrow = narrow(data, base, &solved);
        let parameters = solved.named(&shifted, data, base, slow.as_ref());
        let Solved { best, possible, other_form, capacity, .. } = solved;
        let others = other_form.into_iter().chain(slow).chain(narrow);
        let others = others.chain([steady(data, base, &stations)]).collect();
        let in_flight = data.is_window_known.then_some(data.window.bytes);
        Ok(Fit {
            parameters,
            stations,
            best,
            possible,
            others,
            shifted,
            missed,
            capacity,
            busy_most: data.points.iter().map(Point::busy_most).max().unwrap_or(0),
            in_flight,
        })
    }

    /// The points whose intervals the model cannot explain, with the nearest end of it over the
    /// model's throughput.
    pub fn unexplained(&self) -> Vec<(String, f64)> {
        self.missed.iter().filter(|(_, ratio)| (ratio - 1.0).abs() > MISS_MAX).cloned().collect()
    }

    /// What so many flows should carry over so many queues.
    pub fn predict(&self, queues: usize, flows: usize, placed: Placed) -> Prediction {
        self.predict_over(&ways(queues, flows, placed))
    }

    /// What flows should carry that are split so over queues.
    pub fn predict_over(&self, splits: &[Split]) -> Prediction {
        let of = |parameters: &Parameters| parameters.over(splits).mean_bps;
        let outcome = self.best.over(splits);
        let mean = outcome.mean_bps;
        let deltas = self.shifted.iter().map(|it| (it.name.clone(), it.most(mean, of)));
        let deltas: Vec<(String, f64)> = deltas.collect();
        let half = deltas.iter().map(|(_, delta)| delta * delta).sum::<f64>().sqrt();
        let ends = |from: f64, all: &[f64]| {
            let end = |of: fn(f64, f64) -> f64| all.iter().copied().fold(from, of);
            (end(f64::min), end(f64::max))
        };
        let mut all: Vec<f64> = self.possible.iter().map(of).collect();
        let (low, high) = ends(mean, &all);
        let is_narrow = high - low <= mean * SPREAD_MAX;
        let value = is_narrow.then_some(mean);
        all.extend(self.others.iter().map(of));
        let (low, high) = ends(mean, &all);
        // Where these are so far away, the likeliest says little.
        let is_near = |low: f64, high: f64| low >= mean * 0.5 && high <= mean * 2.0;
        let value = value.filter(|_| is_near(low, high));
        let is_open = value.is_none();
        // What points miss, a prediction may miss as well.
        let ratios: Vec<f64> = self.missed.iter().map(|(_, ratio)| *ratio).collect();
        let (least, most) = ends(1.0, &ratios);
        let value = value.filter(|_| is_near(low * least, high * most));
        // So does the model itself, where more queues are busy than were measured.
        let beyond = if busy_most(splits) > self.busy_most { BEYOND } else { 0.0 };
        let (least, most) = (least * (1.0 - beyond), most * (1.0 + beyond));
        let limit = self.best.shared_bps.max(mean);
        let (low, high) = ((low * least - half).max(0.0), (high * most + half).min(limit));
        let throughput = Estimate { value, low, high };
        let least_certain = deltas.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut unknown = self.parameters.iter().filter(|one| one.missing.is_some());
        // What only widens the interval is the last of them.
        let missing = if is_narrow { unknown.next_back() } else { unknown.next() };
        let missing = missing.filter(|_| is_open).cloned();
        Prediction { throughput, outcome, least_certain, missing }
    }

    /// The mean seconds from sending a chunk to its acknowledgement where so many flows carry so
    /// much, by Little's law: a range where nothing says what a flow keeps in flight.
    pub fn round_trip(&self, flows: usize, throughput: Estimate) -> Estimate {
        let of = |bytes: f64| throughput.dividing(float(flows) * bytes * 8.0);
        let [least, most] = WINDOWS;
        self.in_flight.map_or_else(|| Estimate::range(of(least).low, of(most).high), of)
    }

    /// Whether the data say what a flow keeps in flight.
    pub fn is_window_known(&self) -> bool {
        self.in_flight.is_some()
    }

    /// On another wire, with so much payload in bit/s: what was measured says what queues carry.
    #[must_use]
    pub fn on_line(mut self, bps: f64) -> Fit {
        let before = self.best.shared_bps;
        self.stations.retain(|station| station.name != LINE);
        self.stations.push(wire(bps));
        self.stations.sort_by(|a, b| a.bps.total_cmp(&b.bps));
        let shared_bps = self.stations.first().map_or(bps, |station| station.bps);
        if self.capacity == Capacity::FillsShared {
            // A queue that filled the other wire may carry no more than that.
            self.possible.push(Parameters { queue_bps: before, ..self.best });
            self.best.queue_bps = self.best.queue_bps.max(shared_bps * AMPLE);
            let ends = self.shifted.iter_mut().flat_map(|it| &mut it.ends);
            ends.for_each(|it| it.queue_bps = self.best.queue_bps);
        }
        let others = self.possible.iter_mut().chain(&mut self.others);
        let others = others.chain(self.shifted.iter_mut().flat_map(|it| &mut it.ends));
        others.chain([&mut self.best]).for_each(|it| it.shared_bps = shared_bps);
        self
    }

    /// All parameters that the data leave possible, the best first.
    pub fn possible(&self) -> impl Iterator<Item = &Parameters> {
        [&self.best].into_iter().chain(&self.possible).chain(&self.others)
    }

    /// The use of each station at some throughput: CPUs, or a fraction of a wire.
    pub fn used(&self, bps: f64) -> impl Iterator<Item = (&Station, f64)> {
        self.stations.iter().map(move |station| match station.cpus > 0.0 {
            true => (station, bps * station.cpus_per_bps),
            false => (station, bps / station.bps),
        })
    }

    /// The first parameter that is not identified, with the run that would identify it.
    pub fn missing(&self) -> Option<&Named> {
        self.parameters.iter().find(|one| one.missing.is_some())
    }
}

fn check(data: &Data) -> Result<(), FitError> {
    for point in &data.points {
        let name = || point.name.clone();
        let numbers = [
            ("queues", float(point.queues)),
            ("flows", float(point.flows)),
            ("throughput", point.bps),
        ];
        let is_possible = |value: f64| value > 0.0 && value.is_finite();
        if let Some((field, _)) = numbers.iter().find(|(_, value)| !is_possible(*value)) {
            return Err(FitError::Zero { name: name(), field });
        }
        if let Some(most_bps) = data.line_bps.filter(|line| point.bps > line * LINE_ERROR) {
            let why = "of payload that the line carries: check `throughput`, `line` and `mtu`";
            return Err(FitError::Above { name: name(), bps: point.bps, most_bps, why });
        }
    }
    Ok(())
}

/// Measurements of a full line may be above it by so much: tools start and stop at both ends.
const LINE_ERROR: f64 = 1.02;

/// The point that shows what one queue can do: the one with the most flows, of those that fill the
/// line if any does. More flows carry less than fewer do by chance only.
fn single(data: &Data) -> Result<&Point, FitError> {
    let ones = data.points.iter().filter(|point| point.queues == 1);
    let is_full = |point: &Point| data.line_bps.is_some_and(|line| point.bps >= line * FULL);
    let flows = || most_flows(data).max(2);
    ones.max_by_key(|point| (is_full(point), point.flows))
        .ok_or_else(|| FitError::NoSingleQueue { flows: flows() })
}

/// The most flows of any point; without points so many that they fill any queue.
fn most_flows(data: &Data) -> usize {
    data.points.iter().map(|point| point.flows).max().unwrap_or(8)
}

fn wire(bps: f64) -> Station {
    Station { name: LINE.to_owned(), bps, cpus_per_bps: 0.0, cpus_error: 0.0, cpus: 0.0 }
}

/// The line, and each station by the utilisation law, at the base or else at the point with the
/// fewest queues that has it; without known CPUs it limits nothing.
fn stations(data: &Data, base: &Point) -> Vec<Station> {
    let fastest = data.points.iter().map(|point| point.bps).fold(base.bps, f64::max);
    let names: BTreeSet<&String> = data.points.iter().flat_map(|it| it.cpus_used.keys()).collect();
    let of_cpus = names.into_iter().filter_map(|name| {
        let has_used = |it: &&Point| it.cpus_used.get(name).is_some_and(|used| *used > 0.0);
        let others = || data.points.iter().filter(has_used).min_by_key(|it| it.queues);
        let point = Some(base).filter(has_used).or_else(others)?;
        let cpus = data.cpus.get(name).copied().unwrap_or(f64::INFINITY);
        // A point that carried more than one queue allows says that a bit may cost less.
        let cpus_per_bps = (point.cpus_used[name] / point.bps).min(cpus / fastest);
        let cpus_error = point.cpus_error.get(name).copied().unwrap_or(0.0);
        let (name, bps) = (name.clone(), cpus / cpus_per_bps);
        let station = Station { name, bps, cpus_per_bps, cpus_error, cpus };
        (cpus > 0.0).then_some(station)
    });
    let mut all: Vec<Station> = data.line_bps.map(wire).into_iter().chain(of_cpus).collect();
    all.sort_by(|a, b| a.bps.total_cmp(&b.bps));
    all
}
