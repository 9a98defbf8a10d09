//! What this process reports about itself, and to whom: a service manager by sd_notify(3), which
//! systemd speaks and others have taken up, or the supervisor of an isolated backend. Where there
//! is neither, nothing happens.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ringway_control::{Link, ProcessReport};
use sd_notify::NotifyState;

/// How often a supervisor gets a sign of life, times two.
const SUPERVISED_WATCHDOG: Duration = Duration::from_secs(2);

/// Who looks after this process.
#[derive(Debug, Clone, Default)]
pub struct Service {
    watchdog: Option<Duration>,
    supervisor: Option<Arc<Link>>,
}

/// What is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// It serves.
    Ready,
    /// All its threads have just answered.
    Alive,
    /// What comes to an end does so in order.
    Stopping,
    /// How many vifs there are.
    Vifs {
        /// All of them.
        count: usize,
        /// Those that are connected.
        connected: usize,
    },
}

impl Service {
    /// The service manager that the environment names: `NOTIFY_SOCKET`, and `WATCHDOG_USEC` if it
    /// wants signs of life, of which it gets one each half of that time. Two seconds are the least
    /// that works: the control thread looks every half second.
    pub fn from_env() -> Service {
        Service { watchdog: sd_notify::watchdog_enabled(), supervisor: None }
    }

    /// The supervisor at the other end of a link.
    pub fn of_supervisor(link: Arc<Link>) -> Service {
        Service { watchdog: Some(SUPERVISED_WATCHDOG), supervisor: Some(link) }
    }

    /// The longest time between two signs of life, if any are wanted.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports something. A report that does not arrive is no error.
    pub fn report(&self, report: Report) {
        let sent = match &self.supervisor {
            Some(link) => tell_supervisor(link, report),
            None => tell_manager(report),
        };
        if let Err(error) = sent {
            tracing::debug!("a report to the supervisor or service manager: {error}");
        }
    }
}

fn tell_manager(report: Report) -> io::Result<()> {
    match report {
        Report::Ready => sd_notify::notify(&[NotifyState::Ready]),
        Report::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        Report::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        Report::Vifs { count, connected } => {
            let status = format!("{count} vifs, {connected} connected");
            sd_notify::notify(&[NotifyState::Status(&status)])
        }
    }
}

fn tell_supervisor(link: &Link, report: Report) -> io::Result<()> {
    match report {
        Report::Ready => link.send(&ProcessReport::Ready, &[]),
        Report::Alive => link.send(&ProcessReport::Alive, &[]),
        Report::Vifs { count, connected } => {
            link.send(&ProcessReport::Vifs { count, connected }, &[])
        }
        // It is the supervisor who has asked for that.
        Report::Stopping => Ok(()),
    }
}
