//! Starts processes of an experiment: this program again as one of its parts, or another program
//! in the network namespace of a part.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::child::{Child, PartError};
use crate::stop::Stop;

/// The part that becomes another program: `NETNS NAME ARGUMENT...`, where `NETNS` is a process in
/// the network namespace, or `-` for that of the caller.
pub(crate) const EXEC: &str = "exec";

/// How this program starts itself as a part.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    words: Vec<OsString>,
    scratch: PathBuf,
    stop: Stop,
}

impl Launcher {
    /// Parts are started as this program with `words` in front of the part's own; those lead to
    /// [`part::run`](crate::part::run). Temporary directories are made in `scratch`; all waiting
    /// ends once `stop` is due.
    ///
    /// # Errors
    /// If our own program cannot be found.
    pub fn new(words: &[&str], scratch: &Path, stop: Stop) -> io::Result<Launcher> {
        Ok(Launcher {
            program: std::env::current_exe()?,
            words: words.iter().map(OsString::from).collect(),
            scratch: scratch.to_owned(),
            stop,
        })
    }

    /// Our own program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// This one for so many seconds from now on.
    #[must_use]
    pub fn until(&self, seconds: f64) -> Launcher {
        Launcher { stop: self.stop.after(seconds), ..self.clone() }
    }

    /// When everything ends.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// This program as a part, to which arguments can be added.
    pub fn part(&self, part: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.words).arg(part).arg(std::process::id().to_string());
        // Ctrl-C is for us: we end the others in order.
        command.process_group(0);
        command
    }

    /// Another program here, to which arguments can be added.
    pub fn command(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = self.part(EXEC);
        command.arg("-").arg(name);
        command
    }

    /// Another program in the network namespace of a process.
    pub fn command_in(&self, pid: u32, name: impl AsRef<OsStr>) -> Command {
        let mut command = self.part(EXEC);
        command.arg(pid.to_string()).arg(name);
        command
    }

    /// Starts a command whose output is ours to read.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn start(&self, name: &str, command: Command) -> Result<Child, PartError> {
        Child::start(name, command, self.stop.clone())
    }

    /// A temporary directory.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn dir(&self) -> Result<TempDir, PartError> {
        TempDir::new_in(&self.scratch)
            .map_err(PartError::at(format!("make a directory in {}", self.scratch.display())))
    }
}

/// Where a program is found in `PATH`, or in the places of administrators' programs.
/// A path is found where it leads.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|dir| dir.join(name)).find(|file| file.is_file())
}
