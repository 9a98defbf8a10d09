//! `ringway completions` and `ringway man`: completion scripts for shells, and manual pages.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::print;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  source <(ringway completions bash)")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write manual pages, one per command, into a directory
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway man ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// The directory; it must exist
    dir: PathBuf,
}

/// Prints the script that completes the words of `command`.
pub(crate) fn run(args: &Completions, mut command: Command) -> Result<()> {
    // Into a buffer first: the generator panics if a write to standard output fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ringway", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes the manual pages of `command` and its subcommands.
pub(crate) fn run_man(args: &Man, command: Command) -> Result<()> {
    let found = fs::metadata(&args.dir).with_context(|| args.dir.display().to_string())?;
    anyhow::ensure!(found.is_dir(), "{}: expected a directory", args.dir.display());
    clap_mangen::generate_to(command, &args.dir)
        .with_context(|| format!("write manual pages to {}", args.dir.display()))
}
