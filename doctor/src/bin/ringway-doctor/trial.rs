//! `ringway doctor try`: measures whether a change helps.

use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use regex::Regex;
use ringway_doctor::changes::journal::State;
use ringway_doctor::fact::Host;
use ringway_terminal::options::number;
use ringway_terminal::output::print;

use super::choice::{Choice, NOT_ALL, describe};
use super::gauge::{self, Better, Call, Gauge, Verdict, judge};
use super::transaction::{give_up, make, outcomes, set_state};
use super::{collected, expire};

/// The longest trial: after this time the change is reverted.
const HOURS_MAX: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Args)]
pub(super) struct Try {
    #[command(flatten)]
    choice: Choice,
    /// Runs before the change, and as many after it
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = number(2..=1000_u32))]
    runs: u32,
    /// The result is the last match of this regular expression's first group in the output
    #[arg(long, value_name = "REGEX", conflicts_with = "iperf3")]
    number: Option<Regex>,
    /// A lower result is better; only with --number
    #[arg(long = "lower-is-better", requires = "number")]
    lower: bool,
    /// The result is the throughput that `iperf3 --json` reports
    #[arg(long)]
    iperf3: bool,
    /// The command to measure
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) fn run(args: &Try) -> Result<ExitCode> {
    let host = examine_under_load(args)?;
    let findings = args.choice.findings(&host);
    let plan = args.choice.plan(&findings)?;
    print(&describe(&plan))?;
    if plan.entries.is_empty() {
        return Ok(ExitCode::from(NOT_ALL));
    }
    let forecast = gauge::forecast(&findings, &plan.entries);
    if let Some(forecast) = forecast {
        print(&format!("The forecast is {forecast} the throughput.\n"))?;
    }
    let before = measure(args, "before")?;
    let dir = &args.choice.place.journal;
    let mut guard = None;
    let made = make(dir, plan.entries, |id| {
        guard = Some(expire::start_tied_to_us(dir, id, HOURS_MAX)?);
        Ok(())
    })?;
    // The first run after a change may still run under the old setting.
    one_run(args)?;
    let after = measure(args, "after")?;
    let verdict = judge(&before, &after, args.gauge().better());
    print(&summary(&verdict))?;
    if let Some(said) = forecast.and_then(|it| gauge::compare(it, &args.gauge(), &verdict)) {
        print(&format!("{said}\n"))?;
    }
    if verdict.call == Call::Better {
        set_state(dir, made.id, &[State::Applied], State::Confirmed)?;
        print(&format!("The change is kept as transaction {} until the next restart.\n", made.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    let undone = give_up(dir, made.id)?;
    print(&format!("The change was undone:\n{}", outcomes(&undone)))?;
    drop(guard);
    Ok(ExitCode::from(NOT_ALL))
}

impl Try {
    fn gauge(&self) -> Gauge {
        let better = if self.lower { Better::Lower } else { Better::Higher };
        match &self.number {
            Some(pattern) => Gauge::Pattern(pattern.clone(), better),
            None if self.iperf3 => Gauge::Iperf3,
            None => Gauge::Seconds,
        }
    }
}

/// Examines the host while the command runs: many checks find nothing on an idle host. This also
/// warms up the command.
fn examine_under_load(args: &Try) -> Result<Host> {
    thread::scope(|scope| {
        let Choice { interval, paths, .. } = &args.choice;
        let examination = scope.spawn(|| collected(*interval, paths).map(Host::new));
        loop {
            one_run(args)?;
            if examination.is_finished() {
                break examination.join().map_err(|_| anyhow::anyhow!("the examination failed"))?;
            }
        }
    })
}

fn measure(args: &Try, when: &str) -> Result<Vec<f64>> {
    let numbers: Vec<f64> = (0..args.runs).map(|_| one_run(args)).collect::<Result<_>>()?;
    let shown: Vec<String> = numbers.iter().map(|number| short(*number)).collect();
    print(&format!("{when}: {}\n", shown.join(" ")))?;
    Ok(numbers)
}

fn one_run(args: &Try) -> Result<f64> {
    let (program, rest) = args.command.split_first().context("expected a command")?;
    let begun = Instant::now();
    let mut run = Command::new(program);
    run.args(rest).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = run.output().with_context(|| format!("run {program}"))?;
    let seconds = begun.elapsed().as_secs_f64();
    if !output.status.success() {
        bail!("{program}: {}", output.status);
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    args.gauge().read(seconds, &printed).map_err(|error| anyhow::anyhow!("{program}: {error}"))
}

fn summary(verdict: &Verdict) -> String {
    let mut text =
        format!("The mean was {} and is {}", short(verdict.before), short(verdict.after));
    if let Some(gain) = verdict.gain {
        text += &format!(": {:.2} times as good", gain.value);
        if let Some(interval) = gain.interval {
            text += &format!(" (95 %: {:.2} to {:.2})", interval.low, interval.high);
        }
    }
    let call = match verdict.call {
        Call::Better => "better, and the difference is significant",
        Call::Worse => "worse, and the difference is significant",
        Call::Same => "the difference is not significant, or too small to matter",
    };
    let chance = verdict.chance.map(|chance| format!(", p = {chance:.2e}")).unwrap_or_default();
    text + &format!("; {call}{chance}.\n")
}

/// A number with four significant digits.
fn short(number: f64) -> String {
    if number.abs() >= 1e6 || number.abs() < 1e-3 {
        format!("{number:.3e}")
    } else if number.abs() >= 1000.0 {
        format!("{number:.0}")
    } else {
        format!("{number:.4}")
    }
}
