//! The switch and its uplink.

use ringway_datapath::MulticastRouter;
use ringway_xenbus::{FloodWish, VifLimits};

use crate::limits::Limited;
use crate::quantity::Quantity;
use crate::section::{SwitchSection, UplinkSection};
use crate::value::{InterfaceName, Within};
use crate::{FLOOD_MBIT, FLOOD_RATE, GROUPS, GROUPS_PER_VIF, Multicast, Switch, Uplink};

pub(super) fn uplink(section: Limited<UplinkSection>) -> Uplink {
    let (section, limits) = section.into_parts();
    Uplink {
        name: InterfaceName(uplink_name(&section)),
        mac: section.mac,
        addresses: section.addresses,
        queues: section.queues.and_then(Within::get).unwrap_or(1),
        mtu: section.mtu.and_then(Within::get).unwrap_or(1500),
        vlan: section.vlan.and_then(Within::get),
        trunk: section.trunk.into_iter().filter_map(Within::get).collect(),
        multicast_router: section.multicast_router.map_or(MulticastRouter::Always, |it| it.0),
        limits,
    }
}

pub(super) fn uplink_name(section: &UplinkSection) -> String {
    section.name.as_ref().map_or_else(|| "ringway0".to_owned(), |name| name.get_ref().0.clone())
}

/// A switch with this many ports.
pub(super) fn switch(section: Limited<SwitchSection>, ports: u16) -> Switch {
    let (section, limits) = section.into_parts();
    let flood = FloodWish {
        rate: limits.flood.rate.or(Some(FLOOD_RATE)),
        mbit: limits.flood.mbit.or(Some(FLOOD_MBIT)),
    };
    let groups_per_vif = section.multicast_groups_per_vif.and_then(Within::get);
    Switch {
        fdb_entries: section.fdb_entries.and_then(Within::get).unwrap_or(4096),
        addresses_per_vif: section.addresses_per_vif.and_then(Within::get).unwrap_or(1),
        locking_mode: section.locking_mode,
        ageing_seconds: section.ageing_seconds.and_then(Quantity::get).unwrap_or(300),
        limits: VifLimits { flood, ..limits },
        multicast: Multicast {
            is_snooped: section.multicast_snooping,
            groups: section.multicast_groups.and_then(Within::get).unwrap_or(GROUPS),
            groups_per_vif: groups_per_vif.unwrap_or(GROUPS_PER_VIF),
            unregistered: section.unregistered_multicast,
        },
        ports,
    }
}
