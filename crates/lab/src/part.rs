//! Processes of an experiment: this program started again as one of its parts, or as another
//! program in the network namespace of a part.
//!
//! None of them outlives the thread that starts it: the kernel kills them with it, and network
//! namespaces go with the processes in them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::child::Child;
use crate::stop::Stop;
use crate::topology::{namespace, relay};

/// The part that becomes another program: `NETNS NAME ARGUMENT...`, where `NETNS` is a process in
/// the network namespace, or `-` for that of the caller.
const EXEC: &str = "exec";
/// The part that holds a network namespace.
pub(crate) const HOLD: &str = "hold-namespace";
/// The part that copies between TAP devices: `PID PID`, the holders of their namespaces.
pub(crate) const RELAY: &str = "relay";

const SCRATCH_PREFIX: &str = "ringway-lab-";
const LOCK_FILE: &str = "lock";

/// How this program starts itself as a part.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    words: Vec<OsString>,
    scratch: PathBuf,
    stop: Stop,
}

/// Why a part could not be started, or did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The system refused.
    #[error("cannot {what}: {error}")]
    Io {
        /// What was to be done.
        what: String,
        /// Why not.
        error: io::Error,
    },
    /// It ended, or said something that it should not have.
    #[error("{0}")]
    Failed(String),
    /// We were asked to end, or the time was up.
    #[error("it was ended before it was done")]
    Interrupted,
}

impl PartError {
    /// For `map_err`: what was being done.
    pub fn at(what: impl Into<String>) -> impl FnOnce(io::Error) -> PartError {
        let what = what.into();
        move |error| PartError::Io { what, error }
    }
}

impl Launcher {
    /// Parts are started as this program with `words` in front of the part's own; those lead to
    /// [`run`]. Temporary directories are made in `scratch`; all waiting ends once `stop` is due.
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

/// A place for temporary directories that is removed with this value.
///
/// Who is killed leaves it behind; then the next one removes it.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
    _lock: File,
}

impl Scratch {
    /// Makes one, and removes those whose owners are gone.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn new() -> io::Result<Scratch> {
        let root = std::env::temp_dir();
        for entry in fs::read_dir(&root)?.flatten() {
            let is_ours = entry.file_name().to_string_lossy().starts_with(SCRATCH_PREFIX);
            if is_ours && lock(&entry.path()).is_ok() {
                // Somebody else may remove it at the same time, or own it.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let dir = tempfile::Builder::new().prefix(SCRATCH_PREFIX).tempdir_in(root)?;
        let file = File::create(dir.path().join(LOCK_FILE))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Scratch { dir, _lock: file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Takes the lock of a scratch directory that is there; fails if its owner has it.
fn lock(dir: &Path) -> io::Result<File> {
    let file = File::open(dir.join(LOCK_FILE))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Whether a word is the name of a part.
pub fn is_part(word: &str) -> bool {
    [EXEC, HOLD, RELAY].contains(&word)
}

/// The other half of [`Launcher::part`]: what this program does as a part. Returns when the part
/// ends.
///
/// # Errors
/// What the part runs into; words that [`Launcher`] would not have said.
pub fn run(words: &[OsString]) -> io::Result<()> {
    let word = |index: usize| words.get(index).and_then(|word| word.to_str()).unwrap_or_default();
    let parent = word(1).parse().map_err(|_| io::Error::other("a part is told its parent"))?;
    match word(0) {
        EXEC => exec(parent, word(2), words.get(3..).unwrap_or_default()),
        HOLD => die_with(parent).and_then(|()| namespace::hold()),
        RELAY => die_with(parent).and_then(|()| relay::relay([word(2), word(3)])),
        other => Err(io::Error::other(format!("there is no part {other}"))),
    }
}

fn exec(parent: u32, netns: &str, words: &[OsString]) -> io::Result<()> {
    if let Ok(pid) = netns.parse() {
        ringway_sys::namespace::enter(pid)?;
    }
    die_with(parent)?;
    let (name, arguments) =
        words.split_first().ok_or_else(|| io::Error::other("no program to run"))?;
    let file = name.to_str().and_then(find).map_or(name.clone(), PathBuf::into_os_string);
    let error = Command::new(file).arg0(name).args(arguments).exec();
    Err(io::Error::new(error.kind(), format!("run {}: {error}", name.to_string_lossy())))
}

fn die_with(parent: u32) -> io::Result<()> {
    ringway_sys::process::die_with_parent(parent)
}

/// Where a program is found in `PATH`, or in the places of administrators' programs.
/// A path is found where it leads.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|dir| dir.join(name)).find(|file| file.is_file())
}
