//! What all vifs of a host share: the switch, its ports, and what was configured for all.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{LockingMode, OffloadCaps, VlanRules};
use ringway_engine::steps::{self, Engines};
use ringway_netback::PageBudget;
use ringway_switch::fdb::Assigned;
use ringway_switch::{
    FloodBudget, FloodLimit, PortId, PortPolicy, Role, StormLimits, Switch, SwitchConfig, Ticks,
    TooManyVlans,
};
use ringway_xenbus::Offer;

use crate::comparison::Comparison;
use crate::datapaths::Datapaths;
use crate::notes::Notes;
use crate::occupants::Occupants;
use crate::ovs_ports::OvsPorts;
use crate::quarantine::Quarantine;
use crate::restarts::Restarts;
use crate::staged;

/// What was configured for all vifs.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Queues that a guest may ask for, unless its vif has its own setting.
    pub max_queues: u16,
    /// Whether flows to a vif may leave a queue that cannot keep up for others.
    pub balances_flows: bool,
    /// Whether a queue may have one event channel per direction.
    pub split_event_channels: bool,
    /// Work that guests may leave to the host.
    pub offloads: OffloadCaps,
    /// How strictly addresses are checked, for vifs without their own setting; see
    /// [`PortRules::mode`](ringway_datapath::PortRules::mode).
    pub locking: Option<LockingMode>,
    /// Limits of the switch; its ticks are seconds.
    pub switch: SwitchConfig,
    /// The MTU of a vif on the switch that has none of its own, in bytes.
    pub mtu: u32,
}

/// What all vifs share.
pub struct Shared {
    /// What was configured.
    pub config: HostConfig,
    /// The switch.
    pub switch: Arc<Switch>,
    /// The vifs by port.
    pub occupants: Occupants,
    /// The vifs that must not have a port.
    pub quarantine: Quarantine,
    /// When to compare network devices with what the kernel has.
    pub comparison: Comparison,
    /// The ports of vifs on bridges of Open vSwitch.
    pub ovs: OvsPorts,
    /// The datapaths of these bridges.
    pub datapaths: Datapaths,
    pub(crate) restarts: Restarts,
    /// Room for pages of guests that stay mapped.
    pub(crate) staging: Arc<PageBudget>,
    ports: Ports,
    /// Reports of engines that have not been handled yet.
    reports: VecDeque<QueueDown>,
    /// The zero of switch time.
    started: Instant,
}

/// A queue that its engine gave up. The queue itself is gone, and with it what it has mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDown {
    /// Its port.
    pub port: PortId,
    /// Its number.
    pub queue: u16,
    /// Why.
    pub reason: String,
}

/// The numbers of the switch's ports.
#[derive(Debug, Default)]
struct Ports {
    free: Vec<PortId>,
    next: u16,
}

impl Ports {
    fn allocate(&mut self, ports_max: u16) -> io::Result<PortId> {
        if let Some(port) = self.free.pop() {
            return Ok(port);
        }
        if self.next >= ports_max {
            return Err(io::Error::other(format!("the switch is full: it has {ports_max} ports")));
        }
        self.next += 1;
        Ok(PortId(self.next - 1))
    }
}

/// What applies to every vif, as far as it has nothing of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// What it may flood.
    pub flood: FloodLimit,
    /// What it may flood of each kind.
    pub storm: StormLimits,
    /// How strictly its addresses are checked.
    pub locking: Option<LockingMode>,
    /// Ethernet addresses that it may have.
    pub addresses_max: u32,
    /// Queues that its guest may ask for, if it is a vif of Xen.
    pub queues_max: u16,
}

impl Shared {
    /// A host without vifs.
    pub fn new(config: HostConfig, notes: &mut impl Notes, now: Instant) -> Shared {
        Shared {
            switch: Arc::new(Switch::new(config.switch)),
            config,
            occupants: Occupants::default(),
            quarantine: Quarantine::read(notes),
            comparison: Comparison::new(now),
            ovs: OvsPorts::default(),
            datapaths: Datapaths::default(),
            restarts: Restarts::read(notes),
            staging: Arc::new(PageBudget::new(staged::PAGES_MAX)),
            ports: Ports::default(),
            reports: VecDeque::new(),
            started: now,
        }
    }

    /// Switch time, in seconds.
    pub fn ticks(&self, now: Instant) -> Ticks {
        let seconds = now.saturating_duration_since(self.started).as_secs();
        Ticks(u32::try_from(seconds).unwrap_or(u32::MAX))
    }

    /// What applies to vifs that have nothing of their own.
    pub fn defaults(&self) -> Defaults {
        let SwitchConfig { flood, storm, addresses_per_port_max, .. } = self.config.switch;
        Defaults {
            flood,
            storm,
            locking: self.config.locking,
            addresses_max: addresses_per_port_max,
            queues_max: self.config.max_queues,
        }
    }

    /// A new budget for what a port without limits of its own may flood.
    pub(crate) fn flood_budget(&self, now: Instant) -> Arc<FloodBudget> {
        let Defaults { flood, storm, .. } = self.defaults();
        Arc::new(FloodBudget::new(flood, self.ticks(now)).with_storm(storm))
    }

    /// The number of a new port.
    ///
    /// # Errors
    /// There are as many ports as there may be.
    pub fn allocate_port(&mut self) -> io::Result<PortId> {
        self.ports.allocate(self.config.switch.ports_max)
    }

    /// How many ports are in use.
    pub fn ports_in_use(&self) -> usize {
        usize::from(self.ports.next) - self.ports.free.len()
    }

    /// Makes a port the way to all that is not on this host: any number of stations may be behind
    /// it. Returns what may enter by it.
    ///
    /// # Errors
    /// There are too many VLANs.
    pub(crate) fn join_uplink(
        &self,
        port: PortId,
        vlan: &VlanRules,
        now: Instant,
    ) -> Result<Arc<PortPolicy>, TooManyVlans> {
        let vlan = self.switch.join(port, vlan, Role::Uplink)?;
        let addresses_max = self.config.switch.fdb_entries_max;
        let assigned = Assigned { addresses_max, ..Assigned::default() };
        self.switch.assign(port, &assigned, self.ticks(now));
        Ok(Arc::new(PortPolicy::uplink().in_vlans(vlan)))
    }

    /// Takes back the queues of a port, if it has some, which unmaps and unbinds them. Another vif
    /// may use its number from now on.
    pub fn release_port(&mut self, port: PortId, engines: &mut impl Engines) {
        self.detach(port, engines);
        self.occupants.remove(port);
        self.switch.leave(port);
        self.ports.free.push(port);
    }

    /// Takes back the queues of a port, if it has some, and drops the reports about them: the port
    /// gets other queues.
    pub fn detach<E: Engines>(&mut self, port: PortId, engines: &mut E) {
        let is_attached = engines.roster().is_ok_and(|roster| roster.count(port) > 0);
        if is_attached {
            // If the engines are gone, so are the queues.
            let _: Result<(), E::Gone> = steps::detach(engines, port, E::release);
        }
        while let Some(down) = next_report(engines) {
            self.reports.push_back(down);
        }
        self.reports.retain(|down| down.port != port);
    }

    /// The next queue that an engine gave up.
    pub fn next_report(&mut self, engines: &mut impl Engines) -> Option<QueueDown> {
        self.reports.pop_front().or_else(|| next_report(engines))
    }

    /// The name of the vif at a port of the switch, or of another one.
    pub fn port_name(&self, port: PortId) -> String {
        let vif = self.occupants.at(port);
        vif.map_or_else(|| "the uplink".to_owned(), |vif| vif.to_string())
    }

    /// The offer to a vif, with as many queues as the toolstack wants, or otherwise the
    /// configuration.
    pub fn offer(&self, queues_wanted: Option<u16>) -> Offer {
        let queues_max = queues_wanted.unwrap_or(self.config.max_queues).max(1);
        let split_event_channels = self.config.split_event_channels;
        Offer { split_event_channels, ..Offer::all(queues_max, self.config.offloads.into()) }
    }
}

fn next_report(engines: &mut impl Engines) -> Option<QueueDown> {
    let failure = engines.next_failure()?;
    let (port, queue) = (failure.port_id, failure.queue_index);
    Some(QueueDown { port, queue, reason: failure.down.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbered_from_0_and_numbers_used_again() {
        let mut ports = Ports::default();
        let mut next = || ports.allocate(2).map_err(|error| error.to_string());
        assert_eq!([next(), next()], [Ok(PortId(0)), Ok(PortId(1))]);
        assert!(next().is_err_and(|full| full.contains("it has 2 ports")));
        ports.free.push(PortId(0));
        assert_eq!(ports.allocate(2).expect("one is free"), PortId(0));
    }
}
