//! The uplink of a tenant's process: the trunk to the switch process.

use std::io;
use std::sync::Arc;

use ringway_control::TrunkRules;
use ringway_datapath::{OffloadCaps, QueueCounters, Vid, VlanRules};
use ringway_host::{UplinkPort, UplinkRules};
use ringway_hypervisor::Hypervisor;
use ringway_tap::VifOrTap;
use ringway_trunk::{End, PEER, TenantQueue};

use crate::machinery::{HostingOf, Machinery};
use crate::vif_or_trunk::{TrunkQueue, VifOrTrunk};

/// What users are shown as its name.
const NAME: &str = "trunk";

/// Attaches a trunk to the switch, by its tenant's end.
pub(crate) fn attach_trunk<H: Hypervisor>(
    trunk: End,
    carried: &TrunkRules,
    hosting: &mut HostingOf<'_, H>,
) -> io::Result<UplinkPort<Machinery<H>>> {
    let mut queues = Vec::new();
    for TenantQueue { grants, events } in trunk.into_tenant_queues()? {
        let counters = Arc::new(QueueCounters::default());
        let mut queue = TrunkQueue::new(grants, PEER, events, Arc::clone(&counters))?;
        queue.set_caps(OffloadCaps::ALL);
        queues.push((VifOrTap::Vif(VifOrTrunk::Trunk(Box::new(queue))), counters));
    }
    UplinkPort::attach(NAME, &rules_of(carried), queues, hosting)
}

/// What goes through a trunk at its tenant's end. The other tenants, the uplink and all routers are
/// behind it. The switch process limits the floods of other tenants at their ingress, and decides
/// which ports a private vif reaches beyond it.
pub(crate) fn rules_of(carried: &TrunkRules) -> UplinkRules {
    UplinkRules::without_limits(vlans_of(carried))
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
