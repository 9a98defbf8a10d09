//! `ringway lab`: studies of many queues, and what their records say.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ringway_lab::analysis::Analysis;
use ringway_lab::assert::{Outcome, Rule};
use ringway_lab::compare::{Changes, Verdict, compare};
use ringway_lab::record::Records;
use ringway_lab::{metric, report, study};
use serde::Serialize;

use crate::output::{print, print_json};
use crate::table;

/// Studies of many queues: what is measured, and what was measured
#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show all studies
    List(List),
    /// Print a study, to be read or edited
    Show(Show),
    /// Make the report, the figures and the exports of a study's records anew
    Report(Report),
    /// Say what changed between two runs of a study, and how sure that is
    Compare(Compare),
    /// Check records against rules; exits with 1 if one fails
    ///
    /// A rule compares means: of a cell with a number (9.4G), with another cell (1.5*q1.s8), or
    /// with the baseline in the same place (0.9*baseline, 2*baseline-tap-relay). A metric other
    /// than the study's own stands in brackets: q4.s8[rtt-p99-us] <= 500.
    #[command(after_help = "Example:\n  ringway lab check results \
        --assert 'transmit.q4.s8 >= 0.9*baseline'")]
    Check(Check),
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
    /// What has to hold; may be given several times
    #[arg(long = "assert", value_name = "RULE", required = true)]
    rules: Vec<Rule>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Lab) -> Result<ExitCode> {
    match &args.verb {
        Verb::List(args) => list(args)?,
        Verb::Show(args) => print(study::shipped_text(&args.study)?)?,
        Verb::Report(args) => make_report(&args.dir)?,
        Verb::Compare(args) => show_changes(args)?,
        Verb::Check(args) => return check(args),
    }
    Ok(ExitCode::SUCCESS)
}

/// A study for those who choose one.
#[derive(Debug, Serialize)]
struct Entry {
    id: String,
    rows: Vec<String>,
    title: String,
}

fn list(args: &List) -> Result<()> {
    let entries: Result<Vec<Entry>, _> = study::ids()
        .into_iter()
        .map(|id| {
            let study = study::shipped(id)?;
            Ok::<_, study::StudyError>(Entry { id: study.id, rows: study.rows, title: study.title })
        })
        .collect();
    let entries = entries?;
    if args.json {
        return print_json(&entries);
    }
    let rows = entries.into_iter().map(|entry| vec![entry.id, entry.title, entry.rows.join(" ")]);
    print(&table::render(&["STUDY", "TITLE", "ROWS"], rows))
}

fn make_report(dir: &Path) -> Result<()> {
    let records = Records::read(dir)?;
    let files = report::write(dir, &records)?;
    for notice in &records.notices {
        eprintln!("NOTICE: {notice}");
    }
    let page = files.first().context("a report has a page")?;
    print(&format!("{}\n\n{}\n", Analysis::of(&records).verdict, page.display()))
}

fn show_changes(args: &Compare) -> Result<()> {
    let read = |dir: &Path| Records::read(dir);
    let changes = compare(&read(&args.before)?, &read(&args.after)?)?;
    if args.json {
        return print_json(&changes);
    }
    let mut text: String = changes
        .differences
        .iter()
        .map(|difference| format!("NOTICE: not the same in both: {difference}\n"))
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
        Verdict::NotTold => "no change can be told",
        Verdict::TooFewRuns => "too few runs",
    }
}

fn summary(changes: &Changes) -> String {
    let count = |verdict| changes.cells.iter().filter(|cell| cell.verdict == verdict).count();
    let mut text = format!(
        "Of {} cells {} better, {} worse; chances are raised for the number of cells.\n",
        changes.cells.len(),
        count(Verdict::Better),
        count(Verdict::Worse),
    );
    if !changes.only_in_one.is_empty() {
        text += &format!("Only in one of both: {}.\n", changes.only_in_one.join(", "));
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
