//! The description of one host: its guests, network namespaces, bridges, uplink and limits.
//!
//! [`parse`] reads it from TOML, with every default filled in, and refuses an invalid one with each
//! line at fault. The supervisor hands the result to its processes as JSON. Nothing here starts or
//! changes anything. Read [`Host`] first.

mod changes;
mod file;
mod isolation;
mod limits;
mod ovs;
mod place;
mod quantity;
mod read;
mod section;
mod value;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ringway_datapath::{LockingMode, MulticastRouter, OffloadCaps, PortRules, Vid, VlanRules};
use ringway_ovs::Bind;
use ringway_switch::{MulticastConfig, StormLimits, SwitchConfig, Unregistered};
use ringway_vhost::backend::{FEATURES, OPT_IN, PROTOCOL_FEATURES};
use ringway_wire::virtio::Features;
use ringway_worker::{Policy, Polling, WorkersConfig};
use ringway_xenbus::VifLimits;
use serde::{Deserialize, Serialize};

use limits::{per_second, storm};

pub use changes::differences;
pub use file::{COMPLETION_OBSOLETE, DescriptionError, Usage, parse, parse_vhost};
pub use ovs::{BridgeName, IfaceId, VmUuid};
pub use place::{NamespaceDevice, NetnsName, Place};
pub use read::{FILE_LEN_MAX, read, read_again};
pub use value::{
    Cidr, FeatureText, FlowKeyText, GroupText, GuestName, InterfaceName, Mac, MemorySize,
    MirroredText, Network, SocketMode, SocketPath, TenantName, VhostName,
};

/// Vifs of virtio and of network namespaces on one host: as many front-ends as can share their
/// memory with a process.
pub const VHOSTS_MAX: u16 = 128;
/// Queues that a guest may have, whatever the description says: each takes two pages of rings, two
/// event channels and 512 pages of buffers.
pub const QUEUES_MAX: u64 = 64;

/// Frames that a vif may flood in a second, unless the description says otherwise. A guest that
/// communicates with all of a large network resolves some ten addresses per second; storms begin
/// far above this.
pub const FLOOD_RATE: u32 = 1000;

/// Megabits that a vif may flood in a second, unless the description says otherwise: room for a
/// stream of video by multicast, and at most a hundredth of what a switch forwards.
pub const FLOOD_MBIT: u32 = 10;

/// Multicast groups that the switch records, unless the description says otherwise: enough for a
/// hundred guests with ten each.
pub const GROUPS: u16 = 1024;

/// Multicast groups of one vif that the switch records, unless the description says otherwise.
/// Linux joins at most 20 IPv4 groups per socket (`igmp_max_memberships`), and one group for each
/// IPv6 address.
pub const GROUPS_PER_VIF: u16 = 64;

/// The longest time that workers of an emulated host poll before they sleep, in microseconds.
const POLL_US: u64 = 200;

/// The most queues of a trunk, however many workers there are: each takes 2 MiB.
const TRUNK_QUEUES_MAX: usize = 8;

/// A host and its guests.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Host {
    /// The run directory, if the description names one.
    pub dir: Option<PathBuf>,
    /// Where bridges and the uplink are created.
    pub network: HostNetwork,
    /// Whether each tenant has a process of its own.
    pub is_isolated: bool,
    /// Whether it is served also where the kernel has no Landlock.
    #[serde(default)]
    pub without_landlock: bool,
    /// Whether that is so, and processes are confined less than elsewhere.
    #[serde(default)]
    pub lacks_landlock: bool,
    /// The backend's workers.
    pub workers: Workers,
    /// Queues that a guest may request, unless its vif has its own setting.
    pub max_queues: u16,
    /// Whether flows may leave a queue of a guest that cannot keep up.
    #[serde(default)]
    pub balances_flows: bool,
    /// The key by which the processes of this host choose a queue of a flow. With `None` each
    /// process draws one of its own.
    ///
    /// It is one of the host and not of each vif, so that a flow meets the same queue in both
    /// directions, and one worker serves it, also where one process of the host chooses the queue
    /// on the way out and another one on the way back. A sender outside of the host cannot guess
    /// either.
    #[serde(default)]
    pub flow_key: Option<FlowKeyText>,
    /// Whether a queue may have an event channel for each direction.
    pub split_event_channels: bool,
    /// Work that guests may leave to the backend.
    pub offloads: Offloads,
    /// The uplink from the switch to the host.
    pub uplink: Option<Uplink>,
    /// The switch.
    pub switch: Switch,
    /// The group that may connect to the sockets that we create for virtual machines; the one of
    /// our process, as its umask allows, if `None`.
    #[serde(default)]
    pub socket_group: Option<GroupText>,
    /// Linux bridges to create on the host.
    pub bridges: Vec<Bridge>,
    /// The guests.
    pub guests: Vec<Guest>,
    /// Vifs of virtual machines behind vhost-user sockets, and of network namespaces.
    #[serde(default)]
    pub vhosts: Vec<Vhost>,
    /// Why this is not the description in the file, but the last accepted one.
    #[serde(default)]
    pub refused: Option<String>,
    /// Where the description is read from again, if it can be.
    #[serde(default)]
    pub origin: Option<Origin>,
    /// Keys that have no effect any more: where, why and what to do, a sentence each.
    #[serde(skip)]
    pub obsolete: Vec<String>,
}

/// What a description was read from, and how it is used.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Origin {
    /// Its file.
    pub file: PathBuf,
    /// What options of the start say.
    pub usage: Usage,
}

/// The network namespace that represents the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostNetwork {
    /// The caller's. Needs root.
    #[default]
    Caller,
    /// A new one, which is deleted with the host.
    Private,
}

/// Threads of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Workers {
    /// How many; as many as there are CPUs if `None`.
    pub count: Option<usize>,
    /// How queues are placed on them.
    #[serde(with = "value::text")]
    pub policy: Policy,
    /// CPUs that they are pinned to, round robin.
    pub cpus: Vec<usize>,
    /// The longest time to poll before sleeping, in microseconds.
    pub poll_us: Option<u64>,
    /// Memory for frames in flight, in MiB.
    pub frame_memory_mib: usize,
}

/// Work that is left to the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloads {
    /// Frames in several slots.
    pub sg: bool,
    /// Checksums.
    pub csum: bool,
    /// TCP segmentation, which requires both of the others.
    pub gso: bool,
}

/// A TAP device of the host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Uplink {
    /// Its name.
    pub name: InterfaceName,
    /// Its Ethernet address, if the description has one.
    #[serde(default)]
    pub mac: Option<Mac>,
    /// The host's addresses on it.
    pub addresses: Vec<Cidr>,
    /// Its queues.
    pub queues: u16,
    /// Its MTU in bytes.
    pub mtu: u16,
    /// The VLAN of its untagged frames.
    pub vlan: Option<u16>,
    /// The VLANs of its tagged frames.
    pub trunk: Vec<u16>,
    /// Whether multicast routers are behind it.
    #[serde(with = "value::text")]
    pub multicast_router: MulticastRouter,
    /// Limits of each kind of flood that enters by it; 0, like an absent one, means no limit.
    #[serde(default, with = "limits")]
    pub limits: VifLimits,
}

impl Uplink {
    /// The VLANs that it is in.
    pub fn vlan_rules(&self) -> VlanRules {
        vlan_rules(self.vlan, &self.trunk)
    }

    /// The limits of each kind of flood, in the form that the switch uses.
    pub fn storm(&self) -> StormLimits {
        storm(&self.limits)
    }
}

fn vlan_rules(untagged: Option<u16>, tagged: &[u16]) -> VlanRules {
    VlanRules {
        untagged: untagged.and_then(Vid::new),
        tagged: tagged.iter().copied().filter_map(Vid::new).collect(),
    }
}

/// Limits of the switch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Switch {
    /// Addresses it can learn.
    pub fdb_entries: u32,
    /// Ethernet addresses that a vif may have, unless it has its own setting.
    pub addresses_per_vif: u32,
    /// How strictly a vif's addresses are checked, unless it has its own setting.
    pub locking_mode: Option<Locking>,
    /// Seconds after which an address is forgotten.
    pub ageing_seconds: u32,
    /// The floods that a vif may cause if it has no limit of its own, of all kinds and of each; 0,
    /// like an absent one, means no limit.
    #[serde(default, with = "limits")]
    pub limits: VifLimits,
    /// How multicast is forwarded.
    pub multicast: Multicast,
    /// Ports: vifs and the uplink.
    pub ports: u16,
}

/// How the switch snoops multicast.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Multicast {
    /// Whether it does.
    pub is_snooped: bool,
    /// Groups that it records.
    pub groups: u16,
    /// Groups of one vif; a vif with more gets all groups.
    pub groups_per_vif: u16,
    /// Where frames for groups without known members go.
    #[serde(with = "value::text")]
    pub unregistered: Unregistered,
}

/// A Linux bridge.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bridge {
    /// Its name.
    pub name: InterfaceName,
    /// The host's addresses on it.
    pub addresses: Vec<Cidr>,
}

/// A guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Guest {
    /// Its name.
    pub name: GuestName,
    /// Its id as a machine in a network behind Open vSwitch.
    #[serde(default)]
    pub vm_uuid: Option<VmUuid>,
    /// Its memory, which holds its rings and packet buffers.
    pub memory_mib: u64,
    /// What happens when it ends.
    pub on_exit: OnExit,
    /// Its interfaces; their handles count from 0.
    pub vifs: Vec<GuestVif>,
}

/// A vif that no toolstack makes: of a virtual machine behind a vhost-user socket, or of a network
/// namespace, which has the same keys but those of virtio.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Vhost {
    /// Its name.
    pub name: VhostName,
    /// Where its other end is.
    #[serde(flatten)]
    pub place: Place,
    /// Queues that its guest may have.
    pub queues: u16,
    /// The guest's address, if it is known.
    pub mac: Option<Mac>,
    /// Features to offer in addition to the default ones, or not to offer.
    pub features: Vec<FeatureText>,
    /// The most memory of its guest that the front-end may share, if not the default.
    #[serde(default)]
    pub max_memory: Option<MemorySize>,
    /// The id of its port on a bridge of Open vSwitch, if it has one of its own.
    #[serde(default)]
    pub iface_id: Option<IfaceId>,
    /// The id of its machine there.
    #[serde(default)]
    pub vm_uuid: Option<VmUuid>,
    /// When it has that port.
    #[serde(default)]
    pub bind: Bind,
    /// Settings that it shares with the vifs of other guests.
    pub vif: GuestVif,
}

impl Vhost {
    /// The tenant whose process serves it, if tenants have processes of their own: its own if it
    /// names none. `None` if its name is too long for that.
    pub fn tenant(&self) -> Option<TenantName> {
        self.vif.tenant.clone().or_else(|| TenantName::of_vhost(&self.name))
    }

    /// The virtio and protocol features that may be offered.
    pub fn features(&self) -> (Features, u64) {
        let usual = (FEATURES.without(OPT_IN), PROTOCOL_FEATURES);
        self.features.iter().fold(usual, |(features, protocol), it| match it.is_on {
            true => (features.or(it.features), protocol | it.protocol),
            false => (features.without(it.features), protocol & !it.protocol),
        })
    }
}

/// What happens when a guest's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExit {
    /// Its domain is destroyed.
    #[default]
    Destroy,
    /// It is destroyed and created again.
    Restart,
}

/// An interface of a guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GuestVif {
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its tenant, if tenants have their own processes and it shares one with vifs of other guests.
    pub tenant: Option<TenantName>,
    /// The guest's addresses on it.
    pub addresses: Vec<Cidr>,
    /// The gateway of the guest's default route.
    pub gateway: Option<IpAddr>,
    /// Its MTU in bytes, if the description has one.
    pub mtu: Option<u16>,
    /// Queues to request; if `None`, as many as are offered, at most one per CPU.
    pub queues: Option<u16>,
    /// The bridge that it is attached to instead of the switch.
    pub bridge: Option<BridgeName>,
    /// The id of its port on a bridge of Open vSwitch, if it has one of its own; of a virtio vif,
    /// [`Vhost::iface_id`].
    #[serde(default)]
    pub iface_id: Option<IfaceId>,
    /// When it has that port; of a virtio vif, [`Vhost::bind`].
    #[serde(default)]
    pub bind: Bind,
    /// Queues to offer to it, if not the default.
    pub max_queues: Option<u16>,
    /// Pages of frames that may wait for responses before the guest sends more; all pages of its
    /// ring if `None`.
    pub max_unanswered: Option<u16>,
    /// Work that the guest leaves to the backend.
    pub offloads: Offloads,
    /// Whether the guest has its backend keep its pages mapped.
    #[serde(default)]
    pub staging: bool,
    /// Whether the guest takes data of a TCP connection that arrived together as one frame.
    pub gro: bool,
    /// Its limits. Its MTU is not among them.
    #[serde(default, with = "limits")]
    pub limits: VifLimits,
    /// How strictly its addresses are checked, if not by default.
    pub locking_mode: Option<Locking>,
    /// IP addresses that the guest may have; any if the list is empty and it is not locked.
    pub allowed_ips: Vec<Network>,
    /// Ethernet addresses that it may have, if not the default.
    pub addresses_max: Option<u32>,
    /// Further Ethernet addresses of it.
    #[serde(default)]
    pub allowed_macs: Vec<Mac>,
    /// Ethernet addresses that it shares with other vifs.
    #[serde(default)]
    pub shared_macs: Vec<Mac>,
    /// Whether it may send router advertisements and redirects.
    pub is_router: bool,
    /// Whether it may reply to DHCP requests.
    pub is_dhcp_server: bool,
    /// Whether its guest is not announced when it arrives.
    #[serde(default)]
    pub is_unannounced: bool,
    /// The VLAN of its untagged frames.
    pub vlan: Option<u16>,
    /// The VLANs of its tagged frames.
    pub trunk: Vec<u16>,
    /// Whether it may reach the uplink only.
    pub is_private: bool,
    /// Whether a multicast router may be behind it.
    #[serde(with = "value::text")]
    pub multicast_router: MulticastRouter,
    /// The vif to which its frames go that no bridge forwards.
    #[serde(default)]
    pub link_local_to: Option<String>,
    /// Ports whose frames are copied to it; it then gets nothing else. Empty for an ordinary vif.
    pub mirror: Vec<MirroredText>,
}

impl GuestVif {
    /// What its guest may send.
    pub fn rules(&self) -> PortRules {
        PortRules {
            locking: self.locking_mode.map(|locking| locking.0),
            allowed: self.allowed_ips.iter().map(|network| network.0).collect(),
            addresses_max: self.addresses_max,
            allowed_macs: self.allowed_macs.iter().map(|mac| mac.0).collect(),
            shared_macs: self.shared_macs.iter().map(|mac| mac.0).collect(),
            is_router: self.is_router,
            is_dhcp_server: self.is_dhcp_server,
            is_unannounced: self.is_unannounced,
            vlan: vlan_rules(self.vlan, &self.trunk),
            is_private: self.is_private,
            multicast_router: self.multicast_router,
            link_local_to: self.link_local_to.clone(),
            mirror: self.mirror.iter().map(|it| it.0.clone()).collect(),
        }
    }

    /// What the vifs of one tenant must have in common: whether it is in a VLAN, and private.
    pub(crate) fn reach(&self) -> (bool, bool) {
        (self.vlan.is_some() || !self.trunk.is_empty(), self.is_private)
    }
}

/// An optional [`MulticastRouter`] in a description.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Routing(#[serde(with = "value::text")] pub MulticastRouter);

/// An optional [`LockingMode`] in a description.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Locking(#[serde(with = "value::text")] pub LockingMode);

impl Host {
    /// Two guests, `a` and `b`, and an uplink, in 10.77.0.0/24 and fd77::/64.
    ///
    /// # Errors
    /// If the usage does not suit them.
    pub fn example(usage: Usage) -> Result<Host, DescriptionError> {
        let text = include_str!("../../ringway/examples/two-guests.toml");
        file::parse("the built-in example", text, usage)
    }

    /// A host whose guests come from elsewhere.
    ///
    /// # Errors
    /// If the usage does not suit it.
    pub fn empty(usage: Usage) -> Result<Host, DescriptionError> {
        file::parse("the empty description", "", usage)
    }

    /// The backend's threads.
    ///
    /// # Errors
    /// If the CPUs cannot be counted.
    pub fn backend_workers(&self) -> std::io::Result<WorkersConfig> {
        self.workers.config("worker", self.flow_key)
    }

    /// What an administrator should know of this description, if there is something.
    pub fn notice(&self) -> Option<String> {
        let refused = self.refused.as_ref();
        let refused = refused.map(|it| format!("serving the last accepted description, not {it}"));
        let files = "without Landlock: files are not confined".to_owned();
        let notices: Vec<String> =
            refused.into_iter().chain(self.lacks_landlock.then_some(files)).collect();
        (!notices.is_empty()).then(|| notices.join("; "))
    }

    /// Queues of each trunk: one per worker, up to the maximum.
    ///
    /// # Errors
    /// If the CPUs cannot be counted.
    pub fn trunk_queues(&self) -> std::io::Result<u16> {
        let queues = self.backend_workers()?.workers.min(TRUNK_QUEUES_MAX);
        Ok(u16::try_from(queues).unwrap_or(u16::MAX))
    }

    /// A guest's threads: they share the CPUs with those of the backend, and are not pinned.
    ///
    /// # Errors
    /// If the CPUs cannot be counted.
    pub fn guest_workers(&self) -> std::io::Result<WorkersConfig> {
        let workers = Workers { count: None, cpus: Vec::new(), ..self.workers.clone() };
        workers.config("guest", self.flow_key)
    }
}

impl Switch {
    /// Its configuration; its ticks are seconds.
    pub fn config(&self, hash_seed: u64) -> SwitchConfig {
        SwitchConfig {
            fdb_entries_max: self.fdb_entries,
            ports_max: self.ports,
            addresses_per_port_max: self.addresses_per_vif,
            ageing_ticks: self.ageing_seconds,
            flood: per_second(self.limits.flood),
            storm: storm(&self.limits),
            multicast: self.multicast.config(),
            hash_seed,
        }
    }

    /// How strictly the addresses of vifs without their own setting are checked.
    pub fn locking(&self) -> Option<LockingMode> {
        self.locking_mode.map(|locking| locking.0)
    }
}

impl Multicast {
    fn config(&self) -> Option<MulticastConfig> {
        self.is_snooped.then_some(MulticastConfig {
            groups_max: self.groups,
            groups_per_port_max: self.groups_per_vif,
            unregistered: self.unregistered,
            ticks_per_second: 1,
        })
    }
}

impl Workers {
    fn config(&self, name: &str, key: Option<FlowKeyText>) -> std::io::Result<WorkersConfig> {
        let count = match self.count {
            Some(count) => count,
            None => ringway_sys::process::allowed_cpus()?.len(),
        };
        Ok(WorkersConfig {
            workers: count.max(1),
            policy: self.policy,
            cpus: self.cpus.clone(),
            polling: Polling { max: Duration::from_micros(self.poll_us.unwrap_or(POLL_US)) },
            frame_memory: self.frame_memory_mib.saturating_mul(1 << 20),
            flow_key: key.unwrap_or_else(FlowKeyText::random).0,
            name: name.to_owned(),
        })
    }
}

impl Offloads {
    /// Everything.
    pub const ALL: Offloads = Offloads { sg: true, csum: true, gso: true };

    /// In the form that the data path uses. Segmentation needs several slots and blank checksums.
    pub fn caps(self) -> OffloadCaps {
        let gso = self.gso && self.sg && self.csum;
        OffloadCaps {
            scatter_gather: self.sg,
            checksum_v4: self.csum,
            checksum_v6: self.csum,
            gso_v4: gso,
            gso_v6: gso,
            uso_v4: gso,
            uso_v6: gso,
        }
    }
}
