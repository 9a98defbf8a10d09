//! What the backend reports to its service manager: readiness, the number of vifs, keep-alive
//! messages.

use std::io;

use ringway_hypervisor::Hypervisor;

use crate::Backend;
use crate::liveness::Liveness;
use crate::service::{Report, Service};

/// The last report, and the thread that sends keep-alive messages.
pub(crate) struct Reports {
    service: Service,
    pub(crate) liveness: Liveness,
    /// The number of vifs, and of connected ones.
    counts: Option<(usize, usize)>,
}

impl Reports {
    /// Called by the control thread.
    pub(crate) fn start(service: Service) -> io::Result<Reports> {
        let liveness = Liveness::start(&service)?;
        Ok(Reports { service, liveness, counts: None })
    }

    /// Reports that all existing vifs have been read, and that new ones will be.
    pub(crate) fn ready(&self) {
        self.service.report(Report::Ready);
    }

    /// Reports that an orderly stop has begun.
    pub(crate) fn stopping(&mut self) {
        self.liveness.end();
        self.service.report(Report::Stopping);
    }
}

impl<H: Hypervisor> Backend<H> {
    /// Reports how many vifs there are, when that has changed.
    pub(crate) fn report_counts(&mut self) {
        let counts = self.host.counts();
        let reports = &mut self.process.reports;
        if reports.counts.replace(counts) != Some(counts) {
            let (count, connected) = counts;
            reports.service.report(Report::Vifs { count, connected });
        }
    }
}
