//! `ringway doctor` and `ringway lab`, which are programs of their own and may be missing.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_terminal::options::{Common, LOG};

/// The arguments of another program.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// Its arguments, as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    words: Vec<OsString>,
}

/// Becomes the program `ringway-VERB`, beside this one or in `PATH`, as git and cargo do.
///
/// # Errors
/// There is no such program, or it does not start.
pub(crate) fn run(verb: &str, args: &Words, common: &Common) -> Result<Infallible> {
    let name = format!("ringway-{verb}");
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(&name));
    let program = beside.filter(|file| file.is_file()).unwrap_or_else(|| PathBuf::from(&name));
    let mut command = Command::new(&program);
    let error = command.args(&args.words).env(LOG, common.log_level.to_string()).exec();
    if error.kind() == io::ErrorKind::NotFound {
        bail!("{verb} is the program {name}, which is not installed: apt-get install {name}");
    }
    Err(error).with_context(|| format!("start {}", program.display()))
}
