//! ringway itself: guests on the emulated host that `ringway run` makes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ringway_control::{BackendRequest, BackendStatus, RunDir, ask};
use serde::Deserialize;
use tempfile::TempDir;

use crate::child::{Child, PartError};
use crate::launcher::Launcher;

/// From the start until all guests are connected.
const PATIENCE: Duration = Duration::from_secs(120);
/// From the request to end until all its processes have.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A host that runs. What it started ends with it.
#[derive(Debug)]
pub struct RunningHost {
    host: Child,
    guests: Vec<u32>,
    dir: TempDir,
}

/// The line by which `ringway run --json` tells that the guests are connected.
#[derive(Debug, Deserialize)]
struct Ready {
    event: String,
    guests: Vec<ReadyGuest>,
}

#[derive(Debug, Deserialize)]
struct ReadyGuest {
    pid: u32,
}

impl RunningHost {
    /// Has `program`, which is ringway, run a host that a description in TOML describes, until all
    /// its guests are connected.
    ///
    /// # Errors
    /// What stands in its way, in its own words.
    pub fn start(
        launcher: &Launcher,
        program: &Path,
        description: &str,
    ) -> Result<RunningHost, PartError> {
        let dir = launcher.dir()?;
        let file = dir.path().join("host.toml");
        fs::write(&file, description)
            .map_err(PartError::at(format!("write {}", file.display())))?;
        let mut command: Command = launcher.command(program);
        command.args(["--log-level", "warn", "run", "--json", "--config"]).arg(&file);
        command.arg("--dir").arg(dir.path().join("run"));
        let mut host = launcher.start("ringway run", command)?;
        let ready = host.wait_for(PATIENCE, |line| {
            let ready: Ready = serde_json::from_str(line).ok()?;
            (ready.event == "ready").then_some(ready)
        })?;
        let guests = ready.guests.into_iter().map(|guest| guest.pid).collect();
        Ok(RunningHost { host, guests, dir })
    }

    /// The process in whose network namespace the host is.
    pub fn pid(&self) -> u32 {
        self.host.pid()
    }

    /// The processes of the guests, in the order of the description: each is in the guest's
    /// network namespace and runs its frontend.
    pub fn guests(&self) -> &[u32] {
        &self.guests
    }

    /// The run directory.
    pub fn dir(&self) -> RunDir {
        RunDir::new(self.dir.path().join("run"))
    }

    /// What the backend says about itself.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn backend(&self) -> Result<BackendStatus, PartError> {
        ask(&self.dir().backend(), &BackendRequest::Status)
            .map_err(PartError::at("ask the backend"))
    }
}

impl Drop for RunningHost {
    fn drop(&mut self) {
        self.host.finish(END_PATIENCE);
    }
}
