//! Makes the runs of a study, one after another, and keeps each as soon as it is done.
//!
//! A run that fails is kept as a failure and is not the end; a cell that fails twice is given up.
//! Ctrl-C ends the run under way and nothing else: what is done is done, and the next call goes on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use ringway_datapath::headers::Transport;
use ringway_steering::{FlowTuple, QueueIndex};

use crate::child::PartError;
use crate::counters::{Counted, Reading, Stations};
use crate::journal::{Journal, RecordError};
use crate::launcher::Launcher;
use crate::machine::{self, Build};
use crate::placement::{Placement, Ports};
use crate::plan::{Budget, Plan, Task, primary_metric};
use crate::preflight;
use crate::progress::Progress;
use crate::record::{Failure, QueueUse, Records, Run, Stream};
use crate::stats::{float, jain};
use crate::study::{Study, Subject, TopologyKind};
use crate::tools::{Flow, Load, Measured, Tool, Working};
use crate::topology::{Attached, Blueprint, Topology, tuning};
use crate::value::{Cell, bytes};

/// Failures of a cell after which it is left out.
const FAILURES_MAX: usize = 2;
/// Ports of servers: each stream has its own, and the next run has others, as some tools refuse one
/// that had a connection a moment ago.
const PORT_FIRST: u16 = 5201;
/// From here on, a run begins with the first again.
const PORT_END: u16 = 15_000;
/// Between two looks at whether we are to end.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// A queue that has streams carries at least this part of what they measured, and one that has
/// none at most the other part of all bytes: acknowledgements and ARP.
const QUEUE_SHARE_MIN: f64 = 0.5;
const QUEUE_SHARE_MAX: f64 = 0.1;

/// How a study is to be run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where records and report go.
    pub dir: PathBuf,
    /// A cell is repeated until half of the interval of its mean is this part of it, in percent.
    pub ci_percent: f64,
    /// What the order of runs and the choice of ports come from; that of the runs that are there,
    /// or one by chance, if `None`.
    pub seed: Option<u64>,
    /// Which ringway it is.
    pub build: Build,
}

/// How it went.
#[derive(Debug)]
pub struct Outcome {
    /// All that is measured now.
    pub records: Records,
    /// Runs that gave no figures.
    pub failures: usize,
    /// Whether it was ended before its end.
    pub is_interrupted: bool,
}

/// Why a study is not run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// Something is missing.
    #[error("{}", .0.join("; "))]
    Missing(Vec<String>),
    /// Records cannot be kept.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Nothing could be measured.
    #[error("nothing could be measured: {0}")]
    Nothing(String),
}

/// Runs a study, or what is left of it.
///
/// # Errors
/// If it cannot begin, or records cannot be kept, or not a single run succeeds.
pub fn run(study: &Study, options: &Options, launcher: &Launcher) -> Result<Outcome, RunnerError> {
    let missing = preflight::missing(launcher, study, &options.dir);
    if !missing.is_empty() {
        return Err(RunnerError::Missing(missing));
    }
    let host = machine::describe(&options.build, &preflight::tools(study));
    let journal = Journal::open(&options.dir, study, &host)?;
    for difference in &journal.differences {
        eprintln!("NOTICE: not as when these records were begun: {difference}");
    }
    let known = journal.records.runs.first().map(|run| run.seed);
    let seed = options.seed.or(known).unwrap_or_else(|| fastrand::u64(..));
    // Of the runs only: a report is made in any case.
    let budget = Budget::of(study);
    let launcher = &launcher.until(budget.seconds);
    let mut bench =
        Bench { study, launcher, seed, ports: Ports::new(), server_port: PORT_FIRST, open: None };
    work(&mut bench, journal, options.ci_percent, budget)
}

fn work(
    bench: &mut Bench<'_>,
    mut journal: Journal,
    ci: f64,
    mut budget: Budget,
) -> Result<Outcome, RunnerError> {
    let study = bench.study;
    let mut plan = Plan::new(study, ci, bench.seed);
    let mut progress = Progress::start(budget.seconds);
    let ahead = plan.progress(&journal.records.runs);
    if ahead.left > 0 {
        progress.say("begins", &ahead);
    }
    let mut failures: Vec<Failure> = Vec::new();
    while let Some(task) = plan.next(&journal.records.runs).filter(|task| budget.allows(task)) {
        let label = format!("{} {}", task.subject, study.label(&task.cell));
        progress.begin(&label, &plan.progress(&journal.records.runs));
        let (begun, started) = (Instant::now(), machine::now());
        let measured = bench.measure(&task, &started);
        budget.spend(begun.elapsed().as_secs_f64());
        match measured {
            Ok(mut run) => {
                run.differences.clone_from(&journal.differences);
                let load = run.seconds + run.warmup_seconds;
                progress.took((begun.elapsed().as_secs_f64() - load).max(0.0));
                let figure = shown(study, &run);
                journal.append(run)?;
                let now = plan.progress(&journal.records.runs);
                progress.say(&format!("{label}: {figure}"), &now);
            }
            Err(_) if bench.launcher.stop().is_asked() => {}
            Err(error) => {
                // Whatever is wrong with it, the next run does not inherit it.
                bench.open = None;
                let error = error.to_string();
                let error = match bench.launcher.stop().is_due() {
                    true => format!("{error}: the time for all runs was up"),
                    false => error,
                };
                let failure = failed(&task, started, error.clone());
                journal.append_failure(&failure)?;
                failures.push(failure);
                let is_of_cell = |f: &&Failure| f.subject == task.subject && f.cell == task.cell;
                if failures.iter().filter(is_of_cell).count() >= FAILURES_MAX {
                    plan.give_up(task.subject, &task.cell);
                }
                let now = plan.progress(&journal.records.runs);
                progress.say(&format!("{label} FAILED: {error}"), &now);
            }
        }
        if bench.launcher.stop().is_due() {
            break;
        }
    }
    progress.finish();
    bench.open = None;
    let Journal { records, .. } = journal;
    match failures.last() {
        Some(last) if records.runs.is_empty() => Err(RunnerError::Nothing(last.reason.clone())),
        _ => {
            let is_interrupted = bench.launcher.stop().is_asked();
            Ok(Outcome { records, failures: failures.len(), is_interrupted })
        }
    }
}

fn failed(task: &Task, started: String, reason: String) -> Failure {
    Failure { subject: task.subject, cell: task.cell.clone(), repeat: task.repeat, started, reason }
}

/// The figure that a run is about, for people.
fn shown(study: &Study, run: &Run) -> String {
    let metric = primary_metric(study, &[run]).and_then(crate::metric::find);
    let value = metric.and_then(|metric| Some(metric.show(*run.values.get(metric.name)?)));
    value.unwrap_or_else(|| "done".to_owned())
}

/// Where runs are made: it keeps what is built for as long as the next run needs the same.
struct Bench<'a> {
    study: &'a Study,
    launcher: &'a Launcher,
    seed: u64,
    ports: Ports,
    /// The next one of servers.
    server_port: u16,
    open: Option<(Blueprint, Topology)>,
}

/// What decides where streams fall.
struct Luck<'a> {
    repeat: u32,
    seed: u64,
    ports: &'a mut Ports,
    server_port: &'a mut u16,
}

/// A stream with the queue that it falls on, where that is known.
struct Placed {
    flow: Flow,
    queue: Option<QueueIndex>,
}

impl Bench<'_> {
    fn measure(&mut self, task: &Task, started: &str) -> Result<Run, PartError> {
        let (study, seed, launcher) = (self.study, self.seed, self.launcher);
        let setup = study.setup(&task.cell);
        let blueprint =
            Blueprint::of(study, task.subject, &task.cell).map_err(PartError::Failed)?;
        let topology = built(&mut self.open, launcher, &blueprint)?;
        let tool = setup.text("tool").unwrap_or("iperf3");
        let tool = Tool::from_name(tool)
            .ok_or_else(|| PartError::Failed(format!("there is no tool {tool}")))?;
        let mut luck = Luck {
            repeat: task.repeat,
            seed,
            ports: &mut self.ports,
            server_port: &mut self.server_port,
        };
        let placed = place(topology, &blueprint, &setup, tool, &mut luck)?;
        let size = |name: &str| setup.text(name).and_then(bytes);
        let load = Load {
            flows: placed.iter().map(|one| one.flow.clone()).collect(),
            seconds: study.load.seconds,
            warmup_seconds: study.load.warmup_seconds,
            window: size("window"),
            buffer: size("buffer"),
        };
        let working = tool.start(launcher, load)?;
        let is_receiving = setup.text("direction") == Some("receive");
        let stations = stations(&working, is_receiving);
        if let Some(cpus) = blueprint.cpus {
            for pid in &stations.near_tools {
                tuning::pin_process(*pid, cpus).map_err(PartError::at("give a tool its CPUs"))?;
            }
        }
        pause(launcher, study.load.warmup_seconds.max(tool.settling_seconds()))?;
        let before = Reading::take(topology, &stations)?;
        pause(launcher, study.load.seconds)?;
        let counted = Reading::take(topology, &stations)?.since(&before);
        let measured = working.finish()?;
        let mut run = Run {
            study: study.id.clone(),
            cell: task.cell.clone(),
            repeat: task.repeat,
            seed,
            started: started.to_owned(),
            seconds: study.load.seconds,
            warmup_seconds: study.load.warmup_seconds,
            subject: task.subject,
            tools: measured.tools.clone(),
            values: measured.values.clone(),
            streams: streams(&placed, &measured),
            queues: counted.queues.clone(),
            cpu: counted.cpu.clone(),
            disturbance: counted.disturbance.clone(),
            notes: topology.notes.clone(),
            differences: vec![],
        };
        evaluate(&mut run, &counted, topology.pairs().len());
        run.notes.extend(unexpected_queues(&run, &counted, Carrier::of(&blueprint, is_receiving)));
        Ok(run)
    }
}

/// What the blueprint says, built anew unless it is what is there.
fn built<'a>(
    open: &'a mut Option<(Blueprint, Topology)>,
    launcher: &Launcher,
    blueprint: &Blueprint,
) -> Result<&'a Topology, PartError> {
    if open.as_ref().is_none_or(|(built, _)| built != blueprint) {
        // Two at once would disturb each other.
        *open = None;
        *open = Some((blueprint.clone(), Topology::build(launcher, blueprint)?));
    }
    let open = open.as_ref().map(|(_, topology)| topology);
    Ok(open.expect("it was built if it was not there"))
}

fn stations(working: &Working, is_receiving: bool) -> Stations {
    let (senders, receivers) = (working.senders().collect(), working.receivers().collect());
    if is_receiving {
        Stations { near_tools: receivers, far_tools: senders }
    } else {
        Stations { near_tools: senders, far_tools: receivers }
    }
}

/// The streams of a run, with source ports that put them where the placement wants them.
fn place(
    topology: &Topology,
    blueprint: &Blueprint,
    setup: &Cell,
    tool: Tool,
    luck: &mut Luck<'_>,
) -> Result<Vec<Placed>, PartError> {
    let count = |name: &str| setup.number(name).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let streams = count("streams");
    let is_receiving = setup.text("direction") == Some("receive");
    let placement = setup.text("placement").and_then(Placement::from_name);
    let placement = placement.unwrap_or(Placement::Random);
    // What the kernel does with a TAP device's queues is not ours to know.
    let is_known = topology.host.is_some()
        && tool.has_source_ports()
        && (blueprint.attached == Attached::Switch || !is_receiving);
    let queues = if is_known { blueprint.queues } else { 1 };
    if *luck.server_port >= PORT_END {
        *luck.server_port = PORT_FIRST;
    }
    let mut placed = Vec::new();
    for (guest, (near, far)) in topology.pairs().into_iter().enumerate() {
        let (sender, receiver) = if is_receiving { (far, near) } else { (near, far) };
        // Every guest has luck of its own.
        let own = u64::try_from(guest).unwrap_or(0).wrapping_mul(0x9e37_79b9);
        let own = luck.seed.wrapping_add(own);
        for wanted in placement.queues(streams, queues, luck.repeat, own) {
            let port = *luck.server_port;
            *luck.server_port = port.checked_add(1).ok_or_else(|| {
                PartError::Failed(format!("{streams} streams are more than there are ports"))
            })?;
            let template = FlowTuple {
                src: SocketAddr::new(sender.address.into(), 0),
                dst: SocketAddr::new(receiver.address.into(), tool.stream_port(port)),
                transport: Transport::Tcp,
            };
            let source_port = luck
                .ports
                .take(template, wanted, queues)
                .ok_or_else(|| PartError::Failed(format!("no port leads to queue {}", wanted.0)))?;
            placed.push(Placed {
                flow: Flow {
                    guest: u32::try_from(guest).unwrap_or(u32::MAX),
                    sender: sender.pid,
                    receiver: receiver.pid,
                    address: receiver.address,
                    source_port,
                    port,
                },
                queue: is_known.then_some(wanted),
            });
        }
    }
    Ok(placed)
}

fn streams(placed: &[Placed], measured: &Measured) -> Vec<Stream> {
    let with_bps = (0..).zip(placed).zip(&measured.bps);
    let stream = |((index, placed), bps): ((u32, &Placed), &Option<f64>)| Stream {
        index,
        guest: placed.flow.guest,
        source_port: placed.flow.source_port,
        queue: placed.queue.map(|queue| queue.0),
        bps: *bps,
    };
    with_bps.map(stream).collect()
}

/// Adds the values that follow from streams and counters.
fn evaluate(run: &mut Run, counted: &Counted, guests: usize) {
    let of_guest = |guest: usize| {
        let streams = run.streams.iter();
        let own = streams.filter(|stream| usize::try_from(stream.guest) == Ok(guest));
        own.filter_map(|stream| stream.bps).sum::<f64>()
    };
    let of_guests: Vec<f64> = (0..guests).map(of_guest).collect();
    let sum: f64 = of_guests.iter().sum();
    let values = &mut run.values;
    if run.streams.iter().any(|stream| stream.bps.is_some()) {
        let least = of_guests.iter().copied().fold(f64::MAX, f64::min);
        values.insert("throughput-bps".to_owned(), sum);
        values.insert("guest-min-bps".to_owned(), least);
        values.extend(jain(&of_guests).map(|index| ("fairness".to_owned(), index)));
    }
    if sum > 0.0 {
        let gbits = sum * counted.seconds / 1e9;
        values.insert("cpu-seconds-per-gbit".to_owned(), counted.cpu_seconds / gbits);
    }
    for (metric, percent) in [("completion-median-us", 50), ("completion-p99-us", 99)] {
        let time = counted.answer_times.percentile(percent);
        values.extend(time.map(|time| (metric.to_owned(), time.as_secs_f64() * 1e6)));
    }
}

/// Whose queues a stream is on, and in which direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// Those of its guest's vif, which sends.
    GuestTx,
    /// Those of its guest's vif, which receives.
    GuestRx,
    /// Those of the router's first vif, which receives all streams.
    RouterRx,
}

impl Carrier {
    fn of(blueprint: &Blueprint, is_receiving: bool) -> Carrier {
        match (blueprint.kind, is_receiving) {
            (TopologyKind::Router, _) => Carrier::RouterRx,
            (_, true) => Carrier::GuestRx,
            (_, false) => Carrier::GuestTx,
        }
    }

    fn has(self, stream: &Stream, vif: usize) -> bool {
        match self {
            Carrier::RouterRx => vif == 0,
            _ => usize::try_from(stream.guest) == Ok(vif),
        }
    }

    fn bytes(self, queue: &QueueUse) -> f64 {
        let bytes = if self == Carrier::GuestTx { queue.tx_bytes } else { queue.rx_bytes };
        float(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// Compares the queues that streams are said to be on with what the queues have carried.
fn unexpected_queues(run: &Run, counted: &Counted, carrier: Carrier) -> Option<String> {
    let is_known = |stream: &Stream| stream.queue.is_some() && stream.bps.is_some();
    if run.subject != Subject::Ringway || !run.streams.iter().all(is_known) {
        return None;
    }
    // Guests that are looked at were made first, so their vifs come first.
    let mut vifs: Vec<&str> = counted.queues.iter().map(|queue| queue.vif.as_str()).collect();
    vifs.dedup();
    let bytes_of = |streams: &mut dyn Iterator<Item = &Stream>| {
        streams.filter_map(|stream| stream.bps).map(|bps| bps * counted.seconds / 8.0).sum::<f64>()
    };
    let all = bytes_of(&mut run.streams.iter());
    let is_odd = |queue: &&QueueUse| {
        let Some(vif) = vifs.iter().position(|vif| *vif == queue.vif) else { return false };
        let own: Vec<&Stream> = run.streams.iter().filter(|s| carrier.has(s, vif)).collect();
        let here = own.iter().copied().filter(|stream| stream.queue == Some(queue.index));
        let expected = bytes_of(&mut here.clone());
        let carried = carrier.bytes(queue);
        !own.is_empty()
            && (carried < expected * QUEUE_SHARE_MIN
                || (expected == 0.0 && carried > all * QUEUE_SHARE_MAX))
    };
    let odd = counted.queues.iter().find(is_odd)?;
    Some(format!("queue {} of {} did not carry what its streams tell", odd.index, odd.vif))
}

fn pause(launcher: &Launcher, seconds: f64) -> Result<(), PartError> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if launcher.stop().is_due() {
            return Err(PartError::Interrupted);
        }
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK_PAUSE));
    }
}
