//! Runs worlds by their seeds: one in words, or many to search for flaws.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lexopt::prelude::*;
use ringway_sim::{Choices, Detail, Mark, Summary, run, run_seeds};

const USAGE: &str = "\
Runs simulated hosts. The same seed gives the same run.

usage: ringway-sim SEED [--trace]
       ringway-sim --bytes FILE [--trace]
       ringway-sim --seeds FROM..TO [--jobs N]

  SEED            run one world and print the result
  --bytes         run the world whose decisions are in a file, as a fuzzer writes it
  --trace         print every step
  --seeds         run all worlds from FROM, and those below TO
  --jobs N        use this many threads; default: one for each CPU";

/// Worlds per line of progress without a terminal.
const LINE_EACH: u64 = 10_000;

/// The command.
enum Request {
    One { source: Source, detail: Detail },
    Many { from: u64, to: u64, jobs: usize },
}

/// The source of one world's decisions.
enum Source {
    Seed(u64),
    File(PathBuf),
}

fn main() -> Result<ExitCode> {
    // A panic is a finding, and is printed with the steps before it.
    std::panic::set_hook(Box::new(|_| {}));
    match parse()? {
        None => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        Some(Request::One { source, detail }) => one(&source, detail),
        Some(Request::Many { from, to, jobs }) => many(from, to, jobs),
    }
}

fn parse() -> Result<Option<Request>> {
    let mut parser = lexopt::Parser::from_env();
    let (mut source, mut seeds, mut detail) = (None, None, Detail::Counted);
    let mut jobs = thread::available_parallelism().map_or(1, usize::from);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("trace") => detail = Detail::Printed,
            Long("jobs") => jobs = parser.value()?.parse()?,
            Long("seeds") => {
                let text = parser.value()?.string()?;
                let (from, to) = text.split_once("..").context("expected --seeds FROM..TO")?;
                seeds = Some((from.parse()?, to.parse()?));
            }
            Long("bytes") => source = Some(Source::File(parser.value()?.into())),
            Value(value) if source.is_none() => source = Some(Source::Seed(value.parse()?)),
            other => return Err(other.unexpected().into()),
        }
    }
    match (source, seeds) {
        (Some(source), None) => Ok(Some(Request::One { source, detail })),
        (None, Some((from, to))) => Ok(Some(Request::Many { from, to, jobs })),
        _ => bail!("expected one seed, --bytes or --seeds\n\n{USAGE}"),
    }
}

fn one(source: &Source, detail: Detail) -> Result<ExitCode> {
    // Keep at least the last steps: one world is fast with them, too.
    let detail = if detail == Detail::Printed { detail } else { Detail::Kept };
    let (choices, name) = match source {
        Source::Seed(seed) => (Choices::from_seed(*seed), format!("seed {seed}")),
        Source::File(path) => {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            (Choices::from_bytes(&bytes), path.display().to_string())
        }
    };
    Ok(match run(choices, detail, None) {
        Ok(run) => {
            println!("{name}: {} steps, no flaw", run.steps);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}\n{name}, commit {}", commit());
            ExitCode::FAILURE
        }
    })
}

fn many(from: u64, to: u64, jobs: usize) -> Result<ExitCode> {
    let started = Instant::now();
    let style = "{pos} of {len} worlds, {per_sec}, {eta} left {wide_bar}";
    let bar = ProgressBar::new(to.saturating_sub(from));
    bar.set_style(ProgressStyle::with_template(style)?);
    let summary = run_seeds(from..to, jobs, None, || {
        bar.inc(1);
        // Without a terminal, print lines instead of a bar.
        let done = bar.position();
        if bar.is_hidden() && done % LINE_EACH == 0 {
            let seconds = started.elapsed().as_secs();
            eprintln!("{done} of {} worlds in {seconds} s", to.saturating_sub(from));
        }
    });
    bar.finish_and_clear();
    print_summary(&summary);
    println!("{} seconds on {jobs} threads", started.elapsed().as_secs());
    Ok(match summary.failure {
        None => ExitCode::SUCCESS,
        Some((seed, failure)) => {
            println!("\n{failure}\nseed {seed}, commit {}", commit());
            println!(
                "to repeat it with every step: cargo run -p ringway-sim --release -- {seed} --trace"
            );
            ExitCode::FAILURE
        }
    })
}

fn print_summary(summary: &Summary) {
    for (mark, count) in summary.marks.iter() {
        println!("{count:>12}  {}", mark.name());
    }
    let frames = summary.marks.count(Mark::Sent);
    println!("{} worlds, {} steps, {frames} frames", summary.worlds, summary.steps);
}

/// The commit of the tree that contains this program's directory, if git knows it.
fn commit() -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let output = Command::new("git").args(["-C", root, "describe", "--always", "--dirty"]).output();
    let output = output.ok().filter(|output| output.status.success());
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}
