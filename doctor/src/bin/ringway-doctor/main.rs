//! `ringway doctor`, as the program `ringway-doctor`: finds what slows the guest networking of
//! this host or of a saved one.

mod change;
mod choice;
mod diff;
mod everywhere;
mod expire;
mod gauge;
mod transaction;
mod trial;
mod watch;
mod web;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use ringway_doctor::check::{self, CATALOGUE};
use ringway_doctor::collect_with_paths;
use ringway_doctor::evidence::{Source, archive};
use ringway_doctor::explain::{TOPICS, explained};
use ringway_doctor::fact::Host;
use ringway_doctor::probe::HOSTS_MAX;
use ringway_doctor::report::text::{Detail, render};
use ringway_doctor::report::{Report, Skips, page, schema};
use ringway_terminal::options::{Common, seconds};
use ringway_terminal::output::{OutFile, print, print_json};
use ringway_terminal::{completions, exit, logging, table};
use serde::Serialize;

/// Find what slows the networking of this host and its guests, with evidence and advice
///
/// Only `apply` and `try` change anything. It needs no privileges, and reports what it may not
/// read.
///
/// Exit codes: 0 if nothing is wrong, 3 for warnings, 4 for problems, 5 if too little could be
/// read.
#[derive(Debug, Parser)]
#[command(
    name = "ringway-doctor",
    bin_name = "ringway doctor",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  ringway doctor\n  ringway doctor record host.tar\n  \
                  ringway doctor --root host.tar -v\n  \
                  ringway doctor diff before.tar after.tar\n  ringway doctor explain D18\n  \
                  ringway doctor --check D08 --path storage.example --interval 1"
)]
struct Doctor {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Examine a saved host: a tar or directory of `record`, or a sos report, as a tar or unpacked
    #[arg(long, value_name = "PATH")]
    root: Option<PathBuf>,
    /// Seconds between the two samples
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds(1..=3600_u64))]
    interval: u64,
    /// Also find the longest packet that reaches this host; may be repeated
    ///
    /// Sends up to 100 packets that must not be fragmented to its IPv4 and IPv6 addresses, and
    /// listens for rejections. It takes one or two seconds, at most 30. It needs no privileges and
    /// changes no setting; Ctrl-C ends it. D08 reports what it finds.
    #[arg(long = "path", value_name = "HOST", conflicts_with = "root")]
    paths: Vec<String>,
    /// Check all network namespaces: this one, those with a name, and those of processes
    ///
    /// Findings name their namespace, and commands run there. The limits are 64 namespaces and five
    /// minutes; namespaces that could not be entered are listed. Entering them needs root.
    #[arg(long, conflicts_with_all = ["root", "paths"])]
    all_netns: bool,
    /// Run only this check; may be repeated
    #[arg(long = "check", value_name = "ID", value_parser = known_check)]
    checks: Vec<String>,
    /// Skip known findings: a TOML file with a check and a reason for each
    ///
    /// Each is a table [[skip]] with `check`, `reason` and an optional `subject`; without a subject
    /// it covers all findings of the check. Skipped findings are shown separately, and do not
    /// count.
    #[arg(long, value_name = "FILE", conflicts_with = "all_netns")]
    skip: Option<PathBuf>,
    /// Also write the report as one HTML page, for a ticket
    #[arg(long, value_name = "FILE", conflicts_with = "all_netns")]
    html: Option<PathBuf>,
    /// Show evidence and advice for everything
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Save the evidence of this host, to examine it elsewhere
    ///
    /// It contains settings, counters, names of interfaces and guests, and addresses of
    /// connections, but no contents of packets and no keys.
    Record(Record),
    /// Compare two saved hosts, or one host at two times: findings and settings
    ///
    /// Exit codes: 0 if nothing is new or worse in the second, 3 for warnings, 4 for problems.
    Diff(diff::Diff),
    /// Explain a check or topic: background, how to verify it by hand, and what to do
    Explain(Explain),
    /// Show all checks
    List(List),
    /// Print the JSON schema of --json
    Schema,
    #[command(flatten)]
    Change(change::Verb),
    #[command(hide = true)]
    Completions(completions::Completions),
    #[command(hide = true)]
    Man(completions::Man),
}

#[derive(Debug, Args)]
struct Record {
    /// The tar to write; - for standard output
    file: PathBuf,
    /// Seconds between the two samples
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds(1..=3600_u64))]
    interval: u64,
    /// Also save which packets reach this host, as with `ringway doctor --path`; may be repeated
    #[arg(long = "path", value_name = "HOST")]
    paths: Vec<String>,
}

#[derive(Debug, Args)]
struct Explain {
    /// The check or topic, such as D18 or measuring
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    exit(run(&Doctor::parse()))
}

fn run(args: &Doctor) -> Result<ExitCode> {
    logging::start(args.common.log_level, "");
    match &args.verb {
        None => return diagnose(args),
        Some(Verb::Record(args)) => record(args)?,
        Some(Verb::Diff(args)) => return diff::run(args),
        Some(Verb::Explain(args)) => explain(args)?,
        Some(Verb::List(args)) => list(args)?,
        Some(Verb::Schema) => print(&schema())?,
        Some(Verb::Change(verb)) => return change::run(verb),
        Some(Verb::Completions(args)) => args.print(Doctor::command())?,
        Some(Verb::Man(args)) => args.write(Doctor::command())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn known_check(id: &str) -> Result<String, String> {
    let check = check::find(id).ok_or("expected the id of a check, see `ringway doctor list`")?;
    Ok(check.id.to_owned())
}

fn diagnose(args: &Doctor) -> Result<ExitCode> {
    if args.all_netns {
        return everywhere::diagnose(args);
    }
    // Before the wait, so that an error of a file is reported at once.
    let skips = args.skip.as_deref().map(skips).transpose()?;
    let html = args.html.as_deref().map(OutFile::new).transpose()?;
    let host = Host::new(source(args)?);
    let mut report = Report::of(&host, &args.checks);
    if let Some(skips) = skips {
        report = report.without(&skips);
    }
    if let Some(file) = html {
        file.write(|out| Ok(out.write_all(page(&report).as_bytes())?))?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        let detail = if args.verbose { Detail::Full } else { Detail::Terse };
        print(&render(&report, detail))?;
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// Reads a list of findings that do not count.
fn skips(path: &Path) -> Result<Skips> {
    let about = || format!("--skip {}", path.display());
    let text = fs::read_to_string(path).with_context(about)?;
    let skips: Skips = toml::from_str(&text).with_context(about)?;
    skips.verify().map_err(anyhow::Error::msg).with_context(about)?;
    Ok(skips)
}

fn source(args: &Doctor) -> Result<Source> {
    match &args.root {
        Some(path) if path == Path::new("/") => {}
        Some(path) => {
            return archive::open(path).with_context(|| format!("--root {}", path.display()));
        }
        None => {}
    }
    collected(args.interval, &args.paths)
}

/// The evidence of this host, with the requested paths.
fn collected(interval: u64, paths: &[String]) -> Result<Source> {
    if paths.len() > HOSTS_MAX {
        bail!("--path: at most {HOSTS_MAX} hosts");
    }
    collect_with_paths(Duration::from_secs(interval), paths).context("--path")
}

fn record(args: &Record) -> Result<()> {
    if args.file == Path::new("-") {
        let source = collected(args.interval, &args.paths)?;
        return Ok(archive::write(&source, io::stdout().lock())?);
    }
    let file = OutFile::new(&args.file)?;
    let source = collected(args.interval, &args.paths)?;
    file.write(|out| Ok(archive::write(&source, out)?))
}

/// A check or topic, as `explain` shows it.
#[derive(Debug, Serialize)]
struct Explained {
    id: &'static str,
    title: &'static str,
    text: String,
}

fn explain(args: &Explain) -> Result<()> {
    let id = &args.id;
    let (known, heading) = if let Some(check) = check::find(id) {
        let text = explained(check.explanation, check.sources);
        let heading = format!("{}: {}", check.id, check.title);
        (Explained { id: check.id, title: check.title, text }, heading)
    } else if let Some(topic) = TOPICS.iter().find(|topic| topic.id.eq_ignore_ascii_case(id)) {
        let text = explained(topic.explanation, topic.sources);
        (Explained { id: topic.id, title: topic.title, text }, topic.title.to_owned())
    } else {
        bail!("{id}: expected the id of a check or topic, see `ringway doctor list`")
    };
    match args.json {
        true => print_json(&known),
        false => print(&format!("{heading}\n\n{}", known.text)),
    }
}

/// A check, as `list` shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    id: &'static str,
    title: &'static str,
    /// Ids of `docs/sources.toml`; scripts know the field by this name.
    #[serde(rename = "rows")]
    sources: &'static [&'static str],
    /// Whether the doctor checks it; otherwise it is explained only.
    #[serde(rename = "is-looked-for")] // as scripts know it
    is_checked: bool,
}

fn list(args: &List) -> Result<()> {
    let checks = CATALOGUE.iter().map(|check| Entry {
        id: check.id,
        title: check.title,
        sources: check.sources,
        is_checked: true,
    });
    let topics = TOPICS.iter().map(|topic| Entry {
        id: topic.id,
        title: topic.title,
        sources: topic.sources,
        is_checked: false,
    });
    let entries: Vec<Entry> = checks.chain(topics).collect();
    if args.json {
        return print_json(&entries);
    }
    let rows = entries.into_iter().map(|entry| {
        let does = if entry.is_checked { "checks" } else { "explains" };
        vec![entry.id.to_owned(), does.to_owned(), entry.title.to_owned()]
    });
    print(&table::render(&["ID", "DOES", "TITLE"], rows))
}
