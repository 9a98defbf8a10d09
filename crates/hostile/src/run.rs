//! Runs scenarios one after another, beside honest guests, and prints the measurements.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringway_rig::cpu_time::{QUIET_PATIENCE, becomes_quiet};
use ringway_rig::launcher::{self, Launcher};
use ringway_rig::machine::{self, Build};
use ringway_rig::scratch::Scratch;
use ringway_rig::stop::Stop;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::catalogue;
use crate::record::{Record, Round};
use crate::report;
use crate::scenario::{Control, Net, Pace, Scenario};
use crate::test_host::{Lengths, TestHost};

const TUN: &str = "/dev/net/tun";

/// How to run scenarios.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    /// Names; empty for all.
    pub(crate) names: Vec<String>,
    /// Only the quick scenarios, with short runs.
    pub(crate) is_quick: bool,
    /// Seconds of each attack, if not the default.
    pub(crate) seconds: Option<f64>,
    /// Runs of each scenario with a share, if not the default.
    pub(crate) rounds: Option<u32>,
    /// The path of ringway's program, if not the one beside this one.
    pub(crate) ringway: Option<PathBuf>,
    /// For programs.
    pub(crate) is_json: bool,
}

/// All measurements.
#[derive(Debug, Serialize)]
struct Report<'a> {
    command: String,
    host: ringway_rig::machine::Host,
    goal: f64,
    scenarios: &'a [Record],
}

/// Runs the scenarios. Returns false if a bound was broken.
pub(crate) fn run(choice: &Choice) -> Result<bool> {
    let chosen = choose(choice)?;
    let ringway = find_ringway(choice.ringway.as_deref())?;
    // A quick run is one of many tests that run at the same time.
    let is_quiet = !choice.is_quick && becomes_quiet(QUIET_PATIENCE);
    if !is_quiet && !choice.is_quick {
        eprintln!("SKIPPED: bounds on lost pings: other work uses the CPUs");
    }
    let judged = |scenario: &Scenario| if is_quiet { *scenario } else { scenario.loses(100) };
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&asked))?;
    }
    let scratch = Scratch::new("ringway-hostile-").context("a place for temporary files")?;
    let launcher = Launcher::new(&[], scratch.path(), Stop::when(asked))?;
    let mut records = Vec::new();
    let mut host: Option<TestHost<'_>> = None;
    let start = Instant::now();
    // One host for scenarios on the switch, then one for those on a bridge.
    for net in [Net::Switch, Net::Bridge] {
        for scenario in chosen.iter().filter(|scenario| scenario.net == net) {
            let place = format!("{}/{}", records.len() + 1, chosen.len());
            eprint!("hostile: {place} {} ", scenario.name);
            let record = measure(&launcher, &ringway, &mut host, &judged(scenario), choice)?;
            eprintln!("{}: {}", record.verdict(), report::in_short(&record));
            if !record.broken.is_empty() {
                // Its leftovers must not be blamed on the next scenario.
                host = None;
            }
            records.push(record);
        }
    }
    drop(host);
    let is_good = !records.iter().any(Record::is_failure);
    if choice.is_json {
        let build = Build { version: env!("CARGO_PKG_VERSION").to_owned(), commit: commit() };
        let host = machine::describe(&build, &BTreeSet::new());
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        let report = Report { command, host, goal: crate::record::GOAL, scenarios: &records };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report::table(&records));
    }
    eprintln!("hostile: {} scenarios in {:.0} s", records.len(), start.elapsed().as_secs_f64());
    Ok(is_good)
}

fn choose(choice: &Choice) -> Result<Vec<&'static Scenario>> {
    let mut chosen = Vec::new();
    for name in &choice.names {
        let scenario = catalogue::find(name)
            .with_context(|| format!("there is no scenario {name}: see `ringway-hostile list`"))?;
        chosen.push(scenario);
    }
    if chosen.is_empty() {
        let is_wanted = |scenario: &&Scenario| !choice.is_quick || scenario.pace == Pace::Quick;
        chosen = catalogue::all().filter(is_wanted).collect();
    }
    Ok(chosen)
}

fn measure<'a>(
    launcher: &'a Launcher,
    ringway: &Path,
    host: &mut Option<TestHost<'a>>,
    scenario: &Scenario,
    choice: &Choice,
) -> Result<Record> {
    let seconds = choice.seconds.unwrap_or(if choice.is_quick { 0.6 } else { 3.0 });
    let act = Duration::try_from_secs_f64(seconds).context("--seconds")?;
    let idle = act.min(Duration::from_millis(if choice.is_quick { 300 } else { 2000 }));
    let usual = if choice.is_quick || scenario.control == Control::Before { 1 } else { 3 };
    let mut rounds: Vec<Round> = Vec::new();
    for _ in 0..choice.rounds.unwrap_or(usual) {
        if host.as_ref().is_none_or(|host| host.net() != scenario.net) {
            // Drop the old host first: interface names may be the same.
            *host = None;
            *host = Some(TestHost::new(launcher, ringway, scenario.net)?);
        }
        let Some(host) = host.as_mut() else { bail!("there is no host") };
        rounds.push(host.run(scenario, Lengths { idle, act })?);
    }
    Ok(Record::new(scenario, &rounds))
}

/// What this machine lacks for a host with guests, if anything.
pub(crate) fn missing() -> Option<String> {
    if launcher::find("ping").is_none() {
        return Some("ping is not installed: apt-get install iputils-ping".to_owned());
    }
    if let Err(error) = OpenOptions::new().write(true).open(TUN) {
        return Some(format!("{TUN}: {error}; load the module tun and let this user open it"));
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--net", "true"]).stderr(Stdio::null());
    let mut may_unshare = || unshare.status().is_ok_and(|status| status.success());
    if rustix::process::geteuid().is_root() || may_unshare() {
        return None;
    }
    Some("neither root nor allowed to make a user namespace".to_owned())
}

/// ringway's program: the given path, the one beside this program, or one in the path.
fn find_ringway(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        if !named.is_file() {
            bail!("--ringway {}: there is no such program", named.display());
        }
        return Ok(named.to_owned());
    }
    launcher::find_ours("ringway").context(
        "no program `ringway` is beside this one: cargo build --package ringway, or --ringway",
    )
}

/// The commit of the working tree, if there is one.
fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned())
}
