//! Child processes of the bench, started by the lab's launcher.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result};
pub(crate) use ringway_rig::child::Child;
use ringway_rig::launcher::{self, Launcher};
use ringway_rig::stop::Stop;

/// How this program starts itself as a part of an experiment; Ctrl-C ends it as a whole.
pub(crate) fn launcher() -> Result<Launcher> {
    Launcher::new(&[], &crate::scratch::root(), Stop::default())
        .context("find the path of this program")
}

/// Another program, which the kernel kills when the thread that starts it ends for any reason.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Result<Command> {
    Ok(launcher()?.command(name))
}

/// This program with another verb; it is killed in the same way.
pub(crate) fn ourselves(verb: &str) -> Result<Command> {
    Ok(launcher()?.part(verb))
}

/// Starts a command and reads its output line by line.
pub(crate) fn start(name: &str, command: Command) -> Result<Child> {
    Ok(launcher()?.start(name, command)?)
}

/// True if a program can be found in `PATH`.
pub(crate) fn is_installed(name: &str) -> bool {
    launcher::find(name).is_some()
}
