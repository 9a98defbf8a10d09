//! ringway: multi-queue paravirtual networking in user space.
//!
//! The only binary. Each verb of the command line is a file in [`verb`]; [`host`] starts and
//! supervises the processes of a host.

mod cli;
mod confine;
mod host;
mod logging;
mod options;
mod output;
mod rates;
mod socket_group;
mod stop;
mod table;
mod target;
mod uplink_mac;
mod verb;
mod vhosts;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};
use ringway_description as description;

use crate::cli::{Cli, Verb};
use crate::output::ReaderLeft;
use crate::verb::{
    backend, broker, capture, completions, demo, doctor, guest, lab, opener, run,
    stop as stop_verb, top, vif, xenstore,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) if error.is::<ReaderLeft>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    let Cli { common, verb } = cli;
    if let Some(parent) = common.parent {
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
        Verb::Doctor(args) => return doctor::run(&args),
        Verb::Lab(args) => return lab::run(&args),
        Verb::Completions(args) => completions::run(&args, Cli::command())?,
        Verb::Man(args) => completions::run_man(&args, Cli::command())?,
        Verb::Broker(args) => broker::run(&args)?,
        Verb::Backend(args) => backend::run(&args)?,
        Verb::Opener(args) => opener::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
