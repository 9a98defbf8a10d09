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
/// the network namespace to enter, or `-` for none.
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
    /// A part is this program, started with `words` and then the part's own words, which `main`
    /// gives to [`part::run`](crate::part::run). Temporary directories are made in `scratch`.
    /// Waiting for what is started ends once `stop` is due.
    ///
    /// # Errors
    /// If the path of this program is unknown.
    pub fn new(words: &[&str], scratch: &Path, stop: Stop) -> io::Result<Launcher> {
        Ok(Launcher {
            program: std::env::current_exe()?,
            words: words.iter().map(OsString::from).collect(),
            scratch: scratch.to_owned(),
            stop,
        })
    }

    /// This program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A launcher like this one whose waiting also ends this many seconds from now.
    #[must_use]
    pub fn until(&self, seconds: f64) -> Launcher {
        Launcher { stop: self.stop.after(seconds), ..self.clone() }
    }

    /// When waiting ends.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// A command that runs this program as a part; the caller adds the part's arguments.
    pub fn part(&self, part: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.words).arg(part).arg(std::process::id().to_string());
        // Ctrl-C reaches this program only, which ends its children in order.
        command.process_group(0);
        command
    }

    /// A command that runs another program in the network namespace of the caller.
    pub fn command(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = self.part(EXEC);
        command.arg("-").arg(name);
        command
    }

    /// A command that runs another program in the network namespace of a process.
    pub fn command_in(&self, pid: u32, name: impl AsRef<OsStr>) -> Command {
        let mut command = self.part(EXEC);
        command.arg(pid.to_string()).arg(name);
        command
    }

    /// Starts a command and reads its output; `name` is what error messages call it.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(&self, name: &str, command: Command) -> Result<Child, PartError> {
        Child::start(name, command, self.stop.clone())
    }

    /// Makes a temporary directory.
    ///
    /// # Errors
    /// If the file system is full, or this user may not write there.
    pub fn dir(&self) -> Result<TempDir, PartError> {
        TempDir::new_in(&self.scratch)
            .map_err(PartError::at(format!("make a directory in {}", self.scratch.display())))
    }
}

/// Finds another program of ringway: beside the one that runs, where a package or a build puts all
/// of them, or as [`find`] does.
pub fn find_ours(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    beside.filter(|file| file.is_file()).or_else(|| find(name))
}

/// Finds a program in `PATH`, then in `/usr/sbin` and `/sbin`. A name that is an absolute path is
/// found if it is a file.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|dir| dir.join(name)).find(|file| file.is_file())
}
