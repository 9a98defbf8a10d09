//! The configuration of a backend, given at its start.

use std::net::IpAddr;

use ringway_control::RunDir;
use std::path::PathBuf;

use ringway_datapath::{
    Completion, LockingMode, MacAddr, MulticastRouter, OffloadCaps, PortRules, VlanRules,
};
use ringway_switch::{StormLimits, SwitchConfig};
use ringway_vhost_shell::Mode;
use ringway_wire::virtio::Features;
use ringway_worker::WorkersConfig;
use ringway_xenbus::VifLimits;
use serde_json::Value;

use crate::Service;

/// A backend's settings.
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// Where its control socket goes.
    pub dir: RunDir,
    /// By what network devices of this host are known, whichever of its processes makes them. A
    /// host with another run directory may serve another XenStore, where the same names mean other
    /// vifs.
    pub owner: String,
    /// Its threads.
    pub workers: WorkersConfig,
    /// Queues that a guest may ask for, unless its vif says otherwise.
    pub max_queues: u16,
    /// When it responds to what guests transmit, unless a vif has its own setting.
    pub completion: Completion,
    /// Whether a queue may have one event channel per direction.
    pub split_event_channels: bool,
    /// Work that guests may leave undone.
    pub offloads: OffloadCaps,
    /// Reads a `[[vhost]]` as the opener passes it on, or says why it cannot be served.
    pub read_vhost: fn(Value) -> Result<VhostVif, String>,
    /// The way from the switch to the host.
    pub uplink: Option<Uplink>,
    /// How strictly addresses of vifs are checked of which nothing else is said; see
    /// [`PortRules::mode`](ringway_datapath::PortRules::mode).
    pub locking: Option<LockingMode>,
    /// Limits of the switch; its ticks are seconds.
    pub switch: SwitchConfig,
    /// Notified that it serves, and that it is alive.
    pub service: Service,
}

/// A TAP device on the host, which is a port of the switch.
#[derive(Debug, Clone)]
pub struct Uplink {
    /// Its name.
    pub name: String,
    /// The host's addresses on it, with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Its queues.
    pub queues: u16,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The VLANs that it is in.
    pub vlan: VlanRules,
    /// Whether multicast routers are behind it.
    pub multicast_router: MulticastRouter,
    /// What may enter by it of each kind of flood, in seconds.
    pub storm: StormLimits,
}

/// A vif whose guest is behind a vhost-user socket.
#[derive(Debug, Clone)]
pub struct VhostVif {
    /// What people call it.
    pub name: String,
    /// The path of its socket.
    pub socket: PathBuf,
    /// Who makes the socket.
    pub mode: Mode,
    /// Queues that the guest may have.
    pub queues: u16,
    /// Work that the guest may leave undone, beside what all may.
    pub offloads: OffloadCaps,
    /// The Linux bridge that it is on instead of the switch.
    pub bridge: Option<String>,
    /// Features of virtio that may be offered.
    pub features: Features,
    /// Features of the protocol that may be.
    pub protocol: u64,
    /// The guest's address, if it is known.
    pub mac: Option<MacAddr>,
    /// What the guest may send.
    pub rules: PortRules,
    /// What limits it.
    pub limits: VifLimits,
}
