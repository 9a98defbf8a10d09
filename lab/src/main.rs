//! `ringway lab`, as the program `ringway-lab`: runs studies of many queues, and evaluates their
//! records.

mod model;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use ringway_lab::analysis::Analysis;
use ringway_lab::assert::{Outcome, Rule};
use ringway_lab::compare::{Changes, Verdict, compare};
use ringway_lab::peer::{Destination, agent, matrix, ssh};
use ringway_lab::plan::Plan;
use ringway_lab::record::Records;
use ringway_lab::study::Study;
use ringway_lab::topology::unsupported;
use ringway_lab::{metric, part, preflight, report, runner, study};
use ringway_rig::launcher::Launcher;
use ringway_rig::machine::{self, Build};
use ringway_rig::scratch::Scratch;
use ringway_rig::stop::Stop;
use ringway_terminal::options::{Common, number, time_in};
use ringway_terminal::output::{print, print_json};
use ringway_terminal::{completions, exit, logging, table};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// A shell's exit code after Ctrl-C.
const INTERRUPTED: i32 = 130;
/// Half-width of a confidence interval, in percent of the mean, that ends a cell's repeats.
const CI_PERCENT: f64 = 5.0;
/// The words that start this program as a part of an experiment.
const PART: [&str; 1] = ["part"];
/// What the names of its temporary directories begin with.
const SCRATCH: &str = "ringway-lab-";
/// The variable of the environment that stands for `--machine`.
const MACHINE: &str = "RINGWAY_MACHINE";
const RUN_EXAMPLES: &str = "Examples:
  ringway lab run transmit --quick --out results
  ringway lab run receive --line-rate 10Gb/s --precision 2 --out results
  ringway lab run mine.toml --out results --assert 'q4.s8 >= 0.9*baseline'
  ringway lab run transmit --peer root@xen2 --peer-command /opt/ringway --out results";

/// Measure this machine: run studies of many queues, report and compare them
#[derive(Debug, Parser)]
#[command(name = "ringway-lab", bin_name = "ringway lab", version, max_term_width = 100)]
struct Lab {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show all studies
    List(List),
    /// Print a study in TOML, to read or to edit
    Show(Show),
    /// Run or resume a study and write its report
    ///
    /// It writes runs.jsonl (one run per line), runs.csv, summary.json, report.html, figures/ and
    /// metrics.prom to the directory. To resume an interrupted study, repeat the command. The study
    /// runs in its own network namespaces, for a user other than root in a new user namespace; with
    /// --peer, in this machine's own network.
    ///
    /// Exit codes: 0 if every cell is measured and every rule holds; 1 if it cannot begin, a run
    /// failed, the time was up before a cell's first run, or a rule does not hold; 2 if the command
    /// line is wrong; 130 if it was interrupted.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<Run>),
    #[command(hide = true)]
    Part(Part),
    #[command(hide = true)]
    Agent(Agent),
    #[command(hide = true)]
    Completions(completions::Completions),
    #[command(hide = true)]
    Man(completions::Man),
    /// Write the report, the figures and the exports again from the records
    Report(Report),
    /// Compare two runs of a study, with confidence intervals
    Compare(Compare),
    /// Check records against rules
    ///
    /// Exit codes: 0 if all rules hold; 1 if one does not, or cannot be checked; 2 if the command
    /// line is wrong.
    ///
    /// A rule compares the mean of a cell with a number (9.4G), with another cell (1.5*q1.s8), or
    /// with the baseline of the same cell (0.9*baseline, 2*baseline-tap-relay). Name another metric
    /// than the study's own in brackets: q4.s8[rtt-p99-us] <= 500.
    #[command(after_help = "Example:\n  ringway lab check results \
        --assert 'transmit.q4.s8 >= 0.9*baseline'")]
    Check(Check),
    Model(model::Model),
}

#[derive(Debug, Args)]
struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Show {
    /// The study, such as transmit
    study: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Run {
    /// The study, such as transmit, or the file of your own, such as mine.toml
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    study: Option<String>,
    /// A study of your own in TOML, for files whose names do not end in .toml
    #[arg(long = "study-file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Fewer cells and shorter runs, in about two minutes
    #[arg(long)]
    quick: bool,
    /// The directory for records and report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Rate of the wire, such as 10Gb/s [default: unlimited]
    #[arg(long, value_name = "RATE")]
    line_rate: Option<String>,
    /// Repeat a cell until its mean is known to ± this many percent (95 % interval)
    #[arg(long, value_name = "PERCENT", default_value_t = CI_PERCENT)]
    precision: f64,
    /// The maximum number of runs of a cell
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=10_000))]
    max_repeats: Option<u32>,
    /// Start no run that would end later than this many hours after the first [default: what the
    /// study says, or 6]
    #[arg(long, value_name = "HOURS", value_parser = time_in(3600.0), conflicts_with = "quick")]
    max_hours: Option<f64>,
    /// The image of a study's virtual machine: a directory with vmlinux and guest.cpio
    #[arg(long, value_name = "DIR", env = MACHINE)]
    machine: Option<PathBuf>,
    /// Seed of the order of runs and of the choice of ports, to repeat them
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A rule that must hold in the end, as for `lab check`; may be repeated
    #[arg(long = "assert", value_name = "RULE")]
    rules: Vec<Rule>,
    #[command(flatten)]
    far: Far,
}

/// Where the far end is.
#[derive(Debug, Args)]
struct Far {
    /// Run the far end on another machine over ssh; the near end is this machine as it is
    ///
    /// The host is as for ssh, which reads its own configuration and asks nothing. The peer needs
    /// the same build of ringway, and the tools of the study. No setting of either machine is
    /// changed: only cells are measured that the interfaces fit, with their queues, MTU, GRO and
    /// LRO.
    #[arg(long, value_name = "[USER@]HOST", value_parser = ssh::host, conflicts_with = "line_rate")]
    peer: Option<String>,
    /// The peer's IPv4 address on the path to measure [default: that of the ssh host]
    #[arg(long, value_name = "ADDRESS", requires = "peer")]
    peer_address: Option<Ipv4Addr>,
    /// The ringway program on the peer
    #[arg(long, value_name = "PATH", requires = "peer", default_value = "ringway")]
    peer_command: String,
    /// The ssh command with options, such as `ssh -p 2222 -F file`; it is split at spaces
    #[arg(long, value_name = "COMMAND", requires = "peer", default_value = ssh::PROGRAM)]
    peer_ssh: String,
}

/// The far end of another machine's experiment.
#[derive(Debug, Args)]
struct Agent {
    /// End if no request comes for so many seconds
    #[arg(long, value_parser = number::<u64>(1..=1_000_000))]
    idle_seconds: u64,
}

/// One process of an experiment.
#[derive(Debug, Args)]
struct Part {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Report {
    /// The directory with the records
    dir: PathBuf,
}

#[derive(Debug, Args)]
struct Compare {
    /// The directory with the records before
    before: PathBuf,
    /// The directory with the records after
    after: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Check {
    /// The directory with the records
    dir: PathBuf,
    /// A rule that must hold; may be repeated
    #[arg(long = "assert", value_name = "RULE", required = true)]
    rules: Vec<Rule>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    exit(run(&Lab::parse()))
}

fn run(args: &Lab) -> Result<ExitCode> {
    logging::start(args.common.log_level, "");
    match &args.verb {
        Verb::List(args) => list(args)?,
        Verb::Show(args) if args.json => print_json(&study::shipped(&args.study)?)?,
        Verb::Show(args) => print(study::shipped_text(&args.study)?)?,
        Verb::Run(args) => return run_study(args),
        Verb::Part(args) => part::run(&args.words)?,
        Verb::Agent(args) => serve(args)?,
        Verb::Completions(args) => args.print(Lab::command())?,
        Verb::Man(args) => args.write(Lab::command())?,
        Verb::Report(args) => make_report(&args.dir)?,
        Verb::Compare(args) => show_changes(args)?,
        Verb::Check(args) => return check(args),
        Verb::Model(args) => model::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A study, as `list` shows it.
#[derive(Debug, Serialize)]
struct Entry {
    id: String,
    /// Ids of `docs/sources.toml`; scripts know the field by this name.
    #[serde(rename = "rows")]
    sources: Vec<String>,
    title: String,
    /// Runs of a whole study, at least.
    runs: usize,
    /// Their duration, without repeats that the confidence interval requires.
    seconds: f64,
    /// Why `run` refuses it, if it does.
    #[serde(rename = "cannot-run")]
    cannot_run: Option<String>,
}

fn list(args: &List) -> Result<()> {
    let entries: Result<Vec<Entry>, _> = study::ids()
        .into_iter()
        .map(|id| {
            let study = study::shipped(id)?;
            let cannot_run = unsupported(&study);
            let progress = Plan::new(&study, CI_PERCENT, 0).progress(&[]);
            let (runs, seconds) = (progress.left, progress.seconds());
            let Study { id, sources, title, .. } = study;
            Ok::<_, study::StudyError>(Entry { id, sources, title, runs, seconds, cannot_run })
        })
        .collect();
    let entries = entries?;
    if args.json {
        return print_json(&entries);
    }
    let cited: Vec<String> = entries.iter().flat_map(|entry| entry.sources.clone()).collect();
    let rows = entries.into_iter().map(|entry| {
        let hours = match entry.cannot_run {
            Some(_) => "not yet".to_owned(),
            None => format!("{:.1}", entry.seconds / 3600.0),
        };
        vec![entry.id, entry.runs.to_string(), hours, entry.title, of(&entry.sources)]
    });
    print(&table::render(&["STUDY", ">RUNS", ">HOURS", "TITLE", "SOURCES"], rows))?;
    print(&format!("\n{}", ringway_sources::titles(cited.iter().map(String::as_str))))
}

/// The sources of some places, each once.
fn of(places: &[String]) -> String {
    let sources = ringway_sources::by_source(places.iter().map(String::as_str));
    sources.iter().map(|one| one.source.id.as_str()).collect::<Vec<_>>().join(" ")
}

fn run_study(args: &Run) -> Result<ExitCode> {
    let peer = args.far.destination()?;
    let study = chosen(args)?;
    // A variable of the environment is for all studies, so it may be unused.
    let is_named = |dir: &&Path| std::env::var_os(MACHINE).is_none_or(|value| value != **dir);
    let named = args.machine.as_deref().filter(is_named);
    let unused = preflight::unused_image(&study, named);
    let (study, notices) = match &peer {
        Some(_) => matrix::with_peer(&study).map_err(anyhow::Error::msg)?,
        None => preflight::without_absent(&study, args.machine.as_deref()),
    };
    let (study, absent) = preflight::without_absent_tools(&study);
    let all = unused.iter().chain(&notices).chain(&absent);
    all.for_each(|notice| eprintln!("NOTICE: {notice}"));
    args.rules.iter().try_for_each(|rule| rule.fits(&study))?;
    if !(args.precision > 0.0 && args.precision < 100.0) {
        bail!("--precision {}: expected more than 0 and less than 100 percent", args.precision);
    }
    if peer.is_none() {
        // Before the first thread; catching signals starts none.
        preflight::isolate()?;
    }
    ringway_sys::process::raise_open_files_limit()?;
    let stop = stop_on_signals()?;
    let scratch = Scratch::new(SCRATCH).context("create a temporary directory")?;
    let launcher = Launcher::new(&PART, scratch.path(), Stop::when(stop))?;
    let (study, notices) = match &peer {
        Some(_) => (study, vec![]),
        None => preflight::without_unsupported(&launcher, &study),
    };
    notices.iter().for_each(|notice| eprintln!("NOTICE: {notice}"));
    args.rules.iter().try_for_each(|rule| rule.fits(&study))?;
    let options = runner::Options {
        dir: args.out.clone(),
        ci_percent: args.precision,
        seed: args.seed,
        build: build(),
        image: args.machine.clone(),
        peer,
    };
    let outcome = match runner::run(&study, &options, &launcher) {
        Err(_) if launcher.stop().is_asked() => return interrupted(),
        outcome => outcome?,
    };
    conclude(args, &outcome)
}

/// Writes and prints what a study found, and whether it is complete and its rules hold.
fn conclude(args: &Run, outcome: &runner::Outcome) -> Result<ExitCode> {
    let records = Records::read(&args.out)?;
    let files = report::write(&args.out, &records)?;
    let page = files.first().context("a report has a page")?;
    let analysis = Analysis::of(&records);
    print(&format!("\n{}\n\n{}\n", analysis.verdict, page.display()))?;
    if outcome.is_interrupted {
        return interrupted();
    }
    if !analysis.missing.is_empty() {
        let missing = analysis.missing.join(", ");
        eprintln!("not measured: {missing}; repeat the command to continue");
    }
    let mut is_good = outcome.failures == 0 && analysis.missing.is_empty();
    for rule in &args.rules {
        let outcome = rule.check(&records)?;
        print(&format!("{outcome}\n"))?;
        is_good &= outcome.holds;
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the first signal to end sets.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // A second signal ends this process at once, and its children with it.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn interrupted() -> Result<ExitCode> {
    eprintln!("interrupted; repeat the command to continue");
    Ok(ExitCode::from(u8::try_from(INTERRUPTED)?))
}

impl Far {
    /// How to reach the peer; `None` if the far end is on this machine.
    fn destination(&self) -> Result<Option<Destination>> {
        let Some(host) = &self.peer else { return Ok(None) };
        let ssh = ssh::words(&self.peer_ssh).map_err(|fault| anyhow!("--peer-ssh: {fault}"))?;
        let (program, address) = (self.peer_command.clone(), self.peer_address);
        Ok(Some(Destination { host: host.clone(), ssh, program, address }))
    }
}

/// Serves a lab on another machine, over standard input and output.
fn serve(args: &Agent) -> Result<()> {
    let scratch = Scratch::new(SCRATCH).context("create a temporary directory")?;
    let launcher = Launcher::new(&PART, scratch.path(), Stop::default())?;
    ringway_sys::process::raise_open_files_limit()?;
    let idle = Duration::from_secs(args.idle_seconds);
    agent::serve(&build(), &launcher, io::stdin(), &mut io::stdout(), idle)
        .map_err(|error| anyhow!("the lab that this agent serves: {error}"))
}

fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("RINGWAY_COMMIT").to_owned(),
    }
}

/// The study with the changes from the command line.
fn chosen(args: &Run) -> Result<Study> {
    let mut study = match (&args.file, &args.study) {
        (Some(file), _) => Study::read(file)?,
        // A name with a slash or a dot is a file: no shipped study has such a name.
        (None, Some(name)) if name.contains(['/', '.']) => Study::read(Path::new(name))?,
        (None, Some(id)) => study::shipped(id)?,
        (None, None) => bail!("no study given: `ringway lab list` shows all studies"),
    };
    if args.quick {
        study = study.quick();
    }
    if let Some(rate) = &args.line_rate {
        study = study.with_line(rate).map_err(anyhow::Error::msg)?;
    }
    if let Some(most) = args.max_repeats {
        study.load.max_repeats = most;
        study.load.repeats = study.load.repeats.min(most);
    }
    if let Some(hours) = args.max_hours {
        study.load.budget_seconds = Some(hours * 3600.0);
    }
    Ok(study)
}

fn make_report(dir: &Path) -> Result<()> {
    let records = Records::read(dir)?;
    let here = machine::describe(&build(), &BTreeSet::new());
    if !records.host.is_same_machine(&here) {
        eprintln!("NOTICE: these records are of another machine: {}", records.host.name());
    }
    let files = report::write(dir, &records)?;
    let analysis = Analysis::of(&records);
    let left_out = analysis.left_out.iter().map(|one| &one.reason);
    for notice in left_out.chain(&records.notices) {
        eprintln!("NOTICE: {notice}");
    }
    let page = files.first().context("a report has a page")?;
    print(&format!("{}\n\n{}\n", analysis.verdict, page.display()))
}

fn show_changes(args: &Compare) -> Result<()> {
    let (before, after) = (Records::read(&args.before)?, Records::read(&args.after)?);
    let changes = compare(&before, &after)?;
    if !before.host.is_same_machine(&after.host) {
        eprintln!("NOTICE: these are two machines: differences may have other causes than ringway");
    }
    let is_same_path = match (&before.peer, &after.peer) {
        (Some(one), Some(other)) => one.is_same_path(other),
        (one, other) => one.is_none() && other.is_none(),
    };
    if !is_same_path {
        eprintln!("NOTICE: the far ends are not the same: differences may have other causes");
    }
    if args.json {
        return print_json(&changes);
    }
    let mut text: String = changes
        .differences
        .iter()
        .map(|difference| format!("NOTICE: the two differ: {difference}\n"))
        .collect();
    let rows = changes.cells.iter().map(|cell| {
        let show = |value| {
            metric::find(&cell.metric).map_or_else(String::new, |metric| metric.show(value))
        };
        vec![
            cell.cell.clone(),
            cell.metric.clone(),
            show(cell.before),
            show(cell.after),
            cell.ratio.map_or_else(|| "-".to_owned(), |ratio| percent(ratio.value)),
            cell.ratio.and_then(|ratio| ratio.interval).map_or_else(
                || "-".to_owned(),
                |span| format!("{} to {}", percent(span.low), percent(span.high)),
            ),
            word(cell.verdict).to_owned(),
        ]
    });
    let head = ["CELL", "METRIC", ">BEFORE", ">AFTER", ">CHANGE", ">95 % INTERVAL", "SAYS"];
    text += &table::render(&head, rows);
    text += &summary(&changes);
    print(&text)
}

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Unclear => "no change",
        Verdict::TooFewRuns => "too few runs",
    }
}

fn summary(changes: &Changes) -> String {
    let count = |verdict| changes.cells.iter().filter(|cell| cell.verdict == verdict).count();
    let mut text = format!(
        "Of {} cells {} better, {} worse; the test is corrected for the number of cells.\n",
        changes.cells.len(),
        count(Verdict::Better),
        count(Verdict::Worse),
    );
    if !changes.only_in_one.is_empty() {
        text += &format!("Only in one of the two: {}.\n", changes.only_in_one.join(", "));
    }
    text
}

fn check(args: &Check) -> Result<ExitCode> {
    let records = Records::read(&args.dir)?;
    let outcomes: Result<Vec<Outcome>, _> =
        args.rules.iter().map(|rule| rule.check(&records)).collect();
    let outcomes = outcomes?;
    if args.json {
        print_json(&outcomes)?;
    } else {
        print(&outcomes.iter().map(|outcome| format!("{outcome}\n")).collect::<String>())?;
    }
    let all_hold = outcomes.iter().all(|outcome| outcome.holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
