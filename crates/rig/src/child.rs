//! Child processes that never outlive this program, and what they print.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anstream::adapter::strip_bytes;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::stop::Stop;

/// Lines kept for an error message.
const LINES_KEPT: usize = 3;
/// How often a wait for a line checks whether to stop.
const POLL_PAUSE: Duration = Duration::from_millis(50);

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    lines: Receiver<String>,
    last: Vec<String>,
    stop: Stop,
}

/// How a child ended, and what it printed, without colours and other escape sequences.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output and standard error, as their lines arrived.
    pub output: String,
}

/// Why a process or another part of an experiment did not start or did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The operating system reported an error.
    #[error("cannot {what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system reported.
        error: io::Error,
    },
    /// It ended early or with a failure, or printed something unexpected.
    #[error("{0}")]
    Failed(String),
    /// The user asked to end, or the time was up.
    #[error("it was stopped before it was finished")]
    Interrupted,
}

impl PartError {
    /// For `map_err`: adds what was being done.
    pub fn at(what: impl Into<String>) -> impl FnOnce(io::Error) -> PartError {
        let what = what.into();
        move |error| PartError::Io { what, error }
    }
}

impl Child {
    /// Starts a command and reads its output line by line. Waiting for a line ends once `stop` is
    /// due.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(name: &str, mut command: Command, stop: Stop) -> Result<Child, PartError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(PartError::at(format!("start {name}")))?;
        let (sender, lines) = channel();
        // Both are set to be piped above.
        if let (Some(out), Some(err)) = (process.stdout.take(), process.stderr.take()) {
            forward_lines(out, sender.clone());
            forward_lines(err, sender);
        }
        Ok(Child { name: name.to_owned(), process, lines, last: Vec::new(), stop })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// If it has closed its standard input.
    pub fn say(&mut self, line: &str) -> Result<(), PartError> {
        let written = match self.process.stdin.as_mut() {
            Some(stdin) => writeln!(stdin, "{line}").and_then(|()| stdin.flush()),
            None => Ok(()),
        };
        written.map_err(|_| PartError::Failed(self.trouble("it has closed its standard input")))
    }

    /// Waits for the first line for which `wanted` returns something; others are skipped.
    ///
    /// # Errors
    /// If it ends before, or prints no such line within `patience`.
    pub fn wait_for<T>(
        &mut self,
        patience: Duration,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> Result<T, PartError> {
        let deadline = Instant::now() + patience;
        loop {
            match self.line_by(deadline)? {
                Some(line) => {
                    if let Some(found) = wanted(&line) {
                        return Ok(found);
                    }
                    if self.last.len() == LINES_KEPT {
                        self.last.remove(0);
                    }
                    self.last.push(line);
                }
                None => return Err(PartError::Failed(self.trouble("it ended early"))),
            }
        }
    }

    /// Waits until it has ended with success, and returns what it printed.
    ///
    /// # Errors
    /// If it does not end within `patience`, or fails.
    pub fn output(self, patience: Duration) -> Result<String, PartError> {
        let name = self.name.clone();
        let Ended { status, output } = self.ended(patience)?;
        if status.success() {
            return Ok(output);
        }
        Err(PartError::Failed(format!("{name} failed ({status}): {}", output.trim())))
    }

    /// Waits until it has ended, with success or not.
    ///
    /// # Errors
    /// If it does not end within `patience`.
    pub fn ended(mut self, patience: Duration) -> Result<Ended, PartError> {
        let deadline = Instant::now() + patience;
        let mut output = String::new();
        while let Some(line) = self.line_by(deadline)? {
            output.push_str(&line);
            output.push('\n');
        }
        let status = self.process.wait();
        let status = status.map_err(PartError::at(format!("wait for {}", self.name)))?;
        Ok(Ended { status, output })
    }

    /// Whether it has ended. It is not waited for: its output and CPU time can still be read.
    pub fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        pid.is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// The error to report if it has ended although it should still run.
    pub fn premature_exit(&mut self) -> Option<PartError> {
        let status = self.process.try_wait().ok()??;
        let said = self.lines.try_iter().collect::<Vec<_>>().join(" / ");
        Some(PartError::Failed(format!("{} ended early ({status}): {said}", self.name)))
    }

    /// Sends it `SIGTERM` and waits until it has ended, so that it can end its own children and
    /// their CPU time is counted. It is killed when this value is dropped, if it runs on.
    pub fn finish(&mut self, patience: Duration) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.process.try_wait()) {
            // It was not waited for, so the process id is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            // waits: no descriptor says that a child has ended.
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The next line; `None` when both outputs are closed.
    fn line_by(&self, deadline: Instant) -> Result<Option<String>, PartError> {
        loop {
            match self.lines.recv_timeout(POLL_PAUSE) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.stop.is_due() {
                return Err(PartError::Interrupted);
            }
            if Instant::now() >= deadline {
                return Err(PartError::Failed(self.trouble("no output in time")));
            }
        }
    }

    fn trouble(&self, what: &str) -> String {
        let said = match self.last.join(" / ") {
            lines if lines.is_empty() => "and said nothing".to_owned(),
            lines => format!("and said: {lines}"),
        };
        format!("{}: {what}, {said}", self.name)
    }
}

/// The thread ends when the child closes the pipe.
fn forward_lines(pipe: impl Read + Send + 'static, into: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let plain = strip_bytes(&line).into_vec();
            if into.send(String::from_utf8_lossy(&plain).into_owned()).is_err() {
                return;
            }
        }
    });
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::start("a tool", command, Stop::default()).expect("a shell")
    }

    #[test]
    fn what_a_tool_says_is_kept_without_its_colours() {
        let said = "printf '\\033[1;31merror:\\033[0m \\033]0;title\\007no route\\n'";
        let patience = Duration::from_secs(60);
        let failed = shell(&format!("{said} >&2; exit 1")).output(patience).expect_err("it fails");
        let failed = failed.to_string();
        assert_eq!(failed, "a tool failed (exit status: 1): error: no route");
        let mut silent = shell(&format!("{said}; exit 0"));
        let failed = silent.wait_for::<()>(patience, |_| None).expect_err("it ends").to_string();
        assert_eq!(failed, "a tool: it ended early, and said: error: no route");
    }
}
