//! Watches whether the threads of this process make progress, and sends keep-alive messages to a
//! service manager or supervisor.
//!
//! A thread that watches the others sends them, as long as none is stuck ([`ringway_watchdog`]). A
//! stuck thread leaves vifs unserved, and a new process would serve them: so this process reports
//! which thread is stuck, and ends. Without a service manager to start another process, there is no
//! watch.

use std::io;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_watchdog::{Finding, Pulse, Roster, Watch, WatchConfig};

use crate::recipient::{Recipient, Report};

/// The watch over a process, held by the thread that runs its control loop.
pub struct Liveness {
    pulse: Arc<Pulse>,
    roster: Roster,
    watch: Option<Watch>,
    stuck_after: Duration,
}

impl Liveness {
    /// Watches the calling thread, and those that enter the roster, if `recipient` wants
    /// keep-alive messages, which are sent at half its interval.
    ///
    /// # Errors
    /// Errors of creating a thread.
    pub fn start(recipient: &Recipient) -> io::Result<Liveness> {
        let (pulse, roster) = (Arc::new(Pulse::default()), Roster::default());
        roster.enter("control", &pulse, None);
        let stuck_after = recipient.stuck_after();
        let watch = recipient.watchdog().map(|interval| {
            let config = WatchConfig { stuck_after };
            Watch::start(config, roster.clone(), send_keep_alives(recipient.clone(), interval))
        });
        Ok(Liveness { pulse, roster, watch: watch.transpose()?, stuck_after })
    }

    /// Records that the control loop has completed a turn.
    pub fn beat(&self) {
        self.pulse.beat();
    }

    /// The pulse of the control thread, for calls in which it waits.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// The roster that other threads of this process enter.
    pub fn roster(&self) -> Roster {
        self.roster.clone()
    }

    /// Ends the watch: a stopping process waits for others, and the service manager limits that
    /// time.
    pub fn end(&mut self) {
        self.watch = None;
    }

    /// The longest time between two turns of the control loop, if it is watched.
    pub fn beat_interval_max(&self) -> Option<Duration> {
        self.watch.as_ref().map(|_| self.stuck_after / 4)
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
                recipient.report(Report::Alive);
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
