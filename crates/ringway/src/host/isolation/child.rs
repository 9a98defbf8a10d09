//! A supervised process: started, monitored, killed when it is silent, and restarted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ringway_control::{Link, ProcessReport, Received};
use ringway_sys::tun::TunFile;
use serde::Serialize;
use tracing::level_filters::LevelFilter;

use super::outbox::Outbox;
use super::silence::{Activity, Silence};
use crate::host::process::{Process, ProcessRecord};

/// After a run this long, earlier failures no longer count.
const LIFETIME_STABLE: Duration = Duration::from_secs(10);
/// The longest pause before a process is started again.
const PAUSE_MAX: Duration = Duration::from_secs(30); // not a limit: a pause of our own
/// Reports that are read at a time.
const REPORTS_MAX: usize = 64; // not a limit: a batch, the rest follows

/// One process, running or due to be started.
pub(super) struct Child {
    /// Its name in the log and in the record of the host's processes.
    name: String,
    running: Option<Running>,
    /// When to start it, if it is not running.
    due: Instant,
    /// Consecutive ends after a short run.
    failures: u32,
    starts: u64,
    /// Why we ended it, if we did.
    trouble: Option<String>,
}

struct Running {
    process: Process,
    link: Link,
    silence: Silence,
    is_ready: bool,
    vifs: (usize, usize),
    outbox: Outbox,
}

/// What happened to a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChildEvent {
    /// It serves now.
    Ready,
    /// It has ended. It is started again when it is due.
    Ended {
        /// How it ended, or why it was ended.
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

    /// Starts the process, with one end of a link as its standard input.
    pub(super) fn start(&mut self, level: LevelFilter, arguments: &[&str]) -> Result<()> {
        let (link, theirs) = Link::pair()?;
        let stdin = Stdio::from(theirs);
        let process = Process::start_with(&self.name, level, arguments, [stdin, Stdio::null()])?;
        let silence = Silence::since(Instant::now());
        self.starts += 1;
        self.running = Some(Running {
            process,
            link,
            silence,
            is_ready: false,
            vifs: (0, 0),
            outbox: Outbox::new(),
        });
        Ok(())
    }

    /// Whether to start it now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.running.is_none() && self.due <= now
    }

    /// When it next needs attention, even without a report from it.
    pub(super) fn deadline(&self) -> Instant {
        self.running.as_ref().map_or(self.due, Running::deadline)
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

    /// The numbers of its vifs and of those that are connected, as it last reported.
    pub(super) fn vifs(&self) -> (usize, usize) {
        self.running.as_ref().map_or((0, 0), |running| running.vifs)
    }

    /// Its state in words.
    pub(super) fn state(&self) -> &'static str {
        match &self.running {
            Some(running) if running.is_ready => "serving",
            Some(_) => "starting",
            None => "waiting",
        }
    }

    /// Sends it a message, if it runs. A process that does not read its messages is killed.
    pub(super) fn send(&mut self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) {
        let Some(running) = &self.running else { return };
        match running.link.send(message, fds) {
            Ok(()) => {}
            // The end of the process is noticed elsewhere.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => self.kill(&format!("it does not read its messages: {error}")),
        }
    }

    /// Sends it an order, after all earlier orders, as soon as there is room. A process that does
    /// not read its orders is killed.
    pub(super) fn order(&mut self, order: &impl Serialize, files: Vec<Arc<TunFile>>) {
        let Some(running) = &mut self.running else { return };
        running.outbox.push(order, files);
        self.send_orders();
    }

    /// Sends the orders for which there is room.
    fn send_orders(&mut self) {
        let Some(running) = &mut self.running else { return };
        if let Err(error) = running.outbox.send(&running.link) {
            self.kill(&format!("it does not read its orders: {error}"));
        }
    }

    /// Kills it because of something that it did; it is restarted as after a failure.
    pub(super) fn kill(&mut self, reason: &str) {
        let Some(running) = &mut self.running else { return };
        tracing::warn!("stopping {}: {reason}", self.name);
        running.process.kill();
        self.trouble = Some(reason.to_owned());
    }

    /// Kills it for no fault of its own and waits until it is gone: it may be restarted at once.
    pub(super) fn replace(&mut self) {
        if self.running.take().is_some() {
            self.due = Instant::now();
        }
    }

    /// What has happened since the last call.
    pub(super) fn poll(&mut self, now: Instant) -> Result<Vec<ChildEvent>> {
        let mut happened = Vec::new();
        self.send_orders();
        let Some(running) = &mut self.running else { return Ok(happened) };
        let mut complaint = None;
        for _ in 0..REPORTS_MAX {
            let report = match running.link.receive() {
                Ok(Received::Message(report, _)) => report,
                Ok(Received::Nothing | Received::End) => break,
                Err(error) => {
                    complaint = Some(format!("it sent an invalid report: {error}"));
                    break;
                }
            };
            running.silence = Silence::since(now);
            match report {
                ProcessReport::Alive => {}
                ProcessReport::Ready if running.is_ready => {}
                ProcessReport::Ready => {
                    running.is_ready = true;
                    self.trouble = None;
                    happened.push(ChildEvent::Ready);
                }
                ProcessReport::Vifs { count, connected } => running.vifs = (count, connected),
                ProcessReport::Attached { tenant } => {
                    happened.push(ChildEvent::Attached { tenant });
                }
                ProcessReport::CutOff { tenant, reason } => {
                    happened.push(ChildEvent::CutOff { tenant, reason });
                }
            }
        }
        if let Some(status) = running.process.ended()? {
            let has_lived = running.process.started.elapsed();
            self.running = None;
            self.failures = if has_lived >= LIFETIME_STABLE { 1 } else { self.failures + 1 };
            self.due = now + pause(self.failures);
            let has_given_up = status.code().is_some();
            let status = self.trouble.clone().unwrap_or_else(|| status.to_string());
            happened.push(ChildEvent::Ended { status, has_given_up });
            return Ok(happened);
        }
        let pid = running.process.record().pid;
        let too_silent = running.silence.check(now, || Activity::of(pid).ok());
        if let Some(complaint) = complaint.or(too_silent) {
            self.kill(&complaint);
        }
        Ok(happened)
    }

    /// Readable when there is something to read.
    pub(super) fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let running = self.running.iter();
        running.flat_map(|running| [running.process.as_fd(), running.link.as_fd()])
    }

    /// Readable once its process has ended; `None` if it does not run.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.process.as_fd())
    }

    /// Its process, to end in order.
    pub(super) fn process_mut(&mut self) -> Option<&mut Process> {
        self.running.as_mut().map(|running| &mut running.process)
    }
}

impl Running {
    fn deadline(&self) -> Instant {
        let silence = self.silence.deadline();
        self.outbox.due().map_or(silence, |resend| resend.min(silence))
    }
}

/// How long to wait before the next attempt after this many short lives in a row: no time after the
/// first, then a second, then twice as long each time.
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
    fn restarts_are_delayed_only_after_several_ends() {
        let pauses: Vec<u64> = (0..9).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 30, 30]);
    }
}
