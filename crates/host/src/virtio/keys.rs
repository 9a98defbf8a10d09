//! The keys of a `[[vhost]]` or a `[[namespace]]`: what differs between two descriptions of a vif,
//! and what of that can be applied while the vif is served.

use ringway_xenbus::LIMITS;

use super::VirtioWanted;
use crate::changes::VifChanges;
use crate::rules::Rules;

/// When another value of a key applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// At once, while the vif is served.
    Live,
    /// When the vif is made again: its front-end relies on the present value, or a device has it.
    Later,
}

/// A key of these sections, apart from its name and its limits, all of which are [`Change::Live`].
#[derive(Debug)]
pub struct Key {
    /// As in a description.
    pub name: &'static str,
    /// When another value applies.
    pub change: Change,
    /// Its value, to be compared only.
    value: fn(&VirtioWanted) -> String,
}

/// Every one of them. A key that is not in this list is not compared.
pub const KEYS: &[Key] = &[
    later("socket", |it| it.other("socket")),
    later("mode", |it| it.other("mode")),
    later("netns", |it| it.other("netns")),
    later("device", |it| it.other("device")),
    later("addresses", |it| it.other("addresses")),
    later("features", |it| format!("{:?} {}", it.features, it.protocol)),
    later("max-memory", |it| it.other("max-memory")),
    later("mac", |it| format!("{:?}", it.mac)),
    later("tenant", |it| it.other("tenant")),
    later("mtu", |it| format!("{:?}", it.limits.mtu)),
    later("queues", |it| it.queues.to_string()),
    later("bind", |it| format!("{:?}", it.bind)),
    later(BRIDGE, |it| format!("{:?}", it.bridge)),
    later("sg", |it| it.offloads.scatter_gather.to_string()),
    later("csum", |it| it.offloads.checksum_v4.to_string()),
    later("gso", |it| it.offloads.gso_v4.to_string()),
    live(IDS[0], |it| format!("{:?}", it.iface_id)),
    live(IDS[1], |it| format!("{:?}", it.vm_uuid)),
    live("locking-mode", |it| format!("{:?}", it.rules.locking)),
    live("allowed-ips", |it| format!("{:?}", it.rules.allowed)),
    live("addresses-per-vif", |it| format!("{:?}", it.rules.addresses_max)),
    live("allowed-macs", |it| format!("{:?}", it.rules.allowed_macs)),
    live("shared-macs", |it| format!("{:?}", it.rules.shared_macs)),
    live("router", |it| it.rules.is_router.to_string()),
    live("dhcp-server", |it| it.rules.is_dhcp_server.to_string()),
    live("announce", |it| it.rules.is_unannounced.to_string()),
    live("vlan", |it| format!("{:?}", it.rules.vlan.untagged)),
    live("trunk", |it| format!("{:?}", it.rules.vlan.tagged)),
    live("private", |it| it.rules.is_private.to_string()),
    live("multicast-router", |it| format!("{:?}", it.rules.multicast_router)),
    live("link-local-to", |it| format!("{:?}", it.rules.link_local_to)),
    live("mirror", |it| format!("{:?}", it.rules.mirror)),
];

const BRIDGE: &str = "bridge";
/// Ids of a port of Open vSwitch.
const IDS: [&str; 2] = ["iface-id", "vm-uuid"];

/// Whether a key is an id of a port of Open vSwitch.
pub(crate) fn is_id(key: &str) -> bool {
    IDS.contains(&key)
}

const fn live(name: &'static str, value: fn(&VirtioWanted) -> String) -> Key {
    Key { name, change: Change::Live, value }
}

const fn later(name: &'static str, value: fn(&VirtioWanted) -> String) -> Key {
    Key { name, change: Change::Later, value }
}

/// What differs between two descriptions of a vif. Rules are for one network: with another bridge
/// nothing applies before the vif is made again.
pub(crate) fn differences(before: &VirtioWanted, now: &VirtioWanted) -> VifChanges {
    let mut changes = VifChanges { vif: now.name.clone(), ..VifChanges::default() };
    for key in KEYS.iter().filter(|key| (key.value)(before) != (key.value)(now)) {
        match key.change {
            Change::Live => changes.changed.push(key.name.to_owned()),
            Change::Later => changes.kept.push(key.name.to_owned()),
        }
    }
    let limits = |it: &VirtioWanted| it.limits.keys().collect::<Vec<_>>();
    let value = |all: &[(&'static str, String)], key| {
        all.iter().find(|(known, _)| *known == key).map(|(_, value)| value.clone())
    };
    let (before, now) = (limits(before), limits(now));
    let differs = LIMITS.iter().filter(|it| value(&before, it.key) != value(&now, it.key));
    changes.changed.extend(differs.map(|limit| limit.name().to_owned()));
    if changes.kept.iter().any(|key| key == BRIDGE) {
        changes.kept.append(&mut changes.changed);
    }
    changes
}

impl VirtioWanted {
    /// As it is in force once the vif is described like that. Its address and its bridge stay while
    /// it is served, and on another bridge than described its rules, too.
    pub(crate) fn described_as(&self, described: &VirtioWanted) -> VirtioWanted {
        let rules = if self.bridge == described.bridge { &described.rules } else { &self.rules };
        let (bridge, rules) = (self.bridge.clone(), rules.clone());
        VirtioWanted { mac: self.mac, bridge, rules, ..described.clone() }
    }

    fn other(&self, key: &str) -> String {
        let found = self.others.iter().find(|(known, _)| *known == key);
        found.map_or_else(String::new, |(_, value)| value.clone())
    }

    /// Its rules, to be compared with those of others.
    pub(crate) fn own_rules(&self) -> Rules {
        Rules { wanted: self.rules.clone(), mac: self.mac, ..Rules::default() }
    }
}
