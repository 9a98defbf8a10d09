//! The uplink of a switch: to the host, through a TAP device in the backend's own network
//! namespace, or from a tenant's process to the switch process, through a trunk.

use std::io;
use std::sync::Arc;

use ringway_control::TrunkRules;
use ringway_datapath::{MulticastRouter, OffloadCaps, QueueCounters, Vid, VlanRules};
use ringway_host::unlimited;
use ringway_hypervisor::Hypervisor;
use ringway_switch::fdb::Assigned;
use ringway_switch::{FloodBudget, FloodLimit, PortId, PortPolicy, Role, TooManyVlans};
use ringway_tap::{Side, VifOrTap};
use ringway_trunk::{End, PEER, TenantQueue};
use ringway_worker::{Attachment, Forwarding, Limits, Stations};

use crate::device::{Followed, HostDevice, HostLinks, open_uplink};
use crate::keeper::Keeper;
use crate::services::Hosting;
use crate::vif_or_trunk::{TrunkQueue, VifOrTrunk};

/// The name of the trunk to the switch process in a tenant's process.
const TRUNK_NAME: &str = "trunk";

/// The uplink while it is attached.
pub(crate) struct UplinkPort {
    pub(crate) port: PortId,
    pub(crate) counters: Vec<Arc<QueueCounters>>,
    pub(crate) name: String,
    /// The device; a trunk has none.
    device: Option<HostDevice>,
    flood: Arc<FloodBudget>,
    policy: Arc<PortPolicy>,
}

impl<H: Hypervisor> Hosting<H> {
    /// Makes the device of the uplink, if configured, and attaches it to the switch.
    pub(crate) fn attach_uplink(&mut self) -> io::Result<Option<UplinkPort>> {
        let (Some(uplink), Some(keeper)) = (self.config.uplink.clone(), self.devices.keeper())
        else {
            return Ok(None);
        };
        let device = open_uplink(&mut keeper.net, &mut keeper.notes, &uplink)?;
        let port = self.allocate_port()?;
        let vlan = self.switch.join(port, &uplink.vlan, Role::Uplink).map_err(io::Error::other)?;
        self.switch.set_multicast_router(port, uplink.multicast_router);
        // Any number of stations may be behind it.
        let addresses_max = self.config.switch.fdb_entries_max;
        let assigned = Assigned { addresses_max, ..Assigned::default() };
        self.switch.assign(port, &assigned, self.ticks());
        let policy = Arc::new(PortPolicy::uplink().in_vlans(vlan));
        let counters = (0..uplink.queues).map(|_| Arc::default()).collect();
        // The uplink may flood, within the host's limits; a full guest drops its copy.
        let flood = FloodBudget::new(FloodLimit::NONE, self.ticks()).with_storm(uplink.storm);
        let flood = Arc::new(flood);
        let name = device.tap.name().to_owned();
        let mut uplink = UplinkPort { port, counters, name, device: Some(device), flood, policy };
        uplink.attach_device(self)?;
        Ok(Some(uplink))
    }

    /// Attaches a trunk to the switch, by its tenant's end.
    pub(crate) fn attach_trunk(
        &mut self,
        trunk: End,
        carried: &TrunkRules,
    ) -> io::Result<UplinkPort> {
        let port = self.allocate_port()?;
        let policy = self.trunk_policy(port, carried).map_err(io::Error::other)?;
        // All routers are behind the trunk, and the groups of other tenants are not known here.
        self.switch.set_multicast_router(port, MulticastRouter::Always);
        let mut all_counters = Vec::new();
        let mut attachments = Vec::new();
        // The switch process limits the floods of other tenants at their ingress.
        let flood = unlimited();
        for TenantQueue { grants, events } in trunk.into_tenant_queues()? {
            let counters = Arc::new(QueueCounters::default());
            let mut queue = TrunkQueue::new(grants, PEER, events, Arc::clone(&counters))?;
            queue.set_caps(OffloadCaps::ALL);
            all_counters.push(Arc::clone(&counters));
            attachments.push(Attachment {
                queue: VifOrTap::Vif(VifOrTrunk::Trunk(Box::new(queue))),
                counters,
                flood: Arc::clone(&flood),
                stations: Stations::Many,
            });
        }
        let forwarding = Forwarding::Switch(Arc::clone(&self.switch));
        let limits = Limits::default();
        self.workers.attach_limited(port, &forwarding, &policy, &limits, attachments)?;
        let (name, counters) = (TRUNK_NAME.to_owned(), all_counters);
        Ok(UplinkPort { port, counters, name, device: None, flood, policy })
    }

    /// Changes what the tenant's end of a trunk carries.
    pub(crate) fn set_carried(&self, port: PortId, carried: &TrunkRules) {
        match self.trunk_policy(port, carried) {
            Ok(policy) => self.workers.set_policy(port, &policy),
            Err(error) => tracing::warn!("{error}: the trunk is unchanged"),
        }
    }

    /// Puts the tenant's end of a trunk into the VLANs that it carries. To a private vif, the trunk
    /// is an uplink: the switch process decides which ports such a vif reaches beyond it.
    fn trunk_policy(
        &self,
        port: PortId,
        carried: &TrunkRules,
    ) -> Result<Arc<PortPolicy>, TooManyVlans> {
        let vlan = self.switch.join(port, &vlans_of(carried), Role::Uplink)?;
        // The other tenants and the uplink are behind it.
        let addresses_max = self.config.switch.fdb_entries_max;
        let assigned = Assigned { addresses_max, ..Assigned::default() };
        self.switch.assign(port, &assigned, self.ticks());
        Ok(Arc::new(PortPolicy::uplink().in_vlans(vlan)))
    }
}

impl UplinkPort {
    /// Attaches the queues of the device.
    fn attach_device<H: Hypervisor>(&mut self, host: &mut Hosting<H>) -> io::Result<()> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let queues = device.tap.queues(Side::Guest, |queue| Arc::clone(&self.counters[queue]));
        let attachments = queues.into_iter().zip(&self.counters);
        let attachments = attachments.map(|(queue, counters)| Attachment {
            queue: VifOrTap::Tap(queue),
            counters: Arc::clone(counters),
            flood: Arc::clone(&self.flood),
            stations: Stations::Many,
        });
        let (attachments, limits) = (attachments.collect(), Limits::default());
        let forwarding = Forwarding::Switch(Arc::clone(&host.switch));
        let port = self.port;
        host.workers.attach_limited(port, &forwarding, &self.policy, &limits, attachments)?;
        device.is_detached = false;
        Ok(())
    }

    /// Follows what has become of the device.
    pub(crate) fn follow_device<H: Hypervisor>(
        &mut self,
        now: Option<&HostLinks>,
        host: &mut Hosting<H>,
    ) -> Followed {
        let (Some(device), Some(now), Some(Keeper { net, notes })) =
            (&mut self.device, now, host.devices.keeper())
        else {
            return Followed::Done;
        };
        let mut done = device.follow(now, net, notes);
        if device.is_detached && !device.tap.is_deleted() {
            host.workers.detach(self.port);
            host.drop_reports(self.port);
            done = self.attach_device(host).and(done);
        }
        self.device.as_mut().map_or(Followed::Done, |device| device.show(done))
    }

    /// Whether it is a device of this process, and no trunk.
    pub(crate) fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Whether the queues of a port are those of an uplink that was deleted.
    pub(crate) fn has_lost_device(&self, port: PortId) -> bool {
        self.port == port && self.device.as_ref().is_some_and(|device| device.tap.is_deleted())
    }

    /// Why it does not work as it should, if so.
    pub(crate) fn fault(&self) -> Option<String> {
        self.device.as_ref().and_then(|device| device.fault.clone())
    }

    /// The error of a process that cannot serve its uplink any more.
    pub(crate) fn failure(&self, reason: &str) -> io::Error {
        io::Error::other(format!("the uplink {} failed: {reason}", self.name))
    }
}

/// The VLANs of a trunk's port, at either end.
pub(crate) fn vlans_of(carried: &TrunkRules) -> VlanRules {
    let tagged = carried.vlans.iter().filter_map(|number| Vid::new(*number)).collect();
    VlanRules { untagged: None, tagged }
}
