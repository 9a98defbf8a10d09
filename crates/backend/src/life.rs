//! Whether the threads of this process live, and the signs of it that a service manager or
//! supervisor gets.
//!
//! A thread that looks after the others gives them, as long as none is stuck
//! ([`ringway_watchdog`]). One that is leaves vifs unserved, which a new process does not: so this
//! one says which thread it is, and ends. Where no service manager would start another, there
//! is no watch.

use std::io;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_watchdog::{Finding, Pulse, Roster, Watch, WatchConfig};

use crate::service::{Report, Service};

/// The watch over a process, held by the thread that has its control loop.
pub struct Life {
    pulse: Arc<Pulse>,
    roster: Roster,
    watch: Option<Watch>,
    stuck_after: Duration,
}

impl Life {
    /// Watches the calling thread, and those that enter the roster, if `service` wants signs of
    /// life: it gets one each half of its interval.
    ///
    /// # Errors
    /// What thread creation reports.
    pub fn start(service: &Service) -> io::Result<Life> {
        let (pulse, roster) = (Arc::new(Pulse::default()), Roster::default());
        roster.enter("control", &pulse, None);
        let stuck_after = service.stuck_after();
        let watch = service.watchdog().map(|interval| {
            let config = WatchConfig { stuck_after };
            Watch::start(config, roster.clone(), give_signs(service.clone(), interval))
        });
        Ok(Life { pulse, roster, watch: watch.transpose()?, stuck_after })
    }

    /// Shows that the control loop has turned.
    pub fn beat(&self) {
        self.pulse.beat();
    }

    /// What the control thread shows of itself, for what it waits in.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Where other threads of this process enter.
    pub fn roster(&self) -> Roster {
        self.roster.clone()
    }

    /// Ends the watch: what comes to an end waits for others, and the service manager has a limit
    /// for that.
    pub fn end(&mut self) {
        self.watch = None;
    }

    /// How often the control loop has to turn at least, if it is watched.
    pub fn beats_within(&self) -> Option<Duration> {
        self.watch.as_ref().map(|_| self.stuck_after / 4)
    }
}

/// What is done with each finding.
fn give_signs(service: Service, interval: Duration) -> impl FnMut(Finding<'_>) + Send + 'static {
    let mut due = Instant::now();
    move |finding| match finding {
        Finding::Well => {
            let now = Instant::now();
            if now >= due {
                due = now + interval / 2;
                service.report(Report::Alive);
            }
        }
        Finding::Stuck(name, stuck) => {
            tracing::error!("the thread {name} {stuck}: this process ends, for a new one to serve");
            process::abort();
        }
        Finding::Blind(error) => {
            tracing::warn!("/proc/self/task: {error}: stuck threads cannot be detected");
        }
    }
}
