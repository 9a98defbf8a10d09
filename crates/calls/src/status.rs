//! The state that is shown to people and scripts. Directions are the guest's.

use std::collections::BTreeMap;

use ringway_datapath::{OffloadCaps, QueueCounters};
use serde::{Deserialize, Serialize};

use crate::Times;

/// One queue of a vif.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Number within the vif.
    pub index: u16,
    /// The worker that owns it.
    pub worker: usize,
    /// Frames the guest sent.
    pub tx_packets: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Frames the guest received.
    pub rx_packets: u64,
    /// Bytes in them.
    pub rx_bytes: u64,
    /// Events sent to the other side.
    pub events_sent: u64,
    /// Events received from it.
    pub events_received: u64,
    /// Frames from the guest that may leave from its pages: long ones, and from a virtio guest only
    /// those in one buffer and without work left to do. None if a vif of Xen has a device.
    #[serde(default)]
    pub tx_long: u64,
    /// Those of them whose ends were copied once, into another guest's pages. The others were
    /// copied as a whole, as those for a queue of another worker or for a receiver without room,
    /// or were dropped.
    #[serde(default)]
    pub tx_lent: u64,
    /// Slots of its tx ring without a response, each up to 4096 bytes of a frame. A backend reports
    /// the current number, a frontend that of its last transmission.
    pub tx_unanswered: u64,
    /// Metadata of received frames that a frontend did not know and ignored.
    #[serde(default)]
    pub extras_skipped: u64,
    /// How long slots of its tx ring waited for a response, since the backend first saw them.
    /// Sampled from a few of all slots; empty for a frontend.
    #[serde(default, rename = "tx_answer_times")] // as scripts know it
    pub tx_response_times: Times,
    /// Frames dropped, by reason; reasons without drops are left out.
    pub dropped: BTreeMap<String, u64>,
    /// Why no frames come from the guest, if that is not for the guest.
    #[serde(default)]
    pub tx_wait: Option<WaitStatus>,
    /// Why frames to the guest wait, if none has left for a while.
    #[serde(default)]
    pub rx_wait: Option<WaitStatus>,
}

/// What a queue waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitStatus {
    /// For scripts. Of a queue: `no_buffers` in its guest, `no_room` at another port, `rate`,
    /// `segments`, `behind` (another worker, or a guest on its bridge), `no_memory`.
    #[serde(default)]
    pub kind: String,
    /// The port without room, if it is another one.
    #[serde(default)]
    pub at: Option<String>,
    /// For people.
    pub reason: String,
    /// How long it has waited.
    pub milliseconds: u64,
}

impl QueueStatus {
    /// Reads a queue's counters, without what it waits for.
    pub fn read(index: u16, worker: usize, counters: &QueueCounters) -> QueueStatus {
        let totals = counters.totals();
        let dropped = counters.dropped.snapshot().filter(|(_, count)| *count > 0);
        QueueStatus {
            index,
            worker,
            tx_packets: totals.tx_packets,
            tx_bytes: totals.tx_bytes,
            rx_packets: totals.rx_packets,
            rx_bytes: totals.rx_bytes,
            events_sent: totals.events_sent,
            events_received: totals.events_received,
            tx_long: totals.tx_long,
            tx_lent: totals.tx_lent,
            tx_unanswered: totals.tx_unanswered,
            extras_skipped: totals.extras_skipped,
            tx_response_times: Times::read(&counters.tx_response_times),
            dropped: dropped.map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
            tx_wait: None,
            rx_wait: None,
        }
    }
}

/// One vif, as the backend sees it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct VifStatus {
    /// `vifD.H`: guest's domain and handle.
    pub name: String,
    /// `xen`, `virtio` or `namespace`; empty for the uplink and trunks.
    #[serde(default)]
    pub kind: String,
    /// Of a virtio vif: its socket, and what was negotiated.
    #[serde(default)]
    pub virtio: Option<VirtioStatus>,
    /// Of a network namespace: where it is.
    #[serde(default)]
    pub namespace: Option<NamespaceStatus>,
    /// The guest's domain, if it is a Xen vif.
    pub domid: Option<u16>,
    /// The vif's number in the guest, if it is a Xen vif.
    pub handle: u32,
    /// The guest's name, if its domain has one.
    pub guest: Option<String>,
    /// The state of the backend end, as in XenStore.
    pub state: String,
    /// The guest's address.
    pub mac: Option<String>,
    /// The checks on what the guest sends: `unlocked`, `locked`, `disabled`, or `default`: its
    /// Ethernet address, and messages that only routers and DHCP servers send.
    #[serde(default)]
    pub locking_mode: String,
    /// IP addresses that the guest may use, if they are checked.
    #[serde(default)]
    pub allowed_ips: Vec<String>,
    /// The number of Ethernet addresses that the guest may use.
    #[serde(default)]
    pub addresses_max: u32,
    /// Further Ethernet addresses of the guest.
    #[serde(default)]
    pub allowed_macs: Vec<String>,
    /// Ethernet addresses that it shares with other vifs.
    #[serde(default)]
    pub shared_macs: Vec<String>,
    /// An address that its guest sends from while another vif has it, and what can be done.
    #[serde(default)]
    pub taken: Option<String>,
    /// Frames of this connection that failed those checks, by reason; reasons without frames are
    /// left out.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// The VLAN of its untagged frames.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// The VLANs of its tagged frames.
    #[serde(default)]
    pub trunk: Vec<u16>,
    /// It may send router advertisements and redirects.
    #[serde(default)]
    pub is_router: bool,
    /// It may send what only DHCP servers send.
    #[serde(default)]
    pub is_dhcp_server: bool,
    /// Its guest is not to be announced when it arrives.
    #[serde(default)]
    pub is_unannounced: bool,
    /// It may reach the uplink only.
    #[serde(default)]
    pub is_private: bool,
    /// Whether a multicast router may be behind it: `never`, `learn` or `always`.
    #[serde(default)]
    pub multicast_router: String,
    /// The vif to which frames go that no bridge forwards.
    #[serde(default)]
    pub link_local_to: Option<String>,
    /// The frames that have announced its guest since that came; `None` if its arrivals are not
    /// announced.
    #[serde(default)]
    pub announced: Option<u64>,
    /// The ports whose frames are copied to it, and the only frames that it gets, if it is the
    /// output of a mirror.
    #[serde(default)]
    pub mirror: Vec<String>,
    /// The multicast addresses whose frames its guest gets, if that has requested to get no others.
    #[serde(default)]
    pub groups_wanted: Option<Vec<String>>,
    /// The bytes before each frame that its guest wants to be free, as one with an XDP program
    /// does. Its frames are then complete, and no longer than a segment.
    #[serde(default)]
    pub headroom: u16,
    /// How many parts of the flows to its guest have left a queue that could not keep up, of 256
    /// each time; `None` unless flows are balanced.
    #[serde(default)]
    pub flows_moved: Option<u64>,
    /// Its role in multicast, if multicast is snooped.
    #[serde(default)]
    pub multicast: Option<MulticastStatus>,
    /// `switch`, or the name of a bridge.
    pub attached_to: String,
    /// Its port of Open vSwitch, while it has one that ringway has made.
    #[serde(default)]
    pub ovs: Option<OvsStatus>,
    /// Whether its network device is down, because it was set so or waits for a hotplug script.
    #[serde(default)]
    pub is_down: bool,
    /// The tenant whose process serves it, if tenants have their own processes.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The most queues that the guest may request. A virtio guest that runs keeps what it had.
    pub max_queues: u16,
    /// What is in force between its guest and its network: `sg`, `csum-v4`, `csum-v6`, `gso-tcpv4`,
    /// `gso-tcpv6`.
    pub offloads: Vec<String>,
    /// What decides about them, apart from the guest.
    #[serde(default)]
    pub offloads_because: String,
    /// The pages of its guest that stay mapped, because the guest has asked for it over a control
    /// ring.
    #[serde(default)]
    pub staged_pages: usize,
    /// How its guest has its frames hashed, if it has chosen that over a control ring.
    #[serde(default)]
    pub hash: Option<HashStatus>,
    /// Its limits.
    #[serde(default)]
    pub limits: LimitsStatus,
    /// The version of ringway that serves it; empty for the uplink and trunks.
    #[serde(default)]
    pub version: String,
    /// How often the process that serves it was replaced since it was made, by a kill, a fault or a
    /// restart of the service: its guest stayed connected.
    #[serde(default)]
    pub restarts: u64,
    /// Why it is closed, or does not work as it should, if so.
    pub error: Option<String>,
    /// For scripts, if there is an error: [`VifStatus::NO_GUEST`] or [`VifStatus::FAULT`].
    #[serde(default)]
    pub error_kind: Option<String>,
    /// What it waits for as a whole: `script` (the toolstack's), `resources` of this host, `keys`
    /// that its guest changes faster than they are read, the end of its `quarantine`.
    #[serde(default)]
    pub waits: Vec<WaitStatus>,
    /// What XenStore has refused its backend, if that has happened.
    #[serde(default)]
    pub refusals: Option<RefusalsStatus>,
    /// The queues in use.
    pub queues: Vec<QueueStatus>,
}

impl VifStatus {
    /// The kind of an error while all is well here: its guest is off, starts or is paused.
    pub const NO_GUEST: &str = "no_guest";
    /// The kind of all other errors.
    pub const FAULT: &str = "fault";

    /// Shows a fault, unless it has an error already.
    pub fn add_fault(&mut self, fault: Option<String>) {
        let Some(fault) = fault.filter(|_| self.error.is_none()) else { return };
        (self.error, self.error_kind) = (Some(fault), Some(VifStatus::FAULT.to_owned()));
    }
}

/// Requests that XenStore has refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalsStatus {
    /// How many.
    pub count: u64,
    /// The last of them, and the reason.
    pub last: String,
    /// How long ago that was.
    pub milliseconds: u64,
}

/// A port of Open vSwitch, and its external ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvsStatus {
    /// Its name.
    pub port: String,
    /// Its bridge.
    pub bridge: String,
    /// `iface-id`, by which OVN and other networks know it.
    pub iface_id: Option<String>,
    /// `attached-mac`.
    pub attached_mac: Option<String>,
    /// `vm-uuid`.
    pub vm_uuid: Option<String>,
}

/// Details of a virtio vif.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtioStatus {
    /// The path of its socket.
    pub socket: String,
    /// Which end creates it: `client` if the front-end does, `server` if the backend does.
    pub mode: String,
    /// Whether it was added while the host ran, and is not in the description.
    #[serde(default)]
    pub at_run_time: bool,
    /// `max_queues` of the next front-end, as configured.
    #[serde(default)]
    pub max_queues_next: u16,
    /// Features that are in use.
    pub features: Vec<String>,
    /// Features that are offered and that the guest or its front-end has not negotiated.
    pub not_taken: Vec<String>,
    /// Features that the backend supports and its configuration disables.
    pub not_offered: Vec<String>,
    /// Protocol features that are in use.
    #[serde(default)]
    pub protocol: Vec<String>,
    /// Protocol features that are offered and that the front-end has not negotiated.
    #[serde(default)]
    pub protocol_not_taken: Vec<String>,
    /// Protocol features that the backend supports and does not offer.
    #[serde(default)]
    pub protocol_not_offered: Vec<String>,
    /// Megabytes of the guest's memory that are mapped.
    pub memory_mib: u64,
    /// Whether all files of this memory are sealed against truncation.
    #[serde(default)]
    pub memory_sealed: bool,
}

/// Details of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceStatus {
    /// The file of the namespace.
    pub path: String,
    /// The network device there.
    pub device: String,
}

/// How a guest of Xen has its frames hashed: by a Toeplitz hash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashStatus {
    /// What is hashed: `ipv4`, `ipv4-tcp`, `ipv6`, `ipv6-tcp`.
    pub types: Vec<String>,
    /// The key, in hexadecimal digits.
    pub key: String,
    /// The queue of each hash, modulo the length; empty for the remainder by the number of queues.
    pub mapping: Vec<u16>,
}

impl HashStatus {
    /// A hash with these types, as bits in the order of netif.h, and this key.
    pub fn new(types: u32, key: &[u8], mapping: &[u16]) -> HashStatus {
        let names = ["ipv4", "ipv4-tcp", "ipv6", "ipv6-tcp"].into_iter().enumerate();
        let types = names.filter(|(bit, _)| types & (1 << bit) != 0);
        HashStatus {
            types: types.map(|(_, name)| name.to_owned()).collect(),
            key: key.iter().map(|octet| format!("{octet:02x}")).collect(),
            mapping: mapping.to_vec(),
        }
    }
}

/// The role of a port in multicast.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastStatus {
    /// Groups of which it is a known member.
    pub groups: u32,
    /// A multicast router is behind it.
    pub is_router: bool,
    /// It receives all groups: a router is behind it, it has more groups than the table holds, or
    /// it was attached a moment ago.
    pub hears_all: bool,
}

/// The limits of a vif.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsStatus {
    /// Whether its link is set down.
    #[serde(default)]
    pub link_down: bool,
    /// What is set of its offloads: `auto`, `all` or `none`.
    #[serde(default)]
    pub offloads: String,
    /// Its share while other vifs have work.
    pub weight: u16,
    /// The limit of what the guest may transmit, if there is one.
    pub rate: Option<RateStatus>,
    /// The limit of what the guest may receive, if there is one.
    pub rate_rx: Option<RateStatus>,
    /// Frames that it may flood per second, over all its queues, if that is limited.
    pub flood_frames_per_second: Option<u32>,
    /// Bytes that it may flood per second, if that is limited.
    pub flood_bytes_per_second: Option<u64>,
    /// Broadcasts among those.
    #[serde(default)]
    pub broadcast: FloodStatus,
    /// Multicasts.
    #[serde(default)]
    pub multicast: FloodStatus,
    /// Frames to unknown addresses.
    #[serde(default)]
    pub unknown: FloodStatus,
    /// Bytes of the longest frame that it may transmit without segmentation, if that is limited.
    pub frame_len_max: Option<usize>,
}

/// Bytes of a frame that the MTU does not count: an Ethernet header and a VLAN tag, as in Linux's
/// bridge.
pub const FRAMING: usize = 14 + 4;

impl LimitsStatus {
    /// The MTU in bytes, if frames are limited to one.
    pub fn mtu(&self) -> Option<usize> {
        self.frame_len_max?.checked_sub(FRAMING)
    }
}

/// The limits for flooding one kind of frame, per second, if there are any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloodStatus {
    /// Frames.
    pub frames_per_second: Option<u32>,
    /// Bytes.
    pub bytes_per_second: Option<u64>,
}

/// A limit in bytes per interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateStatus {
    /// Bytes.
    pub bytes: u64,
    /// Length of an interval, in microseconds.
    pub interval_us: u64,
}

/// One worker.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub index: usize,
    /// Queues it owns.
    pub queues: usize,
    /// Time that it has spent in rounds that found work, in nanoseconds. What it spends on polling
    /// without finding any is left out.
    #[serde(default)]
    pub busy_ns: u64,
}

/// One entry of the forwarding table.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FdbStatus {
    /// The address.
    pub mac: String,
    /// Its VLAN, if its port is in one.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// The port it is behind.
    pub port: String,
    /// Seconds since it was seen.
    pub age_seconds: u32,
    /// It is assigned to the port by the configuration, not learned.
    #[serde(default)]
    pub is_static: bool,
}

/// A multicast group that has members.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its Ethernet address.
    pub group: String,
    /// Its VLAN, if its ports are in one.
    pub vlan: Option<u16>,
    /// The ports that its members are behind.
    pub ports: Vec<String>,
}

/// Everything about a backend process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Its process id; that of the switch process if tenants have their own processes.
    pub pid: u32,
    /// How queues are placed.
    pub policy: String,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// The vifs, by domain and handle.
    pub vifs: Vec<VifStatus>,
    /// The port to the host, if there is one, with a status for each queue. The host counts as
    /// guest.
    pub uplink: Option<VifStatus>,
    /// The forwarding table.
    pub fdb: Vec<FdbStatus>,
    /// The known multicast groups, if multicast is snooped.
    #[serde(default)]
    pub groups: Vec<GroupStatus>,
    /// The processes of tenants, if they have their own.
    #[serde(default)]
    pub tenants: Vec<TenantStatus>,
    /// The trunks of the tenants, seen from the switch process: TX is what a tenant transmits.
    #[serde(default)]
    pub trunks: Vec<VifStatus>,
}

impl BackendStatus {
    /// All ports: vifs, trunks, and the uplink last.
    pub fn ports(&self) -> impl Iterator<Item = &VifStatus> {
        self.vifs.iter().chain(&self.trunks).chain(&self.uplink)
    }
}

/// The process of one tenant.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TenantStatus {
    /// The tenant.
    pub name: String,
    /// The process, if it runs.
    pub pid: Option<u32>,
    /// How often it was restarted.
    pub restarts: u64,
    /// `serving`, `starting`, `waiting` until it is restarted, or `silent`.
    pub state: String,
    /// Why it was ended or does not reply, if that is so.
    pub error: Option<String>,
    /// Its vifs, by name.
    pub vifs: Vec<String>,
}

impl TenantStatus {
    /// Whether its process serves this vif.
    pub fn serves(&self, vif: &str) -> bool {
        self.vifs.iter().any(|own| own == vif)
    }
}

/// One vif, as its guest sees it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GuestVifStatus {
    /// Its number in the guest.
    pub handle: u32,
    /// The guest's interface.
    pub interface: String,
    /// The state of the frontend end, as in XenStore.
    pub state: String,
    /// The number of queues that the backend offers.
    pub max_queues: u16,
    /// Whether all bytes of frames are copied, because the toolstack does not trust the backend.
    #[serde(default)]
    pub must_copy: bool,
    /// The offloads that both sides use.
    pub offloads: Vec<String>,
    /// The pages that the backend keeps mapped, because the guest has asked for it.
    #[serde(default)]
    pub staged_pages: usize,
    /// How the backend is to hash frames, if the guest has chosen that and the backend lets it.
    #[serde(default)]
    pub hash: Option<HashStatus>,
    /// Why the backend closed it, if it did.
    pub error: Option<String>,
    /// The queues in use.
    pub queues: Vec<QueueStatus>,
}

/// Everything about a guest process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GuestStatus {
    /// Its name.
    pub name: String,
    /// Its domain.
    pub domid: u16,
    /// Its process id, with which its namespaces can be entered.
    pub pid: u32,
    /// Its vifs.
    pub vifs: Vec<GuestVifStatus>,
}

/// The names of offloads in use: `sg`, `csum-v4`, `csum-v6`, `gso-tcpv4`, `gso-tcpv6`.
pub fn offload_names(caps: OffloadCaps) -> Vec<String> {
    let names = [
        (caps.scatter_gather, "sg"),
        (caps.checksum_v4, "csum-v4"),
        (caps.checksum_v6, "csum-v6"),
        (caps.gso_v4, "gso-tcpv4"),
        (caps.gso_v6, "gso-tcpv6"),
    ];
    names.into_iter().filter(|(is_used, _)| *is_used).map(|(_, name)| name.to_owned()).collect()
}
