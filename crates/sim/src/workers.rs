//! The engines of one backend's process, as its control thread sees them.
//!
//! This is `ringway-worker`'s pool without threads. The steps that attach, detach and move queues
//! are the same code; what waits there for other threads, here lets the world go on until it is so
//! ([`DataPlane::wait_until`](crate::plane::DataPlane)).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{DropReason, MacAddr, PoolBudget, QueueCounters};
use ringway_engine::{Directory, Failure, Placed, Roster, SlotId};
use ringway_switch::{FloodLimit, PortId, StormLimits, Switch, SwitchConfig, Ticks};

use crate::canary::Canary;
use crate::ledger::Owner;
use crate::port::Port;
use crate::worker::Worker;

/// Ports that a backend can have at once.
const PORTS_MAX: u16 = 64;

/// Everything of a backend's process that moves frames.
pub(crate) struct Workers {
    pub(crate) workers: Vec<Worker>,
    pub(crate) roster: Roster,
    pub(crate) directory: Arc<Directory>,
    pub(crate) budget: Arc<PoolBudget>,
    pub(crate) budget_bytes: usize,
    pub(crate) switch: Arc<Switch>,
    pub(crate) failures: VecDeque<Failure<Port>>,
    /// Of all queues of honest guests that there are or were.
    pub(crate) counters: Vec<Arc<QueueCounters>>,
    /// The ports that are in use, and whose they are; none for those of hostile guests.
    ports: BTreeMap<PortId, Option<Owner>>,
    /// The port of the uplink, if there is one.
    pub(crate) uplink: Option<PortId>,
}

/// How a backend's process is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkersConfig {
    pub(crate) engines: usize,
    pub(crate) budget_bytes: usize,
    pub(crate) hash_seed: u64,
    pub(crate) canary: Option<Canary>,
}

impl Workers {
    pub(crate) fn start(config: WorkersConfig, now: Instant) -> Workers {
        let budget = PoolBudget::new(config.budget_bytes);
        let mut roster = Roster::default();
        let worker = |number| {
            roster.add_engine();
            Worker::new(number, &budget, now, config.canary)
        };
        let workers: Vec<Worker> = (0..config.engines).map(worker).collect();
        let switch = Switch::new(SwitchConfig {
            fdb_entries_max: 256,
            ports_max: PORTS_MAX,
            addresses_per_port_max: 16,
            ageing_ticks: 300,
            flood: FloodLimit::NONE,
            storm: StormLimits::NONE,
            multicast: None,
            hash_seed: config.hash_seed,
        });
        let mut started = Workers {
            workers,
            roster,
            directory: Arc::default(),
            budget,
            budget_bytes: config.budget_bytes,
            switch: Arc::new(switch),
            failures: VecDeque::new(),
            counters: Vec::new(),
            ports: BTreeMap::new(),
            uplink: None,
        };
        started.publish();
        started
    }

    /// Replaces the directory by one of the roster as it is now.
    pub(crate) fn publish(&mut self) {
        let inboxes = self.workers.iter().map(|worker| Arc::clone(&worker.inbox)).collect();
        let version = self.directory.version + 1;
        self.directory = Arc::new(self.roster.directory(version, inboxes));
    }

    /// Whether no engine uses an older directory than the newest.
    pub(crate) fn have_seen_directory(&self) -> bool {
        self.workers.iter().all(|worker| worker.seen >= self.directory.version)
    }

    /// Wakes engines that have not seen the newest directory.
    pub(crate) fn announce_directory(&self) {
        let late = |worker: &&Worker| worker.seen < self.directory.version;
        self.workers.iter().filter(late).for_each(|worker| worker.inbox.announce_command());
    }

    pub(crate) fn allocate_port(&mut self, owner: Option<Owner>) -> Option<PortId> {
        let port = (0..PORTS_MAX).map(PortId).find(|port| !self.ports.contains_key(port))?;
        self.ports.insert(port, owner);
        Some(port)
    }

    /// Whose port it is.
    pub(crate) fn owner(&self, port: PortId) -> Option<Owner> {
        self.ports.get(&port).copied().flatten()
    }

    /// Whose queue is to be in this place.
    pub(crate) fn owner_at(&self, engine: usize, slot: SlotId) -> Option<Owner> {
        let is_there =
            |placed: &&Placed| (placed.address.engine, placed.address.slot) == (engine, slot);
        self.owner(self.roster.queues().iter().find(is_there)?.port)
    }

    /// Gives a port's number back, with the addresses that were learned there and what engines said
    /// of it: the number may be another vif's from now on.
    pub(crate) fn free_port(&mut self, port: PortId) {
        self.switch.leave(port);
        self.failures.retain(|failure| failure.port_id != port);
        self.ports.remove(&port);
    }

    /// Whether frames to an address are not flooded.
    pub(crate) fn knows(&self, mac: MacAddr) -> bool {
        self.switch.fdb().lookup(mac, Ticks::default()).is_some()
    }

    /// Frames that were dropped and counted, in all queues of honest guests.
    pub(crate) fn dropped(&self) -> u64 {
        DropReason::ALL.iter().map(|reason| self.dropped_for(*reason)).sum()
    }

    /// The same for one reason.
    pub(crate) fn dropped_for(&self, reason: DropReason) -> u64 {
        let all = self.counters.iter().flat_map(|counters| counters.dropped.snapshot());
        all.filter(|(other, _)| *other == reason).map(|(_, count)| count).sum()
    }
}
