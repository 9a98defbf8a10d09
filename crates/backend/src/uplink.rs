//! The uplink of a switch: to the host, through a TAP device in the backend's own network
//! namespace, or from a tenant's process to the switch process, through a trunk.

use std::io;
use std::sync::Arc;

use ringway_control::TrunkRules;
use ringway_datapath::{MulticastRouter, OffloadCaps, QueueCounters, Side, Vid, VlanRules};
use ringway_host::{
    Followed, HostDevice, HostLinks, Hosting, OtherPort, Tap, Uplink, UplinkRules, open_uplink,
    unlimited,
};
use ringway_host_shell::HostKernel;
use ringway_hypervisor::Hypervisor;
use ringway_switch::{FloodBudget, FloodLimit, PortId, PortPolicy, TooManyVlans};
use ringway_tap::VifOrTap;
use ringway_trunk::{End, PEER, TenantQueue};
use ringway_worker::Stations;

use crate::machinery::HostingOf;
use crate::vif_or_trunk::{TrunkQueue, VifOrTrunk};

/// The name of the trunk to the switch process in a tenant's process.
const TRUNK_NAME: &str = "trunk";

/// The uplink while it is attached.
pub(crate) struct UplinkPort {
    pub(crate) port: PortId,
    pub(crate) counters: Vec<Arc<QueueCounters>>,
    pub(crate) name: String,
    /// The device; a trunk has none.
    device: Option<HostDevice<HostKernel>>,
    flood: Arc<FloodBudget>,
    policy: Arc<PortPolicy>,
}

/// Makes the device of the uplink, if configured, and attaches it to the switch.
pub(crate) fn attach_uplink<H: Hypervisor>(
    uplink: Option<&Uplink>,
    hosting: &mut HostingOf<'_, H>,
) -> io::Result<Option<UplinkPort>> {
    let Hosting { shared, devices, notes, now, .. } = hosting;
    let (Some(uplink), Some(keeper)) = (uplink, devices.keeper()) else { return Ok(None) };
    let device = open_uplink(keeper, uplink, *notes)?;
    let port = shared.allocate_port()?;
    let rules = &uplink.rules;
    let policy = shared.join_uplink(port, &rules.vlan, *now).map_err(io::Error::other)?;
    shared.switch.set_multicast_router(port, rules.multicast_router);
    let counters = (0..uplink.queues).map(|_| Arc::default()).collect();
    // The uplink may flood, within the host's limits; a full guest drops its copy.
    let flood = FloodBudget::new(FloodLimit::NONE, shared.ticks(*now)).with_storm(rules.storm);
    let flood = Arc::new(flood);
    let name = device.tap.name().to_owned();
    let mut uplink = UplinkPort { port, counters, name, device: Some(device), flood, policy };
    uplink.attach_device(hosting)?;
    Ok(Some(uplink))
}

/// Attaches a trunk to the switch, by its tenant's end.
pub(crate) fn attach_trunk<H: Hypervisor>(
    trunk: End,
    carried: &TrunkRules,
    hosting: &mut HostingOf<'_, H>,
) -> io::Result<UplinkPort> {
    let Hosting { shared, now, .. } = hosting;
    let port = shared.allocate_port()?;
    // The other tenants and the uplink are behind it. To a private vif, the trunk is an uplink: the
    // switch process decides which ports such a vif reaches beyond it.
    let policy = shared.join_uplink(port, &vlans_of(carried), *now).map_err(io::Error::other)?;
    // All routers are behind the trunk, and the groups of other tenants are not known here.
    shared.switch.set_multicast_router(port, MulticastRouter::Always);
    let (mut queues, mut counters) = (Vec::new(), Vec::new());
    for TenantQueue { grants, events } in trunk.into_tenant_queues()? {
        let own = Arc::new(QueueCounters::default());
        let mut queue = TrunkQueue::new(grants, PEER, events, Arc::clone(&own))?;
        queue.set_caps(OffloadCaps::ALL);
        counters.push(Arc::clone(&own));
        queues.push((VifOrTap::Vif(VifOrTrunk::Trunk(Box::new(queue))), own));
    }
    // The switch process limits the floods of other tenants at their ingress.
    let flood = unlimited();
    hosting.attach(port, &policy, (&flood, Stations::Many), queues)?;
    let name = TRUNK_NAME.to_owned();
    Ok(UplinkPort { port, counters, name, device: None, flood, policy })
}

/// Changes what the tenant's end of a trunk carries.
pub(crate) fn set_carried<H: Hypervisor>(
    port: PortId,
    carried: &TrunkRules,
    hosting: &mut HostingOf<'_, H>,
) {
    match hosting.shared.join_uplink(port, &vlans_of(carried), hosting.now) {
        Ok(policy) => hosting.set_policy(port, &policy),
        Err(error) => tracing::warn!("{error}: the trunk is unchanged"),
    }
}

impl UplinkPort {
    /// Attaches the queues of the device.
    fn attach_device<H: Hypervisor>(&mut self, hosting: &mut HostingOf<'_, H>) -> io::Result<()> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let queues = device.tap.queues(Side::Guest, &self.counters);
        let queues = queues.into_iter().map(VifOrTap::Tap).zip(self.counters.iter().cloned());
        hosting.attach(self.port, &self.policy, (&self.flood, Stations::Many), queues)?;
        device.is_detached = false;
        Ok(())
    }

    /// Changes what goes through it.
    ///
    /// # Errors
    /// There are too many VLANs; nothing has changed then.
    pub(crate) fn set_rules<H: Hypervisor>(
        &mut self,
        rules: &UplinkRules,
        hosting: &mut HostingOf<'_, H>,
    ) -> Result<(), TooManyVlans> {
        self.policy = hosting.shared.join_uplink(self.port, &rules.vlan, hosting.now)?;
        hosting.shared.switch.set_multicast_router(self.port, rules.multicast_router);
        hosting.set_policy(self.port, &self.policy);
        self.flood.set_storm(rules.storm);
        Ok(())
    }

    /// Follows what has become of the device.
    pub(crate) fn follow_device<H: Hypervisor>(
        &mut self,
        links: Option<&HostLinks<HostKernel>>,
        hosting: &mut HostingOf<'_, H>,
    ) -> Followed {
        let (Some(device), Some(links), Some(keeper)) =
            (&mut self.device, links, hosting.devices.keeper())
        else {
            return Followed::Done;
        };
        let mut done = device.follow(links, keeper, hosting.notes);
        if device.is_detached && !device.tap.is_deleted() {
            hosting.shared.detach(self.port, hosting.engines);
            done = self.attach_device(hosting).and(done);
        }
        self.device.as_mut().map_or(Followed::Done, |device| device.show(done))
    }

    /// Whether it is a device of this process, and no trunk.
    pub(crate) fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Whether its device was deleted.
    pub(crate) fn has_lost_device(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.tap.is_deleted())
    }

    /// What users are shown of it.
    pub(crate) fn describe(&self) -> OtherPort<'_> {
        let fault = self.device.as_ref().and_then(|device| device.fault.clone());
        OtherPort { port: self.port, name: &self.name, counters: &self.counters, fault }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trunk_carries_each_valid_vlan_with_its_tag() {
        let carried = TrunkRules { vlans: vec![5, 0, 4095, 7], is_private: false };
        let VlanRules { untagged, tagged } = vlans_of(&carried);
        assert_eq!(untagged, None);
        assert_eq!(tagged.into_iter().map(Vid::get).collect::<Vec<_>>(), [5, 7]);
    }
}
