//! A process that is looked after: started, listened to, ended when it is silent, started again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Result;
use ringway_control::{Link, ProcessReport, Received};
use serde::Serialize;
use tracing::level_filters::LevelFilter;

use crate::host::process::{Process, ProcessRecord};

/// How long a process may be silent. It ends by itself when one of its threads is stuck, and gives
/// a sign of life each second as long as it has any CPU time: one that is silent has had none for
/// all of this time, or is stopped.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A process that has lived so long begins with a clean record.
const LIFE_GOOD: Duration = Duration::from_secs(10);
/// The longest pause before a process is started again.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Reports that are read at a time.
const REPORTS_MAX: usize = 64;

/// One process, or the wish to have it.
pub(super) struct Child {
    /// As in the log and in the record of the host's processes.
    name: String,
    running: Option<Running>,
    /// When to start it, if it does not run.
    due: Instant,
    /// Ends in a row after a short life.
    failures: u32,
    starts: u64,
    /// Why it was ended, if we have.
    trouble: Option<String>,
}

struct Running {
    process: Process,
    link: Link,
    /// When it last reported something.
    heard: Instant,
    is_ready: bool,
    vifs: (usize, usize),
}

/// What became of a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// It serves from now on.
    Ready,
    /// It has ended; this is how. It will be started again when it is due.
    Ended {
        /// By itself, or after a reason that is not its own.
        status: String,
        /// Whether it gave up: an exit with a status, and not by a signal.
        has_given_up: bool,
    },
    /// The switch process moves a tenant's frames.
    Attached { tenant: String },
    /// The switch process has cut a tenant off.
    CutOff { tenant: String, reason: String },
}

impl Child {
    pub(super) fn new(name: String) -> Child {
        let due = Instant::now();
        Child { name, running: None, due, failures: 0, starts: 0, trouble: None }
    }

    /// Starts it, with one end of a link as its standard input.
    pub(super) fn start(&mut self, level: LevelFilter, arguments: &[&str]) -> Result<()> {
        let (link, theirs) = Link::pair()?;
        let stdin = Stdio::from(theirs);
        let process = Process::start_with(&self.name, level, arguments, [stdin, Stdio::null()])?;
        let now = Instant::now();
        self.starts += 1;
        self.running = Some(Running { process, link, heard: now, is_ready: false, vifs: (0, 0) });
        Ok(())
    }

    /// Whether it is to be started now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.running.is_none() && self.due <= now
    }

    /// When something is to be done about it, whatever it does.
    pub(super) fn deadline(&self) -> Instant {
        self.running.as_ref().map_or(self.due, Running::silent_at)
    }

    /// Whether it serves.
    pub(super) fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_ready)
    }

    pub(super) fn record(&self) -> Option<&ProcessRecord> {
        self.running.as_ref().map(|running| running.process.record())
    }

    pub(super) fn restarts(&self) -> u64 {
        self.starts.saturating_sub(1)
    }

    /// Why it was ended last, if it has not served since.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Its vifs, and those that are connected, as it has reported them.
    pub(super) fn vifs(&self) -> (usize, usize) {
        self.running.as_ref().map_or((0, 0), |running| running.vifs)
    }

    /// In words.
    pub(super) fn state(&self) -> &'static str {
        match &self.running {
            Some(running) if running.is_ready => "serving",
            Some(_) => "starting",
            None => "waiting",
        }
    }

    /// Sends it a message, if it runs. One that does not read its messages is ended.
    pub(super) fn send(&mut self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) {
        let Some(running) = &self.running else { return };
        match running.link.send(message, fds) {
            Ok(()) => {}
            // Its end is noticed by itself.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => self.kill(&format!("it does not read its messages: {error}")),
        }
    }

    /// Ends it at once, because of something that it did; it is started again as if it had failed.
    pub(super) fn kill(&mut self, reason: &str) {
        let Some(running) = &mut self.running else { return };
        tracing::warn!("{} is ended: {reason}", self.name);
        running.process.kill();
        self.trouble = Some(reason.to_owned());
    }

    /// Ends it for no fault of its own, and waits for that: it may be started again at once.
    pub(super) fn replace(&mut self) {
        if self.running.take().is_some() {
            self.due = Instant::now();
        }
    }

    /// What has happened since this was last asked.
    pub(super) fn look(&mut self, now: Instant) -> Result<Vec<Happened>> {
        let mut happened = Vec::new();
        let Some(running) = &mut self.running else { return Ok(happened) };
        let mut complaint = None;
        for _ in 0..REPORTS_MAX {
            let report = match running.link.receive() {
                Ok(Received::Message(report, _)) => report,
                Ok(Received::Nothing | Received::End) => break,
                Err(error) => {
                    complaint = Some(format!("it reports what means nothing: {error}"));
                    break;
                }
            };
            running.heard = now;
            match report {
                ProcessReport::Alive => {}
                ProcessReport::Ready if running.is_ready => {}
                ProcessReport::Ready => {
                    running.is_ready = true;
                    self.trouble = None;
                    happened.push(Happened::Ready);
                }
                ProcessReport::Vifs { count, connected } => running.vifs = (count, connected),
                ProcessReport::Attached { tenant } => happened.push(Happened::Attached { tenant }),
                ProcessReport::CutOff { tenant, reason } => {
                    happened.push(Happened::CutOff { tenant, reason });
                }
            }
        }
        if let Some(status) = running.process.ended()? {
            let has_lived = running.process.started.elapsed();
            self.running = None;
            self.failures = if has_lived >= LIFE_GOOD { 1 } else { self.failures + 1 };
            self.due = now + pause(self.failures);
            let has_given_up = status.code().is_some();
            let status = self.trouble.clone().unwrap_or_else(|| status.to_string());
            happened.push(Happened::Ended { status, has_given_up });
            return Ok(happened);
        }
        if running.silent_at() <= now {
            complaint = Some("it has given no sign of life".to_owned());
        }
        if let Some(complaint) = complaint {
            self.kill(&complaint);
        }
        Ok(happened)
    }

    /// Readable when there is something to read.
    pub(super) fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let running = self.running.iter();
        running.flat_map(|running| [running.process.as_fd(), running.link.as_fd()])
    }

    /// Its process, to be ended in order, and never to be started again.
    pub(super) fn into_process(self) -> Option<Process> {
        self.running.map(|running| running.process)
    }

    /// Its process, to be ended in order.
    pub(super) fn process_mut(&mut self) -> Option<&mut Process> {
        self.running.as_mut().map(|running| &mut running.process)
    }
}

impl Running {
    fn silent_at(&self) -> Instant {
        self.heard + SILENCE_MAX
    }
}

/// How long to wait before the next attempt, after so many short lives in a row: not at all after
/// the first, then a second, then twice as long each time.
fn pause(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => Duration::from_secs(1 << (more - 2).min(5)).min(PAUSE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_end_is_no_reason_to_wait_and_many_are() {
        let pauses: Vec<u64> = (0..9).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 30, 30]);
    }
}
