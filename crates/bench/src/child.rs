//! Child processes that never outlive us, and what they print.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// The verb by which this program becomes another one; see [`become_program`].
pub(crate) const EXEC_VERB: &str = "exec";

/// Lines kept for an error message.
const LINES_KEPT: usize = 3;

/// Another program, which the kernel kills when the thread that starts it ends, however that
/// comes about.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Result<Command> {
    let mut command = ourselves(EXEC_VERB)?;
    command.arg(name);
    Ok(command)
}

/// This program with another verb; it is killed in the same way.
pub(crate) fn ourselves(verb: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find our own program")?);
    command.arg(verb).arg(std::process::id().to_string());
    Ok(command)
}

/// The other half of [`program`]: replaces this process. Returns only on failure.
pub(crate) fn become_program(words: &[std::ffi::OsString]) -> Result<()> {
    let (name, arguments) = words.split_first().context("no program to run")?;
    let error = Command::new(name).args(arguments).exec();
    Err(error).with_context(|| format!("run {}", name.to_string_lossy()))
}

/// True if a program can be found in `PATH`.
pub(crate) fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// A running child. Dropping it kills it.
pub(crate) struct Child {
    name: String,
    process: std::process::Child,
    lines: Receiver<String>,
    last: Vec<String>,
}

impl Child {
    /// Starts a command whose output is ours to read, line by line.
    pub(crate) fn start(name: &str, mut command: Command) -> Result<Child> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("start {name}"))?;
        let (sender, lines) = channel();
        // Both are set to be piped above.
        if let (Some(out), Some(err)) = (process.stdout.take(), process.stderr.take()) {
            forward_lines(out, sender.clone());
            forward_lines(err, sender);
        }
        Ok(Child { name: name.to_owned(), process, lines, last: Vec::new() })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Writes a line to its standard input.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.process.stdin.as_mut().context("standard input is piped")?;
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).with_context(|| self.trouble())
    }

    /// The next line for which `wanted` returns something; others are skipped.
    pub(crate) fn wait_for<T>(
        &mut self,
        patience: Duration,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(found) = wanted(&line) {
                        return Ok(found);
                    }
                    if self.last.len() == LINES_KEPT {
                        self.last.remove(0);
                    }
                    self.last.push(line);
                }
                Err(RecvTimeoutError::Timeout) => bail!("no answer in time; {}", self.trouble()),
                Err(RecvTimeoutError::Disconnected) => bail!("it ended early; {}", self.trouble()),
            }
        }
    }

    /// All it prints until it ends, which must be with success.
    pub(crate) fn output(mut self, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        let mut output = String::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    output.push_str(&line);
                    output.push('\n');
                }
                Err(RecvTimeoutError::Timeout) => bail!("{} did not end in time", self.name),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.process.wait().with_context(|| format!("wait for {}", self.name))?;
        if !status.success() {
            bail!("{} failed ({status}): {}", self.name, output.trim());
        }
        Ok(output)
    }

    /// Asks it to end, and waits until it has: then its own children have ended, too, and the time
    /// they used is known. Whoever does not want to is killed.
    pub(crate) fn finish(&mut self, patience: Duration) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn trouble(&self) -> String {
        format!("{} said:\n{}", self.name, self.last.join("\n"))
    }
}

/// Ends with the pipe, and so with the child.
fn forward_lines(pipe: impl Read + Send + 'static, into: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if into.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
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
