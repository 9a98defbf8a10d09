//! `ringway completions` and `ringway man`: what a shell and man(1) want to know of us.

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

/// Prints what completes the words of `command`.
pub(crate) fn run(args: &Completions, mut command: Command) -> Result<()> {
    // Not straight to standard output, because a write that fails would be a panic there.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ringway", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes the manual pages of `command` and what it is made of.
pub(crate) fn run_man(args: &Man, command: Command) -> Result<()> {
    let found = fs::metadata(&args.dir).with_context(|| args.dir.display().to_string())?;
    anyhow::ensure!(found.is_dir(), "{}: expected a directory", args.dir.display());
    clap_mangen::generate_to(command, &args.dir)
        .with_context(|| format!("write manual pages to {}", args.dir.display()))
}
