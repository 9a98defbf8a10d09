//! The engines of one backend's process, as seen by its control thread.
//!
//! This is `ringway-worker`'s pool without threads. The steps that attach, detach and move queues
//! are the same code; where that code waits for other threads, the world runs here until the
//! condition holds ([`DataPlane::wait_until`](crate::plane::DataPlane)).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{DropReason, MacAddr, PoolBudget, QueueCounters};
use ringway_engine::{Directory, Failure, Placed, Roster, SlotId};
use ringway_steering::FlowKey;
use ringway_switch::{PortId, Switch, Ticks};

use crate::canary::Canary;
use crate::ledger::Owner;
use crate::port::Port;
use crate::worker::Worker;

/// The parts of a backend's process that move frames.
pub(crate) struct Workers {
    pub(crate) workers: Vec<Worker>,
    pub(crate) roster: Roster,
    pub(crate) directory: Arc<Directory>,
    pub(crate) budget: Arc<PoolBudget>,
    pub(crate) budget_bytes: usize,
    pub(crate) switch: Arc<Switch>,
    pub(crate) failures: VecDeque<Failure<Port>>,
    /// The counters of all queues that honest guests have or had.
    pub(crate) counters: Vec<Arc<QueueCounters>>,
    /// The ports in use, and their owners; `None` for those of hostile guests.
    ports: BTreeMap<PortId, Option<Owner>>,
}

/// The configuration of a backend's process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkersConfig {
    pub(crate) engines: usize,
    pub(crate) budget_bytes: usize,
    pub(crate) flow_key: FlowKey,
    pub(crate) canary: Option<Canary>,
}

impl Workers {
    pub(crate) fn start(config: WorkersConfig, switch: &Arc<Switch>, now: Instant) -> Workers {
        let budget = PoolBudget::new(config.budget_bytes);
        let mut roster = Roster::default();
        let worker = |number| {
            roster.add_engine();
            Worker::new(number, &budget, now, config.flow_key, config.canary)
        };
        let workers: Vec<Worker> = (0..config.engines).map(worker).collect();
        let mut started = Workers {
            workers,
            roster,
            directory: Arc::default(),
            budget,
            budget_bytes: config.budget_bytes,
            switch: Arc::clone(switch),
            failures: VecDeque::new(),
            counters: Vec::new(),
            ports: BTreeMap::new(),
        };
        started.publish();
        started
    }

    /// Publishes a new directory from the current roster.
    pub(crate) fn publish(&mut self) {
        let inboxes = self.workers.iter().map(|worker| Arc::clone(&worker.inbox)).collect();
        let version = self.directory.version + 1;
        self.directory = Arc::new(self.roster.directory(version, inboxes));
    }

    /// Whether every engine uses the newest directory.
    pub(crate) fn have_seen_directory(&self) -> bool {
        self.workers.iter().all(|worker| worker.seen >= self.directory.version)
    }

    /// Wakes engines that have not seen the newest directory.
    pub(crate) fn announce_directory(&self) {
        let late = |worker: &&Worker| worker.seen < self.directory.version;
        self.workers.iter().filter(late).for_each(|worker| worker.inbox.announce_command());
    }

    /// A queue is about to be attached, or to be moved.
    pub(crate) fn note_attached(&mut self, port: PortId, queue: &Port) {
        self.ports.insert(port, queue.owner());
        let is_it = |known: &Arc<QueueCounters>| Arc::ptr_eq(known, &queue.counters);
        if queue.owner().is_some() && !self.counters.iter().any(is_it) {
            self.counters.push(Arc::clone(&queue.counters));
        }
    }

    /// The owners of ports that no longer have queues.
    pub(crate) fn forget_ports(&mut self) -> Vec<Owner> {
        let Workers { ports, roster, .. } = self;
        let gone: Vec<PortId> =
            ports.keys().copied().filter(|port| roster.count(*port) == 0).collect();
        gone.into_iter().filter_map(|port| ports.remove(&port).flatten()).collect()
    }

    /// The owner of a port.
    pub(crate) fn owner(&self, port: PortId) -> Option<Owner> {
        self.ports.get(&port).copied().flatten()
    }

    /// The owner of the queue that will be in this slot.
    pub(crate) fn owner_at(&self, engine: usize, slot: SlotId) -> Option<Owner> {
        let is_there =
            |placed: &&Placed| (placed.address.engine, placed.address.slot) == (engine, slot);
        self.owner(self.roster.queues().iter().find(is_there)?.port)
    }

    /// Whether the switch knows an address, so that frames to it are not flooded.
    pub(crate) fn knows(&self, mac: MacAddr) -> bool {
        self.switch.fdb().lookup(mac, Ticks::default()).is_some()
    }

    /// Frames that were dropped and counted, in all queues of honest guests.
    pub(crate) fn dropped(&self) -> u64 {
        self.drops().map(|(_, count)| count).sum()
    }

    /// Frames that were dropped for one reason and counted, in all queues of honest guests.
    pub(crate) fn dropped_for(&self, reason: DropReason) -> u64 {
        self.drops().filter(|(other, _)| *other == reason).map(|(_, count)| count).sum()
    }

    fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        self.counters.iter().flat_map(|counters| counters.dropped.snapshot())
    }
}
