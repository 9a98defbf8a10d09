//! The installed version of a tool, from the tool itself or from its package.

use std::process::Command;
use std::time::Duration;

use super::adapter::Program;
use crate::child::{Child, Ended};
use crate::launcher;
use crate::stop::Stop;

/// The longest time for a program to print its version.
// waits: a tool that hangs is used all the same, with an unknown version.
const PATIENCE: Duration = Duration::from_secs(5);

/// The version of a tool; `None` if it is not installed.
pub(super) fn of(program: &Program) -> Option<String> {
    match program.version_words {
        [] => package_version(program.package),
        words => said(program.client, words),
    }
}

/// The first line that a program prints about its version.
fn said(program: &str, words: &[&str]) -> Option<String> {
    // iperf 2 exits with a failure after printing it.
    let Ended { output, .. } = ran(program, words)?;
    output.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// The version of a Debian package; `None` if it is not installed, or this is not Debian.
fn package_version(package: &str) -> Option<String> {
    let show = ["--show", "--showformat=${Package} ${Version}", package];
    let Ended { status, output } = ran("dpkg-query", &show)?;
    let text = output.trim();
    (status.success() && !text.is_empty()).then(|| text.to_owned())
}

/// Runs a program that needs no input, and returns how it ended.
fn ran(program: &str, words: &[&str]) -> Option<Ended> {
    let mut command = Command::new(launcher::find(program)?);
    command.args(words);
    Child::start(program, command, Stop::default()).ok()?.ended(PATIENCE).ok()
}
