//! ringway itself: two guests on the emulated host that `ringway run` makes.

use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tempfile::TempDir;

use super::{ADDRESSES, OpenPath, PREFIX_LEN, Path};
use crate::child::{Child, program};

/// From the start until all guests are connected.
const PATIENCE: Duration = Duration::from_secs(120);

/// From the request to end until all its processes have.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The program.
pub(crate) struct Ringway {
    program: PathBuf,
}

/// A host that runs. What it started ends with it.
pub(crate) struct RunningHost {
    host: Child,
    guests: Vec<ReadyGuest>,
    _dir: TempDir,
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

impl Ringway {
    /// The program that was named, or the one beside this one.
    ///
    /// # Errors
    /// Where it is missing, for people.
    pub(crate) fn find(named: Option<&FilePath>) -> Result<Ringway, String> {
        let beside = || std::env::current_exe().ok().map(|own| own.with_file_name("ringway"));
        let program = named.map(FilePath::to_owned).or_else(beside).unwrap_or_default();
        if program.is_file() {
            Ok(Ringway { program })
        } else {
            Err(format!("no program {} (cargo build --release -p ringway)", program.display()))
        }
    }

    /// Runs a host that a description in TOML describes, until all its guests are connected.
    pub(crate) fn run(&self, description: &str) -> Result<RunningHost> {
        let dir = crate::scratch::dir()?;
        let file = dir.path().join("host.toml");
        fs::write(&file, description)?;
        let mut command: Command = program(&self.program)?;
        command.args(["--log-level", "warn", "run", "--json", "--config"]).arg(&file);
        command.arg("--dir").arg(dir.path().join("run"));
        let mut host = Child::start("ringway run", command)?;
        let ready = host.wait_for(PATIENCE, |line| {
            let ready: Ready = serde_json::from_str(line).ok()?;
            (ready.event == "ready").then_some(ready)
        })?;
        Ok(RunningHost { host, guests: ready.guests, _dir: dir })
    }
}

impl RunningHost {
    /// The process that runs the data path.
    pub(crate) fn backend_pid(&self) -> Result<u32> {
        let children = format!("/proc/{pid}/task/{pid}/children", pid = self.host.pid());
        for child in fs::read_to_string(children)?.split_whitespace() {
            let words = fs::read(format!("/proc/{child}/cmdline"))?;
            if words.split(|byte| *byte == 0).any(|word| word == b"backend") {
                return Ok(child.parse()?);
            }
        }
        bail!("`ringway run` has no child whose verb is `backend`")
    }
}

impl Drop for RunningHost {
    fn drop(&mut self) {
        self.host.finish(END_PATIENCE);
    }
}

impl Path for Ringway {
    fn name(&self) -> &'static str {
        "ringway"
    }

    fn open(&self) -> Result<Box<dyn OpenPath>> {
        let mut description = "[host]\nnetwork = \"private\"\n".to_owned();
        for (name, address) in ["left", "right"].iter().zip(ADDRESSES) {
            description += &format!(
                "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\naddresses = \
                 [\"{address}/{PREFIX_LEN}\"]\n"
            );
        }
        let host = self.run(&description)?;
        (host.guests.len() == ADDRESSES.len()).then_some(()).context("a path has two guests")?;
        Ok(Box::new(host))
    }
}

impl OpenPath for RunningHost {
    fn pid(&self, end: usize) -> u32 {
        self.guests[end].pid
    }
}
