//! `ringway doctor apply` and its companions: make the changes that checks propose, and keep or
//! revert them.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use ringway_doctor::changes::emit::{Format, emit, rivals, undo_commands};
use ringway_doctor::changes::home::check_machine_netns;
use ringway_doctor::changes::journal::{self, DIRECTORY, State, Transaction};
use ringway_doctor::changes::persist::{Overridden, Removed, files, forget, overridden, persist};
use ringway_doctor::changes::plan::Plan;
use ringway_doctor::changes::settings::Settings;
use ringway_doctor::changes::{Outcome, undo};
use ringway_doctor::fact::Host;
use ringway_terminal::options::seconds;
use ringway_terminal::output::{print, print_json};
use ringway_terminal::table;

use super::choice::{Choice, NOT_ALL, Place, describe};
use super::transaction::{make, open, outcomes, set_state, state};
use super::{collected, expire, trial, watch};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Make the changes that checks propose; they are reverted unless you confirm them
    ///
    /// It examines the host first, as `ringway doctor` does. Each change is written to the journal
    /// before it is made, and verified afterwards; if one fails, all are reverted. Without `ringway
    /// doctor confirm`, a separate process that outlives the terminal reverts all of them after
    /// --confirm-within seconds.
    ///
    /// Exit codes: 0 if all changes were made, 3 if one was refused.
    #[command(after_help = "Examples:\n  ringway doctor apply D13 --subject vif1.0 --dry-run\n  \
                            ringway doctor apply D18 D19 && ringway doctor confirm\n  \
                            ringway doctor apply D13 --emit networkd")]
    Apply(Apply),
    /// Keep what was applied, until the next restart
    Confirm(One),
    /// Revert what was applied, except settings that were changed since
    ///
    /// After a restart only the files of `persist` are removed, unless they were edited: the
    /// settings themselves are gone already.
    Undo(One),
    /// Keep what was confirmed across restarts, in /etc/sysctl.d and /etc/udev/rules.d
    ///
    /// It refuses in a network namespace or a container, because these do not read such files. It
    /// also refuses if a file that is read later sets another value, and names that line.
    Persist(Persist),
    /// Show the transactions
    Journal(Show),
    /// Measure with a command before and after a change, and keep the change only if it helps
    ///
    /// The command runs while the doctor examines the host, then several times before and after the
    /// change. Its run time is the result, unless an option selects another number. The change is
    /// kept if the improvement is significant (Welch's test at 5 %); otherwise, or when this
    /// process ends early, it is reverted.
    ///
    /// Exit codes: 0 if the change is kept, 3 if not.
    #[command(
        after_help = "Examples:\n  ringway doctor try D13 --iperf3 -- iperf3 -J -c host -t 3\n  \
                            ringway doctor try D18 --number 'avg = ([0-9.]+)' \
                            --lower-is-better -- ./ping.sh"
    )]
    Try(trial::Try),
    /// Examine this host again and again, and serve the findings as metrics for Prometheus
    #[command(name = "serve")]
    Watch(watch::Watch),
    /// Takes a transaction back after a while
    #[command(hide = true)]
    Expire(expire::Expire),
}

#[derive(Debug, Args)]
pub(super) struct Apply {
    #[command(flatten)]
    choice: Choice,
    /// Print the changes without making them
    #[arg(long)]
    dry_run: bool,
    /// Revert after this many seconds without `confirm`; 0 keeps the changes at once
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    #[arg(value_parser = seconds(0..=86_400_u64))]
    confirm_within: u64,
    /// Print the changes for another tool without making them
    #[arg(long, value_name = "TOOL")]
    emit: Option<Tool>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Tool {
    /// A script
    Shell,
    /// A file for /etc/sysctl.d
    #[value(name = "sysctl.d")]
    SysctlD,
    /// Rules for /etc/udev/rules.d
    Udev,
    /// Parts of a guest's <interface>
    Libvirt,
    /// Files of systemd-networkd
    Networkd,
}

#[derive(Debug, Args)]
pub(super) struct One {
    /// The number of a transaction [default: the last one]
    transaction: Option<u64>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(super) struct Persist {
    #[command(flatten)]
    one: One,
    /// Print the names of the files without writing them
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::Apply(args) => return apply(args),
        Verb::Confirm(args) => confirm(args)?,
        Verb::Undo(args) => return take_back(args),
        Verb::Persist(args) => make_persistent(args)?,
        Verb::Journal(args) => show(args)?,
        Verb::Try(args) => return trial::run(args),
        Verb::Watch(args) => watch::run(args)?,
        Verb::Expire(args) => expire::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn apply(args: &Apply) -> Result<ExitCode> {
    let host = Host::new(collected(args.choice.interval, &args.choice.paths)?);
    let plan = args.choice.plan(&args.choice.findings(&host))?;
    if let Some(tool) = args.emit {
        let format = tool.format();
        if format.is_for_start() {
            if let Err(why) = check_machine_netns() {
                bail!("--emit: {why}");
            }
            print(&rivals(Path::new("/"), &plan.entries))?;
        }
        print(&emit(&plan.entries, format))?;
        return Ok(plan_code(&plan));
    }
    print(&describe(&plan))?;
    if args.dry_run || plan.entries.is_empty() {
        return Ok(plan_code(&plan));
    }
    let is_risky = plan.entries.iter().any(|entry| entry.knob.is_disruptive());
    if is_risky && args.confirm_within == 0 {
        bail!(
            "--confirm-within 0 is not allowed for changes that can interrupt traffic, because \
             they may cut off your own session"
        );
    }
    let code = plan_code(&plan);
    let dir = &args.choice.place.journal;
    let made = make(dir, plan.entries, |id| match args.confirm_within {
        0 => Ok(()),
        seconds => expire::start(dir, id, Duration::from_secs(seconds)),
    })?;
    print(&summary(&made, dir, args.confirm_within))?;
    if args.confirm_within == 0 {
        set_state(dir, made.id, &[State::Applied], State::Confirmed)?;
    }
    Ok(code)
}

impl Tool {
    fn format(self) -> Format {
        match self {
            Tool::Shell => Format::Shell,
            Tool::SysctlD => Format::SysctlD,
            Tool::Udev => Format::Udev,
            Tool::Libvirt => Format::Libvirt,
            Tool::Networkd => Format::Networkd,
        }
    }
}

fn plan_code(plan: &Plan) -> ExitCode {
    if plan.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NOT_ALL) }
}

fn summary(made: &Transaction, dir: &Path, seconds: u64) -> String {
    let option = if dir == Path::new(DIRECTORY) {
        String::new()
    } else {
        format!(" --journal {}", dir.display())
    };
    let id = made.id;
    let mut text = format!("Transaction {id} is applied and verified.\n");
    if seconds > 0 {
        text += &format!(
            "It will be undone in {seconds} s, even if this terminal is closed, unless you run\n  \
               \
             ringway doctor confirm {id}{option}\n"
        );
    }
    text += &format!("To undo it: ringway doctor undo {id}{option}\nor by hand:\n");
    for command in undo_commands(&made.entries) {
        text += &format!("    {command}\n");
    }
    text
}

/// The transaction with the given number, or the last one since the kernel booted.
fn find(args: &One, states: &[State]) -> Result<Transaction> {
    let dir = &args.place.journal;
    match args.transaction {
        Some(id) => journal::read(dir, id).with_context(|| format!("transaction {id}")),
        None => journal::latest(dir, &Settings::live().boot()?, states)?
            .with_context(|| format!("no such transaction in {}", dir.display())),
    }
}

fn confirm(args: &One) -> Result<()> {
    let found = find(args, &[State::Applied])?;
    set_state(&args.place.journal, found.id, &[State::Applied], State::Confirmed)?;
    let id = found.id;
    print(&format!(
        "Transaction {id} is kept until the next restart; `ringway doctor persist {id}` keeps it \
         across restarts.\n"
    ))
}

fn take_back(args: &One) -> Result<ExitCode> {
    let states = [State::Applying, State::Applied, State::Confirmed];
    let id = find(args, &states)?.id;
    let journal = open(&args.place.journal)?;
    // Read again, now that no other process can change it.
    let mut transaction = journal::read(&args.place.journal, id)?;
    for (path, removed) in forget(&journal, &mut transaction)? {
        let what = match removed {
            Removed::Removed => "removed",
            Removed::Edited => "kept, because it was edited since",
            Removed::Missing => "already removed",
        };
        print(&format!("  {}: {what}\n", path.display()))?;
    }
    let undone = undo(&Settings::live(), &journal, &mut transaction)?;
    print(&outcomes(&undone))?;
    Ok(if undone.iter().all(|one| matches!(one.outcome, Outcome::Restored | Outcome::Nothing)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_ALL)
    })
}

fn make_persistent(args: &Persist) -> Result<()> {
    let id = find(&args.one, &[State::Confirmed])?.id;
    let dir = &args.one.place.journal;
    let journal = open(dir)?;
    let mut transaction = journal::read(dir, id)?;
    if transaction.state != State::Confirmed {
        bail!("transaction {id} is {}: confirm it first", state(transaction.state));
    }
    let settings = Settings::live();
    if let Err(why) = settings.check_home_of(&transaction.netns) {
        bail!("transaction {id} cannot be kept in files: {why}");
    }
    let overridden = overridden(settings.root(), &transaction);
    if !overridden.is_empty() {
        bail!(
            "nothing was written, because other files override these settings when the host \
             starts:\n{}",
            rivals_of(&overridden)
        );
    }
    let (files, by_hand) = files(Path::new("/"), &transaction);
    if !args.dry_run {
        persist(&journal, &mut transaction, &files)?;
    }
    for file in &files {
        print(&format!("{}\n{}\n", file.path.display(), file.content))?;
    }
    for command in by_hand {
        print(&format!(
            "No file can keep this; add it to what runs at the start of the host: {command}\n"
        ))?;
    }
    Ok(())
}

/// The settings that override our files and must be changed first, one per line.
fn rivals_of(overridden: &[Overridden]) -> String {
    let line = |Overridden { name, wanted, by }: &Overridden| {
        format!("  {name} = {wanted}: {by}; change or remove that line\n")
    };
    overridden.iter().map(line).collect()
}

fn show(args: &Show) -> Result<()> {
    let dir = &args.place.journal;
    let read = |id| journal::read(dir, id).with_context(|| format!("{}/{id}.json", dir.display()));
    let all: Vec<Transaction> = journal::list(dir)?.into_iter().map(read).collect::<Result<_>>()?;
    if args.json {
        return print_json(&all);
    }
    let boot = Settings::live().boot()?;
    let rows = all.iter().flat_map(|one| {
        let is_past = one.boot != boot && one.files.is_empty();
        let now = if is_past { "ended by a restart" } else { state(one.state) };
        one.entries.iter().map(move |entry| {
            let change = format!("{} -> {}", entry.old, entry.new);
            vec![one.id.to_string(), now.to_owned(), entry.check.clone(), entry.knob.name(), change]
        })
    });
    print(&table::render(&[">ID", "STATE", "CHECK", "SETTING", "CHANGE"], rows))
}
