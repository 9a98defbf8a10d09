//! What the backend reports to its service manager: readiness, the number of vifs, signs of life.

use std::time::{Duration, Instant};

use ringway_hypervisor::Hypervisor;
use ringway_xenbus::XenbusState;

use crate::Backend;
use crate::service::{Report, Service};
use crate::services::Hosting;
use crate::vif::VifShell;

/// How long workers may take to show that they are alive. The control thread waits for them, and
/// they answer between two rounds, which take microseconds where CPUs are to be had.
const WORKER_PATIENCE: Duration = Duration::from_secs(1);

/// What was reported last.
pub(crate) struct Reports {
    service: Service,
    /// When it is to get the next sign of life.
    due: Instant,
    /// Vifs, and those that are connected.
    counts: Option<(usize, usize)>,
    /// Whether all workers answered when they were last asked.
    is_alive: bool,
}

impl Reports {
    pub(crate) fn new(service: Service) -> Reports {
        Reports { service, due: Instant::now(), counts: None, is_alive: true }
    }

    /// All vifs that there are have been looked at, and new ones will be.
    pub(crate) fn ready(&self) {
        self.service.report(Report::Ready);
    }

    /// What comes to an end does so in order.
    pub(crate) fn stopping(&self) {
        self.service.report(Report::Stopping);
    }

    /// Reports, when it is time, that all threads are alive: this one by calling this, the others
    /// by answering. One that is stuck or has panicked leaves queues unserved, which a new process
    /// does not.
    pub(crate) fn show_life<H: Hypervisor>(&mut self, host: &Hosting<H>) {
        let Some(interval) = self.service.watchdog() else { return };
        let now = Instant::now();
        if now < self.due {
            return;
        }
        let is_alive = host.workers.all_respond(WORKER_PATIENCE);
        let was_alive = std::mem::replace(&mut self.is_alive, is_alive);
        if is_alive {
            self.due = now + interval / 2;
            self.service.report(Report::Alive);
        } else if was_alive {
            tracing::error!("a worker does not answer: no more signs of life until it does");
        }
    }
}

impl<H: Hypervisor> Backend<H> {
    /// Reports how many vifs there are, when that has changed, and signs of life.
    pub(crate) fn tell_service(&mut self) {
        let is_connected = |vif: &&VifShell| vif.state() == XenbusState::Connected;
        let counts = (self.vifs.len(), self.vifs.values().filter(is_connected).count());
        if self.reports.counts.replace(counts) != Some(counts) {
            let (count, connected) = counts;
            self.reports.service.report(Report::Vifs { count, connected });
        }
        self.reports.show_life(&self.services.host);
    }
}
