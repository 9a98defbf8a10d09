//! What a process reports to its service manager or supervisor: readiness, the number of vifs, and
//! that its threads make progress.
//!
//! A thread that watches the others sends keep-alive messages, as long as none is stuck
//! ([`ringway_watchdog`]). A stuck thread leaves vifs unserved, and a new process would serve them:
//! so this process reports which thread is stuck, and ends. Without a service manager to start
//! another process, there is no watch.

use std::io;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_watchdog::{Finding, Pulse, Roster, Watch, WatchConfig};

use crate::recipient::Recipient;
use crate::tenancy::ProcessReport;

/// The last reports, and the watch over the threads of this process, held by the one that runs its
/// control loop.
pub struct Reports {
    recipient: Recipient,
    is_ready: bool,
    /// The number of vifs, and of connected ones.
    vifs: Option<(usize, usize)>,
    pulse: Arc<Pulse>,
    /// Other threads of this process enter it.
    pub roster: Roster,
    watch: Option<Watch>,
}

impl Reports {
    /// Watches the calling thread, and those that enter the roster, if `recipient` wants keep-alive
    /// messages, which are sent at half its interval.
    ///
    /// # Errors
    /// Errors of creating a thread.
    pub fn start(recipient: Recipient) -> io::Result<Reports> {
        let (pulse, roster) = (Arc::new(Pulse::default()), Roster::default());
        roster.enter("control", &pulse, None);
        let watch = recipient.watchdog.map(|interval| {
            let config = WatchConfig { stuck_after: recipient.stuck_after };
            Watch::start(config, roster.clone(), send_keep_alives(recipient.clone(), interval))
        });
        let watch = watch.transpose()?;
        Ok(Reports { recipient, is_ready: false, vifs: None, pulse, roster, watch })
    }

    /// Reports once that all existing vifs have been read, and that new ones will be.
    pub fn ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.recipient.report(&ProcessReport::Ready);
        }
    }

    /// Reports how many vifs there are, and how many are connected, when that has changed.
    pub fn vifs(&mut self, (count, connected): (usize, usize)) {
        if self.vifs.replace((count, connected)) != Some((count, connected)) {
            self.recipient.report(&ProcessReport::Vifs { count, connected });
        }
    }

    /// A description is in force: what an administrator should know of that before is over.
    pub fn described(&mut self) {
        self.recipient = self.recipient.clone().with_notice(None);
        // It has the notice.
        self.vifs = None;
    }

    /// Reports that the description is read again.
    pub fn reloading(&self) {
        self.recipient.reloading();
    }

    /// Reports that it was, whatever became of it.
    pub fn reloaded(&self) {
        self.recipient.report(&ProcessReport::Ready);
    }

    /// Reports that an orderly stop has begun, and ends the watch: a stopping process waits for
    /// others, and the service manager limits that time.
    pub fn stopping(&mut self) {
        self.watch = None;
        self.recipient.stopping();
    }

    /// Records that the control loop has completed a turn.
    pub fn beat(&self) {
        self.pulse.beat();
    }

    /// The longest time between two turns of the control loop, if it is watched.
    pub fn beat_interval_max(&self) -> Option<Duration> {
        self.watch.as_ref().map(|_| self.recipient.stuck_after / 4)
    }

    /// The pulse of the control thread, for calls in which it waits.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }
}

/// Handles each finding of the watch.
fn send_keep_alives(
    recipient: Recipient,
    interval: Duration,
) -> impl FnMut(Finding<'_>) + Send + 'static {
    let mut due = Instant::now();
    move |finding| match finding {
        Finding::Healthy => {
            let now = Instant::now();
            if now >= due {
                due = now + interval / 2;
                recipient.report(&ProcessReport::Alive);
            }
        }
        Finding::Stuck(name, stuck) => {
            tracing::error!(
                "the thread {name} {stuck}: this process ends, so that a new one can serve"
            );
            process::abort();
        }
        Finding::Paused(pause) => tracing::warn!("{pause}"),
        Finding::NoData(error) => {
            tracing::warn!("/proc/self/task: {error}: stuck threads cannot be detected");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::link::{Link, Received};

    use super::*;

    #[test]
    fn a_process_is_ready_once_and_reports_numbers_of_vifs_that_have_changed() {
        let (ours, theirs) = Link::pair().expect("sockets");
        let theirs = Link::new(theirs);
        let mut recipient = Recipient::of_supervisor(Arc::new(ours));
        // Keep-alive messages come by themselves.
        recipient.watchdog = None;
        let mut reports = Reports::start(recipient).expect("no thread is needed");
        assert_eq!(reports.beat_interval_max(), None, "no one watches");
        for _ in 0..2 {
            reports.ready();
            reports.vifs((2, 1));
        }
        reports.vifs((2, 2));
        reports.described();
        reports.vifs((2, 2));
        reports.reloaded();
        let next = || match theirs.receive().expect("it is there") {
            Received::Message(report, _) => Some(report),
            Received::Nothing | Received::End => None,
        };
        let found: Vec<ProcessReport> = std::iter::from_fn(next).collect();
        let vifs = |connected| ProcessReport::Vifs { count: 2, connected };
        let ready = || ProcessReport::Ready;
        assert_eq!(found, [ready(), vifs(1), vifs(2), vifs(2), ready()]);
    }
}
