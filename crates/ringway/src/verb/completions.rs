//! `ringway completions` and `ringway man`: what a shell and man(1) want to know of us.

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;

/// Print completions for a shell
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write a manual page for each verb into a directory
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory, which must be there
    dir: PathBuf,
}

pub(crate) fn run(args: &Completions) {
    clap_complete::generate(args.shell, &mut Cli::command(), "ringway", &mut io::stdout());
}

pub(crate) fn run_man(args: &Man) -> Result<()> {
    let found = fs::metadata(&args.dir).with_context(|| args.dir.display().to_string())?;
    anyhow::ensure!(found.is_dir(), "{}: expected a directory", args.dir.display());
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .with_context(|| format!("write manual pages to {}", args.dir.display()))
}
