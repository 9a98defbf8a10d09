//! The command line.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use ringway_rig::cpu_time::{QUIET_PATIENCE, becomes_quiet};
use ringway_rig::part;
use ringway_terminal::options::time_in;
use ringway_wire::DomId;
use ringway_xenbus::Vif;

use crate::acts::confined;
use crate::backend::catalogue::ALL;
use crate::backend::command::{self, BackendArgs};
use crate::catalogue;
use crate::guest::Guest;
use crate::machine::HypervisorKind;
use crate::measure::{burner, tcp};
use crate::place::Toolstack;
use crate::report;
use crate::run::{self, Choice};
use crate::scenario::{Place, Scenario};
use crate::stage::{Account, Aim, Peer, Stage};
use crate::test_host::STARTED;

const EXAMPLES: &str = "Examples:
  ringway-hostile list
  ringway-hostile run all --quick
  ringway-hostile run slow-receiver flood-broadcast --seconds 5
  ringway-hostile run all --json > hostile.json
  ringway-hostile guest tx-producer-jump --hypervisor xen
  ringway-hostile backend all
  ringway-hostile backend received-beyond-page --hypervisor xen --vif 3/0";

/// The exit code if this machine cannot run guests.
const CANNOT_RUN: u8 = 77;

/// The subcommand by which tests/ovn/run finds whether bounds on time hold on this machine now.
const QUIET: &str = "quiet";

/// Run hostile guests beside honest ones, and measure what the honest ones lose
///
/// Exit codes of `run`: 0 if all bounds hold; 1 if one is broken: the backend restarted, another
/// vif was closed, honest guests were cut off, or memory grew beyond its limit; 77 if this machine
/// cannot run guests, with the reason on standard error. Throughput is measured and has no bound.
/// The bound on lost pings holds only without --quick, if this machine is quiet within a minute.
#[derive(Debug, Parser)]
#[command(name = "ringway-hostile", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the scenarios of guests, and the lies of backends
    List {
        /// Print JSON, with the bounds of each scenario
        #[arg(long)]
        json: bool,
    },
    Run(Run),
    Guest(OneGuest),
    Backend(BackendArgs),
}

/// Run scenarios beside honest guests on an emulated host of their own
#[derive(Debug, Args)]
struct Run {
    /// The scenarios, or `all`
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// One short run of each scenario, under a second
    #[arg(long)]
    quick: bool,
    /// Seconds of a run [default: 3, or 0.6 with --quick]
    #[arg(long, value_name = "N", value_parser = time_in(1.0))]
    seconds: Option<f64>,
    /// Runs of each scenario [default: 3 if throughput is compared with a control, else 1; 1 with
    /// --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// The program `ringway` [default: the file beside this program]
    #[arg(long, value_name = "FILE")]
    ringway: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Be the hostile guest of a scenario: on a running emulated host, or in this Xen domain
///
/// On Xen, run it in the guest as root. The kernel must not use the vif (rmmod xen-netfront), and
/// the modules xen-gntalloc, xen-evtchn and xenfs must be loaded. Watch the other guests yourself,
/// with ping and TCP, and the backend's log.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
struct OneGuest {
    /// The scenario
    #[arg(value_name = "NAME")]
    name: String,
    /// Where the guest is
    #[arg(long, value_name = "KIND", default_value = "emulated")]
    hypervisor: HypervisorKind,
    /// Run directory of an emulated host
    #[arg(long, value_name = "DIR", env = "RINGWAY_DIR")]
    dir: Option<PathBuf>,
    /// An unused domain of that host [default: a new one, removed in the end]
    #[arg(long, value_name = "N", requires = "dir")]
    domid: Option<u16>,
    /// The bridge to attach the new domain to [default: the switch]
    #[arg(long, value_name = "NAME", requires = "dir", conflicts_with = "domid")]
    bridge: Option<String>,
    /// Seconds to run
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = time_in(1.0))]
    seconds: f64,
    /// Seed of the guest's random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// An honest guest to harm
    #[arg(long, value_name = "IP=MAC")]
    victim: Option<Peer>,
    /// An honest guest that talks to the victim
    #[arg(long, value_name = "IP=MAC")]
    victim_peer: Option<Peer>,
    /// The host on the guests' network
    #[arg(long, value_name = "IP=MAC")]
    host: Option<Peer>,
    /// An honest guest without feature-gso-tcpv6 [default: the victim]
    #[arg(long, value_name = "IP=MAC")]
    no_gso_victim: Option<Peer>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The program.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match dispatch(&words) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ringway-hostile: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[OsString]) -> Result<ExitCode> {
    let word = |index: usize| words.get(index).and_then(|word| word.to_str()).unwrap_or_default();
    match word(0) {
        name if part::is_part(name) => part::run(words)?,
        tcp::RECEIVE => tcp::receive()?,
        tcp::SEND => tcp::send(word(1).parse()?)?,
        confined::COMPROMISED => {
            confined::compromised(word(1), word(2).as_ref(), word(3).as_ref())?;
        }
        burner::BURN => burner::burn(word(1).parse()?),
        QUIET if becomes_quiet(QUIET_PATIENCE) => {}
        QUIET => return Ok(ExitCode::FAILURE),
        _ => return verb(Cli::parse().verb),
    }
    Ok(ExitCode::SUCCESS)
}

fn verb(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::List { json: false } => {
            print!("{}\n{}", report::list(catalogue::all()), report::lies(ALL));
        }
        Verb::List { json: true } => println!("{}", serde_json::to_string_pretty(&described())?),
        Verb::Run(run) => return measured(run),
        Verb::Guest(guest) => be_guest(&guest)?,
        Verb::Backend(backend) if command::run(&backend)? => {}
        Verb::Backend(_) => return Ok(ExitCode::FAILURE),
    }
    Ok(ExitCode::SUCCESS)
}

fn measured(run: Run) -> Result<ExitCode> {
    if let Some(reason) = run::missing() {
        eprintln!("SKIPPED: {reason}");
        return Ok(ExitCode::from(CANNOT_RUN));
    }
    let is_all = run.names.iter().any(|name| name == "all");
    let choice = Choice {
        names: if is_all { Vec::new() } else { run.names },
        is_quick: run.quick,
        seconds: run.seconds,
        rounds: run.rounds,
        ringway: run.ringway,
        is_json: run.json,
    };
    Ok(if run::run(&choice)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn described() -> Vec<serde_json::Value> {
    let describe = |scenario: &Scenario| {
        serde_json::json!({
            "name": scenario.name,
            "what": scenario.what,
            "source": scenario.source,
            "must-hold": scenario.promise(),
            "emulated-only": scenario.place == Place::Emulated,
            "known": scenario.known,
        })
    };
    catalogue::all().map(describe).collect()
}

fn be_guest(args: &OneGuest) -> Result<()> {
    let scenario = catalogue::find(&args.name).with_context(|| {
        format!("there is no scenario {}: see `ringway-hostile list`", args.name)
    })?;
    let made = Made::new(args)?;
    let account = match args.hypervisor {
        HypervisorKind::Xen if scenario.place == Place::Emulated => {
            bail!("{} is for emulated hosts only: use --dir instead", scenario.name)
        }
        HypervisorKind::Xen => play(Guest::on_xen()?, scenario, args),
        HypervisorKind::Emulated => {
            let dir = args.dir.as_deref().context(
                "no host is given: add --dir with the run directory of `ringway run`, or \
                 --hypervisor xen",
            )?;
            play(Guest::emulated(dir, made.domid(args)?)?, scenario, args)
        }
    };
    drop(made);
    let account = account?;
    if args.json {
        println!("{}", serde_json::to_string(&account)?);
    } else {
        print!("{}", in_words(&account));
    }
    Ok(())
}

fn play(guest: Guest, scenario: &Scenario, args: &OneGuest) -> Result<Account> {
    let OneGuest { victim, victim_peer: other, host, no_gso_victim: plain, .. } = *args;
    let aim = Aim { victim, other, host, plain };
    let length = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    println!("{STARTED}");
    std::io::stdout().flush()?;
    let mut stage = Stage::new(guest, aim, length, args.seed);
    (scenario.act)(&mut stage).with_context(|| scenario.name)?;
    // A backend that is going to close the vif has done so by then.
    stage.account.is_served = stage.guest.is_served()?;
    Ok(stage.account)
}

fn in_words(account: &Account) -> String {
    let mut text = String::new();
    for (what, count) in &account.counts {
        text += &format!("{what}: {count}\n");
    }
    for reason in &account.closed {
        text += &format!("the backend closed the vif: {reason}\n");
    }
    for note in account.notes.iter().chain(&account.skipped) {
        text += &format!("{note}\n");
    }
    text + &format!("the vif is {}served\n", if account.is_served { "" } else { "not " })
}

/// A domain that was created for one guest, and is removed with it.
struct Made(Option<(Toolstack, Vif)>);

impl Made {
    fn new(args: &OneGuest) -> Result<Made> {
        let (Some(dir), None) = (&args.dir, args.domid) else { return Ok(Made(None)) };
        let mut toolstack = Toolstack::join(dir)?;
        let vif = toolstack.make_guest(args.bridge.as_deref(), &[])?;
        Ok(Made(Some((toolstack, vif))))
    }

    fn domid(&self, args: &OneGuest) -> Result<DomId> {
        let own = self.0.as_ref().map(|(_, vif)| vif.frontend);
        args.domid.map(DomId).or(own).context("there is no domain")
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some((toolstack, vif)) = &mut self.0 {
            if let Err(error) = toolstack.remove_guest(*vif) {
                eprintln!("ringway-hostile: domain {}: {error:#}", vif.frontend);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
