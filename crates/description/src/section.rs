//! The sections of a description, as written in the file.

use std::net::IpAddr;
use std::path::PathBuf;

use ringway_ovs::Bind;
use ringway_switch::Unregistered;
use ringway_worker::Policy;
use ringway_xenbus::limits::Scope;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use crate::limits::{Limited, Section};
use crate::quantity::{Mebibytes, Microseconds, Quantity, Seconds};
use crate::value::{
    Cidr, FeatureText, FlowKeyText, GroupText, GuestName, InterfaceName, Mac, MemorySize,
    MirroredText, Network, SocketMode, SocketPath, TenantName, VhostName, Within, text,
};
use crate::{
    BridgeName, HostNetwork, IfaceId, Locking, NetnsName, OnExit, QUEUES_MAX, Routing, VmUuid,
};

/// Buffers of a tx ring: a page for each of its slots.
const RING_PAGES: u64 = 256;

type Queues = Within<1, QUEUES_MAX>;
type Addresses = Within<1, 1_048_576>;
type VlanNumber = Within<1, 4094>;
type Mtu = Within<68, 65521>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileSection {
    #[serde(default)]
    pub(crate) host: HostSection,
    pub(crate) uplink: Option<Spanned<Limited<UplinkSection>>>,
    #[serde(default)]
    pub(crate) switch: Limited<SwitchSection>,
    #[serde(default)]
    pub(crate) bridge: Vec<Spanned<BridgeSection>>,
    #[serde(default)]
    pub(crate) guest: Vec<Spanned<GuestSection>>,
    #[serde(default)]
    pub(crate) vhost: Vec<Spanned<Limited<VifSection>>>,
    #[serde(default)]
    pub(crate) namespace: Vec<Spanned<Limited<VifSection>>>,
}

impl FileSection {
    /// The vifs that no toolstack makes, each with the name of its section.
    pub(crate) fn vhosts(&self) -> impl Iterator<Item = (&'static str, &VifSection)> {
        let vhosts = self.vhost.iter().map(|section| ("vhost", section));
        let namespaces = self.namespace.iter().map(|section| ("namespace", section));
        vhosts.chain(namespaces).map(|(of, section)| (of, &**section.get_ref()))
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct HostSection {
    pub(crate) dir: Option<PathBuf>,
    #[serde(default)]
    pub(crate) network: HostNetwork,
    pub(crate) isolate: Option<Spanned<bool>>,
    #[serde(default)]
    pub(crate) without_landlock: bool,
    pub(crate) workers: Option<Within<1, 1024>>,
    #[serde(default, with = "text")]
    pub(crate) policy: Policy,
    #[serde(default)]
    pub(crate) cpus: Vec<Within<0, 1023>>,
    pub(crate) poll_us: Option<Quantity<Microseconds, 0, 1_000_000>>,
    pub(crate) max_queues: Option<Queues>,
    #[serde(default)]
    pub(crate) balance_flows: bool,
    pub(crate) flow_key: Option<FlowKeyText>,
    /// Of an earlier version, without effect.
    pub(crate) completion: Option<Spanned<IgnoredAny>>,
    pub(crate) split_event_channels: Option<bool>,
    pub(crate) sg: Option<bool>,
    pub(crate) csum: Option<bool>,
    pub(crate) gso: Option<bool>,
    pub(crate) frame_memory_mib: Option<Quantity<Mebibytes, 4, 65536>>,
    pub(crate) socket_group: Option<GroupText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct UplinkSection {
    pub(crate) name: Option<Spanned<InterfaceName>>,
    pub(crate) mac: Option<Mac>,
    #[serde(default)]
    pub(crate) addresses: Vec<Cidr>,
    pub(crate) queues: Option<Queues>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) vlan: Option<VlanNumber>,
    #[serde(default)]
    pub(crate) trunk: Vec<VlanNumber>,
    pub(crate) multicast_router: Option<Routing>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct SwitchSection {
    pub(crate) fdb_entries: Option<Within<8, 1_048_576>>,
    pub(crate) addresses_per_vif: Option<Addresses>,
    pub(crate) locking_mode: Option<Locking>,
    pub(crate) ageing_seconds: Option<Quantity<Seconds, 1, 1_000_000>>,
    #[serde(default)]
    pub(crate) multicast_snooping: bool,
    pub(crate) multicast_groups: Option<Within<8, 16384>>,
    pub(crate) multicast_groups_per_vif: Option<Within<1, 16384>>,
    #[serde(default, with = "text")]
    pub(crate) unregistered_multicast: Unregistered,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct BridgeSection {
    pub(crate) name: Option<Spanned<InterfaceName>>,
    #[serde(default)]
    pub(crate) addresses: Vec<Cidr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct GuestSection {
    pub(crate) name: Option<Spanned<GuestName>>,
    pub(crate) vm_uuid: Option<VmUuid>,
    pub(crate) memory_mib: Option<Quantity<Mebibytes, 1, 16384>>,
    #[serde(default)]
    pub(crate) on_exit: OnExit,
    #[serde(default)]
    pub(crate) vif: Vec<Spanned<Limited<VifSection>>>,
}

/// Keys of [`VifSection`] that `[[guest.vif]]` does not have, apart from the next.
pub(crate) const ONLY_OF_VHOST: [&str; 6] =
    ["name", "socket", "mode", "features", "max-memory", "vm-uuid"];
/// Those that only `[[namespace]]` has.
pub(crate) const ONLY_OF_NAMESPACE: [&str; 2] = ["netns", "device"];
/// Those that `[[vhost]]` does not have, apart from these.
pub(crate) const ONLY_OF_GUEST: [&str; 7] =
    ["addresses", "gateway", "max-queues", "completion", "max-unanswered", "staging", "gro"];

/// Those that `[[namespace]]` does not have.
pub(crate) const NOT_OF_NAMESPACE: [&str; 15] = [
    "socket",
    "mode",
    "features",
    "max-memory",
    "iface-id",
    "vm-uuid",
    "bind",
    "bridge",
    "gateway",
    "max-queues",
    "completion",
    "max-unanswered",
    "staging",
    "gro",
    "announce",
];

/// A vif of a guest, of a virtual machine behind a socket, or of a network namespace: they share
/// most keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct VifSection {
    pub(crate) name: Option<Spanned<VhostName>>,
    pub(crate) socket: Option<Spanned<SocketPath>>,
    pub(crate) mode: Option<Spanned<SocketMode>>,
    pub(crate) features: Option<Spanned<Vec<FeatureText>>>,
    pub(crate) max_memory: Option<Spanned<MemorySize>>,
    pub(crate) netns: Option<Spanned<NetnsName>>,
    pub(crate) device: Option<Spanned<InterfaceName>>,
    pub(crate) mac: Option<Spanned<Mac>>,
    pub(crate) tenant: Option<Spanned<TenantName>>,
    #[serde(default)]
    pub(crate) addresses: Vec<Spanned<Cidr>>,
    pub(crate) gateway: Option<Spanned<IpAddr>>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) queues: Option<Queues>,
    pub(crate) bridge: Option<Spanned<BridgeName>>,
    pub(crate) iface_id: Option<Spanned<IfaceId>>,
    pub(crate) vm_uuid: Option<Spanned<VmUuid>>,
    pub(crate) bind: Option<Spanned<Bind>>,
    pub(crate) max_queues: Option<Spanned<Queues>>,
    /// Of an earlier version, without effect.
    pub(crate) completion: Option<Spanned<IgnoredAny>>,
    pub(crate) max_unanswered: Option<Spanned<Within<1, RING_PAGES>>>,
    pub(crate) sg: Option<bool>,
    pub(crate) csum: Option<bool>,
    pub(crate) gso: Option<bool>,
    pub(crate) staging: Option<Spanned<bool>>,
    pub(crate) gro: Option<Spanned<bool>>,
    pub(crate) locking_mode: Option<Locking>,
    pub(crate) allowed_ips: Option<Spanned<Vec<Network>>>,
    pub(crate) addresses_per_vif: Option<Addresses>,
    #[serde(default)]
    pub(crate) allowed_macs: Vec<Spanned<Mac>>,
    #[serde(default)]
    pub(crate) shared_macs: Vec<Spanned<Mac>>,
    #[serde(default)]
    pub(crate) router: bool,
    #[serde(default)]
    pub(crate) dhcp_server: bool,
    pub(crate) announce: Option<Spanned<bool>>,
    pub(crate) vlan: Option<Spanned<VlanNumber>>,
    #[serde(default)]
    pub(crate) trunk: Vec<Spanned<VlanNumber>>,
    pub(crate) private: Option<Spanned<bool>>,
    pub(crate) multicast_router: Option<Spanned<Routing>>,
    pub(crate) link_local_to: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) mirror: Vec<Spanned<MirroredText>>,
}

impl VifSection {
    /// Where the section has this key, if it does: for keys that not all kinds of vifs have.
    pub(crate) fn place_of(&self, key: &str) -> Option<usize> {
        fn start<T>(value: Option<&Spanned<T>>) -> Option<usize> {
            value.map(|value| value.span().start)
        }
        match key {
            "name" => start(self.name.as_ref()),
            "socket" => start(self.socket.as_ref()),
            "mode" => start(self.mode.as_ref()),
            "features" => start(self.features.as_ref()),
            "max-memory" => start(self.max_memory.as_ref()),
            "netns" => start(self.netns.as_ref()),
            "device" => start(self.device.as_ref()),
            "addresses" => start(self.addresses.first()),
            "gateway" => start(self.gateway.as_ref()),
            "bridge" => start(self.bridge.as_ref()),
            "iface-id" => start(self.iface_id.as_ref()),
            "vm-uuid" => start(self.vm_uuid.as_ref()),
            "bind" => start(self.bind.as_ref()),
            "max-queues" => start(self.max_queues.as_ref()),
            "completion" => start(self.completion.as_ref()),
            "max-unanswered" => start(self.max_unanswered.as_ref()),
            "staging" => start(self.staging.as_ref()),
            "gro" => start(self.gro.as_ref()),
            "announce" => start(self.announce.as_ref()),
            _ => None,
        }
    }
}

impl Section for UplinkSection {
    const SCOPE: Scope = Scope::Uplink;
    const EXPECTED: &'static str = "struct UplinkSection";
}

impl Section for SwitchSection {
    const SCOPE: Scope = Scope::Switch;
    const EXPECTED: &'static str = "struct SwitchSection";
}

impl Section for VifSection {
    const SCOPE: Scope = Scope::Vif;
    const EXPECTED: &'static str = "struct VifSection";
}
