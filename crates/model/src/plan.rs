//! What a target needs: the fewest queues, and with them CPUs, workers, memory and grants.

use ringway_stats::float;
use serde::Serialize;

use crate::contention::Contention;
use crate::estimate::Estimate;
use crate::fit::{Fit, LINE, NEARLY, Station};
use crate::line::Line;
use crate::predict::{Parameters, Placed};

/// What a plan is for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// The throughput in bit/s.
    pub bps: f64,
    /// The flows that carry it.
    pub flows: usize,
    /// The probability with which placement must allow it.
    pub probability: f64,
    /// Interfaces like this one, for which memory is counted.
    pub vifs: usize,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// The fewest queues that suffice with the likeliest parameters; nothing if no number does.
    pub queues: Option<usize>,
    /// These queues, or else the best number: for so many is all that follows but the range.
    pub planned: usize,
    /// The fewest and the most queues that suffice with parameters that the data leave possible;
    /// nothing where no number does.
    pub queues_range: [Option<usize>; 2],
    /// The probability with which the queues reach the target.
    pub probability: Estimate,
    /// Their throughput in bit/s.
    pub throughput_bps: Estimate,
    /// The mean number of busy queues.
    #[serde(rename = "busy-queues")]
    pub busy: f64,
    /// Workers of the backend: one for each busy queue, and one to spare.
    pub workers: usize,
    /// CPUs for the target of each station that was measured, at four fifths of their time.
    pub cpus: Vec<(String, usize)>,
    /// Those of a guest for its programs and its end of all queues; nothing without a measurement.
    pub guest_cpus: Option<usize>,
    /// Memory of the backend for all queues of all interfaces in bytes, for netback of Linux and
    /// for vhost.
    pub memory_bytes: [usize; 2],
    /// Grants of a guest for all rings and buffers of an interface.
    pub grants: usize,
    /// What limits first: one for all parameters that the data leave possible, or several.
    pub binding: Vec<String>,
    /// The number of busy queues beyond which all together are slower; nothing if the data show
    /// none.
    pub busy_best: Option<f64>,
    /// That number as it may be at worst, where the plan has more busy queues.
    pub may_be_slower_beyond: Option<f64>,
    /// By how much throughput changes if an assumption is 10 % better.
    pub sensitivity: Vec<Sensitivity>,
    /// The one run that would tell most.
    pub next_run: Option<String>,
}

/// What throughput depends on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sensitivity {
    /// What is 10 % better.
    pub with: &'static str,
    /// The least change of throughput, relative to it.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// Queues up to which a plan is made.
pub const QUEUES_MAX: usize = 64;
/// The part of a CPU's time that a plan uses.
const CPU_USE: f64 = 0.8;
/// How the names of the stations begin that a guest's CPUs are.
const GUEST: [&str; 2] = ["guest", "netfront"];
/// Memory of a queue in netback of Linux, and in vhost.
const QUEUE_BYTES: [usize; 2] = [44_000, 65_536];
/// Grants of a queue: two pages of rings, and a page for each of two rings' 256 slots.
const QUEUE_GRANTS: usize = 2 + 2 * 256;

/// The fewest queues for a target.
pub fn plan(fit: &Fit, target: &Target) -> Plan {
    let of = |queues: usize| fit.best.outcome(queues, target.flows, Placed::Random);
    let fewest = |it: &Parameters| {
        let wanted = target.probability - ROUNDING;
        (1..=QUEUES_MAX).find(|queues| reach(it, *queues, target) >= wanted)
    };
    let queues = fewest(&fit.best);
    // Whatever the data leave possible, or their points' intervals.
    let known = || fit.possible().chain(fit.shifted.iter().flat_map(|it| &it.ends));
    let all: Vec<Option<usize>> = known().map(fewest).collect();
    let least = all.iter().copied().flatten().min();
    let most = all.iter().copied().max_by_key(|it| it.unwrap_or(usize::MAX)).flatten();
    let best = || {
        let mean = |queues: &usize| of(*queues).mean_bps;
        // The fewest of those that are equally good within a percent.
        let most = (1..=QUEUES_MAX).map(|queues| mean(&queues)).fold(0.0, f64::max);
        (1..=QUEUES_MAX).find(|queues| mean(queues) >= most * 0.99).unwrap_or(1)
    };
    let chosen = queues.unwrap_or_else(best);
    let probability = Estimate::over(known().map(|it| reach(it, chosen, target)));
    let outcome = of(chosen);
    let throughput_bps = fit.predict(chosen, target.flows, Placed::Random).throughput;
    // CPUs are planned, a wire is not.
    let line = fit.stations.iter().find(|it| it.name == LINE).map_or(f64::INFINITY, |it| it.bps);
    let wired = Parameters { shared_bps: line, ..fit.best };
    let carried = wired.outcome(chosen, target.flows, Placed::Random).mean_bps.min(target.bps);
    let is_of_guest = |it: &Station| GUEST.iter().any(|name| it.name.starts_with(name));
    let of_guest = fit.used(carried).filter(|(station, _)| is_of_guest(station));
    let of_guest: f64 = of_guest.map(|(_, used)| used).sum();
    let cpus = fit.used(carried).filter(|(station, _)| station.cpus > 0.0);
    let cpus = cpus.map(|(station, used)| (station.name.clone(), whole(used / CPU_USE).max(1)));
    let slower = fit.possible().filter_map(|it| it.contention.busy_best());
    Plan {
        queues,
        planned: chosen,
        queues_range: [least, most],
        probability,
        throughput_bps,
        busy: outcome.busy,
        workers: whole(outcome.busy) + 1,
        cpus: cpus.collect(),
        guest_cpus: (of_guest > 0.0).then(|| whole(of_guest / CPU_USE).max(1)),
        memory_bytes: QUEUE_BYTES.map(|bytes| bytes * chosen * target.vifs),
        grants: QUEUE_GRANTS * chosen,
        binding: binding(fit, chosen, target),
        busy_best: fit.best.contention.busy_best().filter(|busy| *busy <= float(QUEUES_MAX)),
        may_be_slower_beyond: slower.reduce(f64::min).filter(|busy| *busy < outcome.busy),
        sensitivity: sensitivity(fit, chosen, target.flows),
        next_run: next_run(fit, chosen, target.flows),
    }
}

/// What rounding may take from a probability, or from a part.
const ROUNDING: f64 = 1e-9;

/// The probability with which so many queues reach a target, as nearly as parameters fit what was
/// measured: a queue reaches what it carried. What is above all that is shared is not reached.
fn reach(it: &Parameters, queues: usize, target: &Target) -> f64 {
    let part = if target.bps > it.shared_bps { 1.0 } else { NEARLY - ROUNDING };
    it.outcome(queues, target.flows, Placed::Random).reaches(target.bps * part)
}

/// The least whole number that is not below.
fn whole(number: f64) -> usize {
    (0..65_535).find(|count| float(*count) >= number - 1e-9).unwrap_or(65_535)
}

/// What would have to grow for more throughput, with each of the possible parameters.
fn binding(fit: &Fit, queues: usize, target: &Target) -> Vec<String> {
    let flows = target.flows;
    let shared = || fit.stations.first().map_or("nothing", |station: &Station| &station.name);
    let of = |it: &Parameters| {
        let ways = [
            ("queues", scaled(it, queues, flows, |it| it.queue_bps *= MORE)),
            ("window", scaled(it, queues, flows, |it| it.window.bytes *= MORE)),
            ("shared", scaled(it, queues, flows, |it| it.shared_bps *= MORE)),
        ];
        let mean = |it: &Parameters, flows| it.outcome(queues, flows, Placed::Random).mean_bps;
        let now = mean(it, flows);
        let free = mean(&Parameters { contention: Contention::default(), ..*it }, flows);
        let busier = mean(it, flows.max(4 * queues));
        match ways.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("queues", |way| way.0) {
            "shared" => shared(),
            "window" => "windows of the flows",
            _ if now < target.bps && busier > now * 1.02 && busier >= free => {
                "queues without flows: more flows help"
            }
            _ if free > now * MORE => "contention: busy queues wait for each other",
            _ => "capacity of a queue",
        }
    };
    let mut all: Vec<String> = fit.possible().map(|it| of(it).to_owned()).collect();
    all.sort();
    all.dedup();
    all
}

/// A change that shows what throughput depends on.
const MORE: f64 = 1.1;

/// The relative change of throughput if a parameter changes.
fn scaled(one: &Parameters, queues: usize, flows: usize, change: impl Fn(&mut Parameters)) -> f64 {
    let mut other = *one;
    change(&mut other);
    let of = |it: &Parameters| it.outcome(queues, flows, Placed::Random).mean_bps;
    of(&other) / of(one) - 1.0
}

fn sensitivity(fit: &Fit, queues: usize, flows: usize) -> Vec<Sensitivity> {
    let of = |with, change: fn(&mut Parameters)| {
        let all = Estimate::over(fit.possible().map(|it| scaled(it, queues, flows, change)));
        Sensitivity { with, low: all.low, high: all.high }
    };
    vec![
        of("more capacity of a queue", |it| it.queue_bps *= MORE),
        of("less contention", |it| {
            it.contention.serial /= MORE;
            it.contention.pairwise /= MORE;
        }),
        of("more of what all share", |it| it.shared_bps *= MORE),
        of("larger windows", |it| it.window.bytes *= MORE),
        of("less delay", |it| it.window.delay /= MORE),
    ]
}

/// A parameter without a value matters more than an interval of one with a value.
fn next_run(fit: &Fit, queues: usize, flows: usize) -> Option<String> {
    let prediction = fit.predict(queues, flows, Placed::Random);
    let missing = prediction.missing.and_then(|one| one.missing);
    let repeat = prediction.least_certain.map(|(name, _)| format!("more repeats of {name}"));
    missing.or(repeat).or_else(|| fit.missing().and_then(|one| one.missing.clone()))
}

/// What frames of a wire allow, for a target that the wire's own frames do not.
pub fn mtu_for(bps: f64, line: Line) -> Option<f64> {
    let fits = |mtu: &f64| Line { mtu: *mtu, ..line }.payload_bps() >= bps;
    [line.mtu, 1500.0, 9000.0].into_iter().find(fits)
}
