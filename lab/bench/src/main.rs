//! Measures ringway and its peers on one machine, in turns.
//!
//! Each section is a file: `ring` (frames per second through a ring), `vhost` (through a vhost-user
//! device), `vhost-cost` (the time of that device for a frame), `virtio-switch` (from one virtio
//! guest to another), `tcp` and `latency` (between two namespaces), `isolate` (the cost of one
//! process per tenant), `icount` (instructions per frame), `idle` (the cost of a thousand idle
//! vifs), `restart` (how long guests receive nothing when their backend is killed), `lifetimes`
//! (many vifs that begin, lose their backend and end at once). The subjects of a case run one after
//! the other within a round, so that changes of the machine over time affect all of them.
//!
//! `race` measures nothing: it prints what scenarios of `tests/xen` have measured.

mod chain;
mod child;
mod handoff;
mod host;
mod icount;
mod idle;
mod isolate;
mod latency;
mod lifetimes;
mod options;
mod pages;
mod path;
mod race;
mod report;
mod restart;
mod ring;
mod scratch;
mod tcp;
mod transfer;
mod vhost;
mod virtio_switch;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use options::Options;
use report::Report;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match run(&words) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ringway-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[OsString]) -> Result<ExitCode> {
    let verb = words.first().and_then(|word| word.to_str()).unwrap_or_default();
    match verb {
        ring::pair::END_VERB => become_end(&words[1..], ring::pair::end),
        vhost::END_VERB => become_end(&words[1..], vhost::end),
        chain::PART => chain::run(words).map(|()| ExitCode::SUCCESS),
        chain::GUEST => chain::run_guest(words).map(|()| ExitCode::SUCCESS),
        part if ringway_lab::part::is_part(part) => {
            ringway_lab::part::run(words)?;
            Ok(ExitCode::SUCCESS)
        }
        icount::COUNTED_VERB => {
            let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).skip(2).collect();
            icount::run(&words).map(|()| ExitCode::SUCCESS)
        }
        "race" => {
            let (show, file): (fn(&Path) -> Result<String>, _) = match &words[1..] {
                [option, file] if option == "--json" => (race::json, file),
                [file] => (race::table, file),
                _ => bail!("expected a file: race [--json] FILE"),
            };
            print!("{}", show(Path::new(file))?);
            Ok(ExitCode::SUCCESS)
        }
        _ => bench(&Options::parse(words)?),
    }
}

/// Runs this program as one end of a ring.
fn become_end(words: &[OsString], end: fn(&str) -> Result<()>) -> Result<ExitCode> {
    let (parent, words) =
        words.split_first().context("a child gets the process id of its parent")?;
    let parent = parent.to_str().and_then(|word| word.parse().ok()).context("not a process id")?;
    ringway_sys::process::die_with_parent(parent)?;
    end(words.first().and_then(|word| word.to_str()).unwrap_or_default())?;
    Ok(ExitCode::SUCCESS)
}

fn bench(options: &Options) -> Result<ExitCode> {
    if options.help {
        print!("{}", options::HELP);
        return Ok(ExitCode::SUCCESS);
    }
    options.pages.check()?;
    let _root = scratch::prepare()?;
    let mut report = Report::new(host::HostRecord::take(), options.rounds);
    for round in 0..options.rounds {
        report.begin_round(round);
        if options.has_section("ring") {
            ring::round(options, &mut report)?;
        }
        if options.has_section("vhost") {
            vhost::round(options, &mut report)?;
        }
        if options.has_section("vhost-cost") {
            vhost::cost_round(options, &mut report)?;
        }
        if options.has_section("virtio-switch") {
            virtio_switch::round(options, &mut report)?;
        }
        if options.has_section("tcp") {
            tcp::round(options, &mut report);
        }
        if options.has_section("latency") {
            latency::round(options, &mut report);
        }
        if options.has_section("isolate") {
            isolate::round(options, &mut report);
        }
        // Instruction counts hardly vary, so two rounds suffice.
        if options.has_section("icount") && round < 2 {
            icount::round(options, &mut report);
        }
        if options.has_section("idle") {
            idle::round(options, &mut report);
        }
        if options.has_section("restart") {
            restart::round(options, &mut report);
        }
        if options.has_section("lifetimes") {
            lifetimes::round(options, &mut report);
        }
    }
    report.print();
    if let Some(file) = &options.json {
        report.write_json(file)?;
    }
    Ok(if report.has_failures() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
