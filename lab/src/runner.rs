//! Makes the runs of a study, one after another, and stores each as soon as it is done.
//!
//! A failed run is recorded as a failure and the study continues; a cell that fails twice is given
//! up. Ctrl-C ends only the run in progress: finished runs are kept, and the next call continues.

mod inter_host;
mod queues;
mod streams;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use ringway_stats::jain;

use crate::counters::{Counted, Reading, Stations};
use crate::journal::{Journal, RecordError};
use crate::peer::Destination;
use crate::plan::{Budget, Plan, Task, primary_metric};
use crate::preflight;
use crate::progress::Progress;
use crate::record::{AROUND_ROUTER, CROSSED_ROUTER, Ends, Failure, Records, Run, Stream};
use crate::setup::Setup;
use crate::study::{Study, TopologyKind};
use crate::topology::{Blueprint, Topology, tuning};
use crate::word::{Direction, LOADER};
use inter_host::Session;
use queues::Carrier;
use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::machine::{self, Build};
use ringway_rig::tools::{Load, Measured, Working};
use streams::StreamPlacer;

/// Failures of a cell after which it is left out.
const FAILURES_MAX: usize = 2;
/// A bypassed router receives less: ARP requests, and whatever else a kernel sends by itself.
const BYPASS_BYTES_MAX: u64 = 64 << 10;
/// Seconds for which a path stays loaded after the measured ones.
const LOAD_TAIL: f64 = 1.0;
/// Pause between two checks of whether to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How to run a study.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where records and report go.
    pub dir: PathBuf,
    /// A cell is repeated until the half-width of its confidence interval is this percentage of the
    /// mean.
    pub ci_percent: f64,
    /// The seed of the order of runs and of the choice of ports; if `None`, that of the existing
    /// runs, or else a random one.
    pub seed: Option<u64>,
    /// The build of ringway.
    pub build: Build,
    /// What `driver = "qemu"` boots: a folder with a kernel and an initramfs.
    pub image: Option<PathBuf>,
    /// The machine of the far end, if it is another one.
    pub peer: Option<Destination>,
}

/// The outcome of a call.
#[derive(Debug)]
pub struct Outcome {
    /// All records so far.
    pub records: Records,
    /// Runs without figures.
    pub failures: usize,
    /// Whether it was interrupted.
    pub is_interrupted: bool,
}

/// Why a study cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// Something is missing.
    #[error("{}", .0.join("; "))]
    Missing(Vec<String>),
    /// Records cannot be stored.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The other machine, or the path to it, cannot be used.
    #[error("{0}")]
    Peer(String),
    /// Nothing could be measured.
    #[error("no run succeeded: {0}")]
    Nothing(String),
}

impl From<PartError> for RunnerError {
    fn from(error: PartError) -> RunnerError {
        RunnerError::Peer(error.to_string())
    }
}

/// Runs a study, or the rest of it.
///
/// # Errors
/// If it cannot begin, or records cannot be stored, or not a single run succeeds.
pub fn run(study: &Study, options: &Options, launcher: &Launcher) -> Result<Outcome, RunnerError> {
    let session = match &options.peer {
        Some(to) => Some(Session::open(launcher, to, study, (&options.build, &options.dir))?),
        None => {
            let image = options.image.as_deref();
            let missing = preflight::missing(launcher, study, &options.dir, image);
            if !missing.is_empty() {
                return Err(RunnerError::Missing(missing));
            }
            None
        }
    };
    let host = machine::describe(&options.build, &preflight::tools(study));
    let mut journal = Journal::open(&options.dir, study, &host)?;
    if let Some(session) = &session {
        journal.set_peer(&options.dir, &session.peer)?;
    }
    for difference in &journal.differences {
        eprintln!("NOTICE: something has changed since these records were started: {difference}");
    }
    let known = journal.records.runs.first().map(|run| run.seed);
    let seed = options.seed.or(known).unwrap_or_else(|| fastrand::u64(..));
    // The budget covers the runs only: a report is always written.
    let budget = Budget::of(study);
    let image = options.image.clone();
    let launcher = &launcher.until(budget.seconds);
    let luck = StreamPlacer::new(seed);
    let mut bench = Bench { study, launcher, seed, luck, open: None, image, session };
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
    if let Some(session) = &bench.session {
        session.leave_out(study, &mut plan)?;
    }
    let mut progress = Progress::start(budget.seconds);
    let ahead = plan.progress(&journal.records.runs);
    if ahead.left > 0 {
        progress.say("begins", &ahead);
    }
    let mut failures = Vec::new();
    while let Some(task) = plan.next(&journal.records.runs).filter(|task| budget.allows(task)) {
        let label = format!("{} {}", task.subject, study.label(&task.cell));
        progress.begin(&label, &plan.progress(&journal.records.runs));
        let (begun, started) = (Instant::now(), machine::now());
        let measured = bench.measure(&task, &started);
        let seconds = begun.elapsed().as_secs_f64();
        budget.spend(seconds);
        let outcome = match measured {
            Ok(mut run) => {
                run.differences.clone_from(&journal.differences);
                progress.took((seconds - run.seconds - run.warmup_seconds).max(0.0));
                let figure = shown(study, &run);
                journal.append(run)?;
                format!(": {figure}")
            }
            Err(_) if bench.launcher.stop().is_asked() => break,
            Err(error) => {
                let failure = failed(&task, started, bench.discard(&error));
                let outcome = format!(" FAILED: {}", failure.reason);
                journal.append_failure(&failure)?;
                failures.push(failure);
                if failures.iter().filter(|one| is_of(one, &task)).count() >= FAILURES_MAX {
                    plan.give_up(task.subject, &task.cell);
                }
                outcome
            }
        };
        progress.say(&format!("{label}{outcome}"), &plan.progress(&journal.records.runs));
        if bench.launcher.stop().is_due() {
            break;
        }
    }
    progress.finish();
    bench.open = None;
    bench.session = None;
    let records = journal.records;
    let is_interrupted = bench.launcher.stop().is_asked();
    match failures.last() {
        Some(last) if records.runs.is_empty() => Err(RunnerError::Nothing(last.reason.clone())),
        _ => Ok(Outcome { records, failures: failures.len(), is_interrupted }),
    }
}

fn is_of(failure: &Failure, task: &Task) -> bool {
    failure.subject == task.subject && failure.cell == task.cell
}

fn failed(task: &Task, started: String, reason: String) -> Failure {
    Failure { subject: task.subject, cell: task.cell.clone(), repeat: task.repeat, started, reason }
}

/// The primary figure of a run, for people.
fn shown(study: &Study, run: &Run) -> String {
    let metric = primary_metric(study, &[run]).and_then(crate::metric::find);
    let value = metric.and_then(|metric| Some(metric.show(*run.values.get(metric.name)?)));
    value.unwrap_or_else(|| "done".to_owned())
}

/// Where runs are made: it keeps a topology as long as the next run needs the same one.
struct Bench<'a> {
    study: &'a Study,
    launcher: &'a Launcher,
    seed: u64,
    luck: StreamPlacer,
    open: Option<(Blueprint, Topology)>,
    /// The folder with what a machine boots.
    image: Option<PathBuf>,
    /// The other machine, if the far end is there.
    session: Option<Session>,
}

/// What a run gave.
struct Made {
    streams: Vec<Stream>,
    measured: Measured,
    /// Of the streams that loaded the path.
    loads: Vec<Measured>,
    counted: Counted,
    ends: Option<Ends>,
    notes: Vec<String>,
}

impl Bench<'_> {
    /// Discards the topology, or the connection to the peer, after a failed run, so that the
    /// next run does not inherit a fault of it. Returns the reason for people.
    fn discard(&mut self, error: &PartError) -> String {
        self.open = None;
        if let Some(session) = &mut self.session {
            session.discard();
        }
        match self.launcher.stop().is_due() {
            true => format!("{error}: the time for all runs had passed"),
            false => error.to_string(),
        }
    }

    fn measure(&mut self, task: &Task, started: &str) -> Result<Run, PartError> {
        if let Some(session) = &mut self.session {
            let made = session.measure(self.launcher, self.study, &mut self.luck, task)?;
            let mut run = recorded(self.study, self.seed, task, started, &made);
            evaluate(&mut run, &made.counted, 1);
            return Ok(run);
        }
        self.measure_topology(task, started)
    }

    /// A run within this machine.
    fn measure_topology(&mut self, task: &Task, started: &str) -> Result<Run, PartError> {
        let (study, seed, launcher) = (self.study, self.seed, self.launcher);
        let setup = Setup::of(study, &task.cell).map_err(PartError::Failed)?;
        let blueprint =
            Blueprint::of(study.topology.kind, task.subject, &setup).map_err(PartError::Failed)?;
        let (image, flow_key) = (self.image.clone(), Some(self.luck.flow_key));
        let blueprint = Blueprint { image, flow_key, ..blueprint };
        let topology = built(&mut self.open, launcher, &blueprint)?;
        let placed = self.luck.place(topology, &blueprint, &setup, task.repeat)?;
        let load = |flows, seconds| Load {
            flows,
            seconds,
            warmup_seconds: study.load.warmup_seconds,
            window: setup.window,
            buffer: setup.buffer,
        };
        let loading = match self.luck.load(topology, &setup, task.repeat)? {
            flows if flows.is_empty() => None,
            // The load starts before the measurement and must last until its end.
            flows => Some(LOADER.start(launcher, &load(flows, study.load.seconds + LOAD_TAIL))?),
        };
        let flows = placed.iter().map(|one| one.flow.clone()).collect();
        let working = setup.tool.start(launcher, &load(flows, study.load.seconds))?;
        let is_receiving = setup.direction == Direction::Receive;
        let mut stations = stations(&working, is_receiving);
        if let Some(loading) = &loading {
            // Tools of both directions are in both places, in equal numbers.
            stations.far_tools.extend(loading.senders().chain(loading.receivers()));
        }
        // What sends through a router runs on a host of its own.
        if let Some(cpus) = blueprint.cpus.filter(|_| !blueprint.kind.has_router()) {
            for pid in &stations.near_tools {
                tuning::pin_process(*pid, cpus).map_err(PartError::at("give a tool its CPUs"))?;
            }
        }
        pause(launcher, study.load.warmup_seconds.max(setup.tool.settling_seconds()))?;
        let before = Reading::take(topology, &stations)?;
        let dropped_before = topology.delay_drops()?;
        let changed = pass(launcher, topology, study.load.seconds, &setup)?;
        let counted = Reading::take(topology, &stations)?.since(&before);
        let dropped = topology.delay_drops()?;
        let measured = working.finish()?;
        let loads = loading.map(Working::finish).transpose()?.into_iter().collect();
        let notes = topology.notes.iter().cloned().chain(changed).collect();
        let streams = streams::recorded(&placed, &measured);
        let made = Made { streams, measured, loads, counted, ends: None, notes };
        let mut run = recorded(study, seed, task, started, &made);
        run.flow_key = topology.host.as_ref().and(flow_key).map(|key| key.to_string());
        let frames = dropped.zip(dropped_before).map(|(now, then)| now.saturating_sub(then));
        if let Some(frames) = frames.filter(|frames| *frames > 0) {
            run.notes.push(format!("queues of the relay that delays dropped {frames} frames"));
        }
        if blueprint.kind == TopologyKind::RouterBypass && !run.queues.is_empty() {
            note_bypass(&mut run);
        }
        evaluate(&mut run, &made.counted, topology.pairs().len());
        let carrier = Carrier::of(&blueprint, is_receiving);
        run.notes.extend(queues::unexpected(&run, &made.counted, carrier));
        Ok(run)
    }
}

/// Notes whether streams went around the router. Its queues carry none of them, so they say nothing
/// about these.
fn note_bypass(run: &mut Run) {
    let crossed: u64 = run.queues.drain(..).map(|queue| queue.rx_bytes).sum();
    let note = if crossed < BYPASS_BYTES_MAX { AROUND_ROUTER } else { CROSSED_ROUTER };
    run.notes.push(note.to_owned());
}

/// The record of a run, without values that are derived from others.
fn recorded(study: &Study, seed: u64, task: &Task, started: &str, made: &Made) -> Run {
    let Made { streams, measured, loads, counted, ends, notes } = made;
    let mut run = Run {
        study: study.id.clone(),
        cell: task.cell.clone(),
        repeat: task.repeat,
        seed,
        flow_key: None,
        started: started.to_owned(),
        seconds: study.load.seconds,
        warmup_seconds: study.load.warmup_seconds,
        subject: task.subject,
        tools: measured.tools.clone(),
        values: measured.values.clone(),
        courses: measured.courses.clone(),
        streams: streams.clone(),
        queues: counted.queues.clone(),
        cpu: counted.cpu.clone(),
        disturbance: counted.disturbance.clone(),
        ends: ends.clone(),
        notes: notes.clone(),
        differences: vec![],
    };
    if !loads.is_empty() {
        let bps = loads.iter().flat_map(|load| load.bps.iter().copied().flatten()).sum();
        run.values.insert("load-bps".to_owned(), bps);
        run.tools.extend(loads.iter().flat_map(|load| load.tools.clone()));
    }
    run
}

/// The topology of the blueprint: the existing one if it matches, else a new one.
fn built<'a>(
    open: &'a mut Option<(Blueprint, Topology)>,
    launcher: &Launcher,
    blueprint: &Blueprint,
) -> Result<&'a mut Topology, PartError> {
    if open.as_ref().is_none_or(|(built, _)| built != blueprint) {
        // Two at once would disturb each other.
        *open = None;
        *open = Some((blueprint.clone(), Topology::build(launcher, blueprint)?));
    }
    let open = open.as_mut().map(|(_, topology)| topology);
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

/// Adds the values that are derived from streams and counters.
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
        let time = counted.response_times.percentile(percent);
        values.extend(time.map(|time| (metric.to_owned(), time.as_secs_f64() * 1e6)));
    }
}

/// Waits for the seconds of a run, and meanwhile changes the number of the router's queues as often
/// as the set-up says. Returns a note about that.
fn pass(
    launcher: &Launcher,
    topology: &mut Topology,
    seconds: f64,
    setup: &Setup,
) -> Result<Option<String>, PartError> {
    let (Some(machine), Some(host), 1..) =
        (&mut topology.machine, &topology.host, setup.queue_changes)
    else {
        pause(launcher, seconds)?;
        return Ok(None);
    };
    let other = if setup.queues == 1 { 2 } else { 1 };
    let counts = [other, setup.queues].into_iter().cycle().take(usize::from(setup.queue_changes));
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let between = seconds / f64::from(setup.queue_changes + 1);
    let mut changed = 0;
    for count in counts {
        pause(launcher, between)?;
        machine.set_queues(count, host)?;
        changed += usize::from(Instant::now() < end);
    }
    pause(launcher, end.saturating_duration_since(Instant::now()).as_secs_f64())?;
    // The next run must begin with the same number of queues.
    machine.set_queues(setup.queues, host)?;
    Ok(Some(queues::changes(changed, setup, other)))
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
        thread::sleep(left.min(POLL_INTERVAL));
    }
}
