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
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Write manual pages, one per command, into a directory
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway man ~/.local/share/man/man1")]
pub struct Man {
    /// The directory; it must exist
    pub dir: PathBuf,
}

impl Completions {
    /// Prints the script that completes the words of `command`.
    ///
    /// # Errors
    /// As [`print`] has them.
    pub fn print(&self, mut command: Command) -> Result<()> {
        let name = command.get_name().to_owned();
        // Into a buffer first: the generator panics if a write to standard output fails.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}

impl Man {
    /// Writes the manual pages of `command` and its subcommands.
    ///
    /// # Errors
    /// The directory does not exist, or a page cannot be written.
    pub fn write(&self, command: Command) -> Result<()> {
        let found = fs::metadata(&self.dir).with_context(|| self.dir.display().to_string())?;
        anyhow::ensure!(found.is_dir(), "{}: expected a directory", self.dir.display());
        clap_mangen::generate_to(command, &self.dir)
            .with_context(|| format!("write manual pages to {}", self.dir.display()))
    }
}
