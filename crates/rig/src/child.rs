//! Child processes that never outlive us, and what they print.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anstream::adapter::strip_bytes;
use rustix::process::{Pid, Signal, kill_process};

use crate::stop::Stop;

/// Lines kept for an error message.
const LINES_KEPT: usize = 3;
/// Between two looks at whether we are to end.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    lines: Receiver<String>,
    last: Vec<String>,
    stop: Stop,
}

/// How a child ended, and all that it printed, without colours and other codes for terminals.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Both of its outputs.
    pub output: String,
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

impl Child {
    /// Starts a command whose output is ours to read, line by line, until `stop` is due.
    ///
    /// # Errors
    /// What the system refuses.
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
    /// If it does not read any more.
    pub fn say(&mut self, line: &str) -> Result<(), PartError> {
        let written = match self.process.stdin.as_mut() {
            Some(stdin) => writeln!(stdin, "{line}").and_then(|()| stdin.flush()),
            None => Ok(()),
        };
        written.map_err(|_| PartError::Failed(self.trouble("it does not listen")))
    }

    /// The next line for which `wanted` returns something; others are skipped.
    ///
    /// # Errors
    /// If it ends before, or does not say it in time.
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

    /// All it prints until it ends, which must be with success.
    ///
    /// # Errors
    /// If it does not end in time, or fails.
    pub fn output(self, patience: Duration) -> Result<String, PartError> {
        let name = self.name.clone();
        let Ended { status, output } = self.ended(patience)?;
        if status.success() {
            return Ok(output);
        }
        Err(PartError::Failed(format!("{name} failed ({status}): {}", output.trim())))
    }

    /// Waits until it has ended, in whatever way.
    ///
    /// # Errors
    /// If it does not end in time.
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

    /// What went wrong, if it has ended though it should go on.
    pub fn early_end(&mut self) -> Option<PartError> {
        let status = self.process.try_wait().ok()??;
        let said = self.lines.try_iter().collect::<Vec<_>>().join(" / ");
        Some(PartError::Failed(format!("{} ended early ({status}): {said}", self.name)))
    }

    /// Asks it to end, and waits until it has: then its own children have ended, too, and the time
    /// they used is known. A child that does not end is killed.
    pub fn finish(&mut self, patience: Duration) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.process.try_wait()) {
            // It was not waited for, so the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The next line; none when there will be no more.
    fn line_by(&self, deadline: Instant) -> Result<Option<String>, PartError> {
        loop {
            match self.lines.recv_timeout(LOOK_PAUSE) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.stop.is_due() {
                return Err(PartError::Interrupted);
            }
            if Instant::now() >= deadline {
                return Err(PartError::Failed(self.trouble("no answer in time")));
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

/// Ends with the pipe, and so with the child.
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
        let patience = Duration::from_secs(20);
        let failed = shell(&format!("{said} >&2; exit 1")).output(patience).expect_err("it fails");
        let failed = failed.to_string();
        assert_eq!(failed, "a tool failed (exit status: 1): error: no route");
        let mut silent = shell(&format!("{said}; exit 0"));
        let failed = silent.wait_for::<()>(patience, |_| None).expect_err("it ends").to_string();
        assert_eq!(failed, "a tool: it ended early, and said: error: no route");
    }
}
