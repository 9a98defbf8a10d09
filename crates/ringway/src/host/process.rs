//! One process of the host.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringway_sys::poll::wait_readable;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;

use super::process_end::ProcessEnd;

/// How long a killed process may take to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A process, identified so that a later one with the same PID is not mistaken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    /// What it is: `broker`, `backend` or `guest NAME`.
    pub(crate) name: String,
    /// Its PID.
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot.
    pub(crate) start_time: u64,
}

impl ProcessRecord {
    /// A running process.
    pub(crate) fn of(name: &str, pid: u32) -> io::Result<ProcessRecord> {
        Ok(ProcessRecord { name: name.to_owned(), pid, start_time: start_time(pid)? })
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid).is_ok_and(|start| start == self.start_time)
    }

    /// A descriptor that is readable once the process has ended; `NotFound` if it already has.
    pub(crate) fn open(&self) -> io::Result<ProcessEnd> {
        let pid = as_pid(self.pid).ok_or(io::ErrorKind::NotFound)?;
        let record = self.clone();
        let end = ProcessEnd::of_any(pid, move || record.is_alive())?;
        // Once a descriptor of the kernel's is open, the PID cannot be reused for another process.
        if self.is_alive() { Ok(end) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Asks it to end. Returns a descriptor that is readable once it has; `None` if it had before.
    pub(crate) fn terminate(&self) -> io::Result<Option<ProcessEnd>> {
        match self.open() {
            Ok(end) => {
                end.signal(Signal::TERM)?;
                Ok(Some(end))
            }
            Err(_) => Ok(None),
        }
    }

    /// Kills it, and waits until it is gone. Fine if it is gone already.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let Ok(end) = self.open() else { return Ok(()) };
        end.signal(Signal::KILL)?;
        wait_readable(&end, Some(KILL_TIMEOUT)).map(|_| ())
    }
}

/// When a process started (field 22 of proc_pid_stat(5)); `NotFound` if it does not exist, or only
/// its exit status is left.
pub(crate) fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may contain any character; the rest
    // begins with the third field, the state.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = rest.split_ascii_whitespace();
    let is_gone = fields.next().is_none_or(|state| matches!(state, "Z" | "X"));
    let start = fields.nth(22 - 4).and_then(|ticks| ticks.parse().ok());
    start.filter(|_| !is_gone).ok_or(io::ErrorKind::NotFound.into())
}

/// A child that is one part of the host. Dropping it kills it.
pub(crate) struct Process {
    record: ProcessRecord,
    child: Child,
    end: ProcessEnd,
    pub(crate) started: Instant,
}

impl Process {
    /// Runs this program with other arguments. The child dies with the calling thread.
    pub(crate) fn start(
        name: &str,
        level: LevelFilter,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        stdout: Stdio,
    ) -> Result<Process> {
        Process::start_with(name, level, arguments, [Stdio::null(), stdout])
    }

    /// As [`start`](Process::start), with the given standard input and output.
    pub(crate) fn start_with(
        name: &str,
        level: LevelFilter,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        files: [Stdio; 2],
    ) -> Result<Process> {
        Process::start_in(name, level, arguments, files, None)
    }

    /// As [`start_with`](Process::start_with), with a variable in the environment.
    pub(crate) fn start_in(
        name: &str,
        level: LevelFilter,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        [stdin, stdout]: [Stdio; 2],
        variable: Option<(&str, &OsStr)>,
    ) -> Result<Process> {
        let mut command = child_of_ours(level, arguments);
        Process::spawn(name, command.envs(variable).stdin(stdin).stdout(stdout))
    }

    /// Runs this program with other arguments and this standard input, until it ends or the calling
    /// thread does, without a descriptor of its end.
    pub(crate) fn start_beside(
        name: &str,
        level: LevelFilter,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        stdin: Stdio,
    ) -> Result<()> {
        let mut command = child_of_ours(level, arguments);
        let spawned = command.stdin(stdin).stdout(Stdio::null()).spawn();
        spawned.map(drop).with_context(|| format!("start the {name} process"))
    }

    /// Runs this program with other arguments and this standard input. It survives if this process
    /// is killed, and has to end by itself.
    pub(crate) fn start_successor(
        name: &str,
        level: LevelFilter,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        stdin: Stdio,
    ) -> Result<Process> {
        let mut command = this_program(level);
        Process::spawn(name, command.args(arguments).stdin(stdin).stdout(Stdio::null()))
    }

    fn spawn(name: &str, command: &mut Command) -> Result<Process> {
        let mut child = command.spawn().with_context(|| format!("start the {name} process"))?;
        let described = match ProcessRecord::of(name, child.id()) {
            // A service manager may hide processes that have given up their rights (`hidepid` of
            // proc(5)), and this one was quick. A later run cannot find it either.
            Err(_) if matches!(child.try_wait(), Ok(None)) => {
                Ok(ProcessRecord { name: name.to_owned(), pid: child.id(), start_time: 0 })
            }
            record => record,
        };
        let described = described.and_then(|record| {
            let pid = as_pid(child.id()).ok_or(io::ErrorKind::InvalidInput)?;
            Ok((record, ProcessEnd::of_child(pid)?))
        });
        match described {
            Ok((record, end)) => Ok(Process { record, child, end, started: Instant::now() }),
            Err(error) => {
                // It ended at once, or we are out of descriptors; either way it must not stay.
                let _ = child.kill();
                let status = child.wait();
                Err(error).with_context(|| format!("start the {name} process ({status:?})"))
            }
        }
    }

    pub(crate) fn record(&self) -> &ProcessRecord {
        &self.record
    }

    /// Its standard output, if it was started with a pipe for it.
    pub(crate) fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Asks it to end.
    pub(crate) fn terminate(&mut self) {
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), as_pid(self.record.pid)) {
            // It is our child and was not waited for, so the PID is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Kills it, without waiting.
    pub(crate) fn kill(&mut self) {
        // Harmless when it has ended.
        let _ = self.child.kill();
    }

    /// Waits until it has ended, and kills it after a time.
    pub(crate) fn wait_or_kill(&mut self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        if !wait_readable(&self.end, Some(left)).unwrap_or(false) {
            tracing::warn!("{} did not stop on request; killing it", self.record.name);
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both are harmless when it has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs this program with other arguments, in a process that dies with the thread
/// that starts it.
fn child_of_ours(
    level: LevelFilter,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Command {
    let mut command = this_program(level);
    command.arg("--parent").arg(std::process::id().to_string()).args(arguments);
    command
}

/// A command that runs this program.
fn this_program(level: LevelFilter) -> Command {
    let mut command = Command::new("/proc/self/exe");
    // The service manager expects keep-alive messages from the supervisor, not from its children.
    command.arg0("ringway").arg("--log-level").arg(level.to_string()).env_remove("WATCHDOG_PID");
    // Ctrl-C goes to the supervisor alone, which ends the others in order.
    command.process_group(0);
    command
}

pub(crate) fn as_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_does_not_match_a_later_process_with_the_same_pid() {
        let record = ProcessRecord::of("test", std::process::id()).expect("we run");
        assert!(record.is_alive());
        let earlier = ProcessRecord { start_time: record.start_time - 1, ..record };
        assert!(!earlier.is_alive());
        earlier.kill().expect("there is nothing to kill");
    }

    #[test]
    fn a_killed_process_counts_as_gone_before_it_is_reaped() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("started");
        let record = ProcessRecord::of("cat", child.id()).expect("it runs");
        record.kill().expect("killed");
        assert!(!record.is_alive());
        child.wait().expect("ours");
    }
}
