//! Runs worlds by their seeds: one in words, or many for what their checkers find.

use std::process::{Command, ExitCode};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lexopt::prelude::*;
use ringway_sim::{Choices, Detail, Mark, Summary, run, run_seed, run_seeds};

const USAGE: &str = "\
Runs simulated hosts, each the same whenever its seed is.

usage: ringway-sim SEED [--trace]
       ringway-sim --seeds FROM..TO [--jobs N]

  SEED            run one world, and say what was found
  --trace         print every step of it
  --seeds         run all worlds from FROM, and those below TO
  --jobs N        on so many threads; default: one for each CPU";

/// What is asked for.
enum Request {
    One { seed: u64, detail: Detail },
    Many { from: u64, to: u64, jobs: usize },
}

fn main() -> Result<ExitCode> {
    // A panic is a finding, and is printed with the steps before it.
    std::panic::set_hook(Box::new(|_| {}));
    match parse()? {
        None => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        Some(Request::One { seed, detail }) => Ok(one(seed, detail)),
        Some(Request::Many { from, to, jobs }) => many(from, to, jobs),
    }
}

fn parse() -> Result<Option<Request>> {
    let mut parser = lexopt::Parser::from_env();
    let (mut seed, mut seeds, mut detail) = (None, None, Detail::Counted);
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
            Value(value) if seed.is_none() => seed = Some(value.parse()?),
            other => return Err(other.unexpected().into()),
        }
    }
    match (seed, seeds) {
        (Some(seed), None) => Ok(Some(Request::One { seed, detail })),
        (None, Some((from, to))) => Ok(Some(Request::Many { from, to, jobs })),
        _ => bail!("expected one seed or --seeds\n\n{USAGE}"),
    }
}

fn one(seed: u64, detail: Detail) -> ExitCode {
    let outcome = match detail {
        Detail::Counted | Detail::Kept => run_seed(seed, None),
        Detail::Printed => run(Choices::from_seed(seed), detail, None),
    };
    match outcome {
        Ok(run) => {
            println!("seed {seed}: {} steps, no flaw", run.steps);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}\nseed {seed}, commit {}", commit());
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, to: u64, jobs: usize) -> Result<ExitCode> {
    let started = Instant::now();
    let style = "{pos} of {len} worlds, {per_sec}, {eta} left {wide_bar}";
    let bar = ProgressBar::new(to.saturating_sub(from));
    bar.set_style(ProgressStyle::with_template(style)?);
    let summary = run_seeds(from..to, jobs, None, || bar.inc(1));
    bar.finish_and_clear();
    print_summary(&summary);
    println!("{} seconds on {jobs} threads", started.elapsed().as_secs());
    Ok(match summary.failure {
        None => ExitCode::SUCCESS,
        Some((seed, failure)) => {
            println!("\n{failure}\nseed {seed}, commit {}", commit());
            println!(
                "again, with every step: cargo run -p ringway-sim --release -- {seed} --trace"
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

/// The commit whose tree this program's directory has, as far as git can tell.
fn commit() -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let output = Command::new("git").args(["-C", root, "describe", "--always", "--dirty"]).output();
    let output = output.ok().filter(|output| output.status.success());
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}
