//! ringway itself: the emulated host that `ringway run` creates, with its guests.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ringway_control::{BackendRequest, BackendStatus, RunDir, send_request};
use serde::Deserialize;
use tempfile::TempDir;

use crate::child::{Child, PartError};
use crate::launcher::Launcher;

/// The program that runs hosts and guests, and its Debian package.
pub const PROGRAM: &str = "ringway";
/// The longest time from the start until all guests are connected.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest time from the request to end until all processes have ended.
// waits: then it is killed, which ends them as well.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A host that was started. Dropping it kills it.
#[derive(Debug)]
pub struct StartingHost {
    host: Child,
    dir: TempDir,
}

/// A running host. Dropping it ends it with all that it started.
#[derive(Debug)]
pub struct RunningHost {
    host: Child,
    guests: Vec<u32>,
    dir: TempDir,
}

/// The line that `ringway run --json` prints when all guests are connected.
#[derive(Debug, Deserialize)]
struct Ready {
    event: String,
    guests: Vec<ReadyGuest>,
}

#[derive(Debug, Deserialize)]
struct ReadyGuest {
    pid: u32,
}

impl StartingHost {
    /// Runs `program`, which is ringway, with a host description in TOML.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn begin(
        launcher: &Launcher,
        program: &Path,
        description: &str,
    ) -> Result<StartingHost, PartError> {
        let dir = launcher.dir()?;
        let file = dir.path().join("host.toml");
        fs::write(&file, description)
            .map_err(PartError::at(format!("write {}", file.display())))?;
        let mut command: Command = launcher.command(program);
        command.args(["--log-level", "warn", "run", "--json", "--config"]).arg(&file);
        command.arg("--dir").arg(dir.path().join("run"));
        Ok(StartingHost { host: launcher.start("ringway run", command)?, dir })
    }

    /// The run directory.
    pub fn dir(&self) -> RunDir {
        run_dir(&self.dir)
    }

    /// Waits until all guests are connected.
    ///
    /// # Errors
    /// If the host does not start, with what it printed.
    pub fn ready(mut self) -> Result<RunningHost, PartError> {
        let ready = self.host.wait_for(PATIENCE, |line| {
            let ready: Ready = serde_json::from_str(line).ok()?;
            (ready.event == "ready").then_some(ready)
        })?;
        let guests = ready.guests.into_iter().map(|guest| guest.pid).collect();
        Ok(RunningHost { host: self.host, guests, dir: self.dir })
    }
}

fn run_dir(dir: &TempDir) -> RunDir {
    RunDir::new(dir.path().join("run"))
}

impl RunningHost {
    /// Runs `program`, which is ringway, with a host description in TOML, and waits until all
    /// guests are connected.
    ///
    /// # Errors
    /// If the host does not start, with what it printed.
    pub fn start(
        launcher: &Launcher,
        program: &Path,
        description: &str,
    ) -> Result<RunningHost, PartError> {
        StartingHost::begin(launcher, program, description)?.ready()
    }

    /// The process of the host, in the host's network namespace.
    pub fn pid(&self) -> u32 {
        self.host.pid()
    }

    /// The guests' processes in the order of the description. Each runs the guest's frontend in the
    /// guest's network namespace.
    pub fn guests(&self) -> &[u32] {
        &self.guests
    }

    /// The run directory.
    pub fn dir(&self) -> RunDir {
        run_dir(&self.dir)
    }

    /// The backend's status.
    ///
    /// # Errors
    /// If the backend does not respond.
    pub fn backend(&self) -> Result<BackendStatus, PartError> {
        send_request(&self.dir().backend(), &BackendRequest::Status)
            .map_err(PartError::at("ask the backend"))
    }
}

impl Drop for RunningHost {
    fn drop(&mut self) {
        self.host.finish(END_PATIENCE);
    }
}
