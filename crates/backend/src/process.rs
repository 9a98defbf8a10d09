//! What a process that serves vifs has in common with the switch process: its machinery, the
//! command line, and what its loop waits for.

use std::io;
use std::time::{Duration, Instant};

use ringway_control::{
    BackendRequest, BackendStatus, Call, ControlServer, ControlSocket, Reports, WorkerStatus,
};
use ringway_host::{Devices, Retried, Shared};
use ringway_host_shell::{HostKernel, NoteFiles, end_process};
use ringway_hypervisor::Hypervisor;
use ringway_net::LinkWatch;
use ringway_sys::poll::{Source, readable};
use ringway_worker::Workers;

use crate::config::BackendConfig;
use crate::machinery::Machinery;

/// How often load is balanced and the forwarding table is swept, while anything happens.
pub(crate) const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// What the control thread of a backend process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Stop,
    Store,
    Workers,
    Calls,
    Links,
    Supervisor,
    Opener,
    Plugger,
    Hangup,
    Session,
}

/// All of it. What is served by it, vifs or tenants, is beside it.
pub(crate) struct Process<H: Hypervisor> {
    pub(crate) machinery: Machinery<H>,
    pub(crate) config: BackendConfig,
    pub(crate) reports: Reports,
    /// What the kernel announces of links, in a process that keeps devices.
    links: Option<LinkWatch>,
    /// When load was last balanced.
    swept: Instant,
    /// Last, because it is removed when the rest has ended.
    control: ControlServer<BackendRequest>,
}

impl<H: Hypervisor> Process<H> {
    /// Starts the threads of the process, and makes what its vifs share. A worker that panics
    /// leaves a note of the vif that it served, and ends the process.
    ///
    /// # Errors
    /// If this host lacks threads or descriptors.
    pub(crate) fn start(
        hypervisor: H,
        config: BackendConfig,
        control: ControlSocket,
        net: Option<(HostKernel, LinkWatch)>,
    ) -> io::Result<(Process<H>, Shared)> {
        let control = ControlServer::start(control)?;
        let reports = Reports::start(config.reports_to.clone())?;
        let (net, links) = net.unzip();
        let (mut notes, now) = (Retried::new(NoteFiles::new(&config.dir)), Instant::now());
        let shared = Shared::new(config.host.clone(), &mut notes, now);
        let (workers, pulse) = (config.workers.clone(), Some(reports.pulse()));
        let workers = Workers::start_watched(workers, reports.roster.clone(), pulse)?;
        let (occupants, dir) = (shared.occupants.clone(), config.dir.clone());
        workers.on_panic(Box::new(move |serving| end_process(&occupants, &dir, serving)));
        let devices = match net {
            Some(net) => Devices::kept(net, &config.owner, &mut notes),
            None => Devices::none(),
        };
        let machinery = Machinery { hypervisor, workers, devices, notes };
        let process = Process { machinery, config, reports, links, swept: now, control };
        Ok((process, shared))
    }

    /// Begins a turn: notes what the kernel has announced.
    pub(crate) fn begin_turn(&mut self, ready: &[Token], shared: &mut Shared) {
        self.reports.beat();
        let links = self.links.as_mut().filter(|_| ready.contains(&Token::Links));
        if links.is_some_and(LinkWatch::has_changed) {
            shared.comparison.note_change(Instant::now());
        }
    }

    /// The next call of the command line.
    pub(crate) fn next_call(&self, ready: &[Token]) -> Option<Call<BackendRequest>> {
        if ready.contains(&Token::Calls) { self.control.next_call() } else { None }
    }

    /// Balances load and writes notes that could not be written before, if that is due, and returns
    /// when it was.
    pub(crate) fn rebalance(&mut self) -> Option<Instant> {
        if self.swept.elapsed() < HOUSEKEEPING {
            return None;
        }
        self.swept = Instant::now();
        self.machinery.notes.catch_up();
        self.machinery.workers.balance_flows();
        if let Some(moved) = self.machinery.workers.rebalance() {
            tracing::debug!(?moved, "queue moved to another worker");
        }
        Some(self.swept)
    }

    /// What each of these processes waits for.
    pub(crate) fn sources(&self) -> Vec<Source<'_, Token>> {
        let workers = readable(Token::Workers, &self.machinery.workers);
        let links = self.links.iter().map(|links| readable(Token::Links, links));
        [workers, readable(Token::Calls, &self.control)].into_iter().chain(links).collect()
    }

    /// Adds the facts of this process to a status.
    pub(crate) fn complete(&self, status: BackendStatus) -> BackendStatus {
        let workers = &self.machinery.workers;
        let placements = workers.placements();
        let status_of = |(index, busy): (usize, Duration)| WorkerStatus {
            index,
            queues: placements.iter().filter(|placed| placed.worker == index).count(),
            busy_ns: u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX),
        };
        BackendStatus {
            pid: std::process::id(),
            policy: self.config.workers.policy.to_string(),
            workers: workers.busy().enumerate().map(status_of).collect(),
            ..status
        }
    }
}
