//! ringway: multi-queue paravirtual networking in user space.
//!
//! The program that serves vifs. Each verb of the command line is a file in [`verb`]; [`host`]
//! starts and supervises the processes of a host.

mod cells;
mod cli;
mod confine;
mod host;
mod kernel;
mod manual;
mod own_mac;
mod rates;
mod screen;
mod socket_group;
mod target;
mod verb;
mod vhosts;
mod vsctl;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};
use ringway_description as description;
use ringway_terminal::{exit, logging};

use crate::cli::{Cli, Verb};
use crate::verb::{
    attacher, backend, broker, capture, companion, demo, guest, opener, plugger, run,
    stop as stop_verb, top, vif, xenstore,
};

fn main() -> ExitCode {
    // Those that we start from /proc/self/exe are called exe otherwise.
    let _ = rustix::thread::set_name(c"ringway");
    let cli = Cli::parse();
    exit(dispatch(cli))
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    let Cli { common, parent, verb } = cli;
    if let Some(parent) = parent {
        ringway_sys::process::die_with_parent(parent)?;
    }
    logging::start(common.log_level, &verb.process_name());
    match verb {
        Verb::Run(args) => run::run(&args, &common)?,
        Verb::Stop(args) => stop_verb::run(&args)?,
        Verb::Guest(args) => return guest::run(&args),
        Verb::Vif(args) => vif::run(&args)?,
        Verb::Top(args) => top::run(&args)?,
        Verb::Capture(args) => capture::run(&args)?,
        Verb::Xenstore(args) => xenstore::run(&args)?,
        Verb::Demo(args) => return demo::run(&args, &common),
        Verb::Doctor(args) => match companion::run("doctor", &args, &common)? {},
        Verb::Lab(args) => match companion::run("lab", &args, &common)? {},
        Verb::Model(args) => match companion::run("lab", &args.behind("model"), &common)? {},
        Verb::Completions(args) => args.print(Cli::command())?,
        Verb::Man(args) => {
            args.write(Cli::command())?;
            manual::write(&args.dir)?;
        }
        Verb::Broker(args) => broker::run(&args)?,
        Verb::Backend(args) => backend::run(&args)?,
        Verb::Attacher(args) => attacher::run(&args)?,
        Verb::Opener(args) => opener::run(&args)?,
        Verb::Plugger(args) => plugger::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
