//! The two machines of a path, and what each did during a run.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::{Disturbance, Host};

/// The other machine of some records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Peer {
    /// The name by which the user reached it.
    pub name: String,
    /// Its interface on the measured path.
    pub interface: Interface,
    /// The interface of this machine on that path.
    pub near_interface: Interface,
    /// Its description.
    pub host: Host,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its address on the measured path.
    pub address: Ipv4Addr,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its queues that transmit, if known.
    pub tx_queues: Option<u16>,
    /// Its queues that receive, if known.
    pub rx_queues: Option<u16>,
    /// Whether the kernel merges what it receives (GRO), if known.
    #[serde(default)]
    pub gro: Option<bool>,
    /// Whether the card does (LRO), if known.
    #[serde(default)]
    pub lro: Option<bool>,
}

impl Peer {
    /// Whether figures with both peers can be compared: the same machine, and the same path to it.
    pub fn is_same_path(&self, other: &Peer) -> bool {
        let path = |peer: &Peer| (peer.interface.address, peer.near_interface.name.clone());
        self.host.is_same_machine(&other.host) && path(self) == path(other)
    }

    /// The peer in a few words.
    pub fn title(&self) -> String {
        format!("{} at {}: {}", self.name, self.interface.address, self.host.name())
    }
}

impl Interface {
    /// The interface in a few words, such as `eth0, 192.0.2.7, MTU 1500`. The number of its queues
    /// may have changed between two runs.
    pub fn title(&self) -> String {
        let Interface { name, address, mtu, .. } = self;
        format!("{name}, {address}, MTU {mtu}")
    }
}

/// What two machines did during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Ends {
    /// This machine.
    pub near: EndUse,
    /// The other one.
    pub far: EndUse,
}

/// What one of two machines did during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EndUse {
    /// What its interface carried, which includes anything else on it.
    pub interface: InterfaceUse,
    /// CPU seconds of the tools in user mode.
    pub tools_user: f64,
    /// CPU seconds of the kernel on their behalf.
    pub tools_system: f64,
    /// CPU seconds of softirqs.
    pub host_softirq: f64,
    /// CPU seconds that the hypervisor below stole.
    pub steal: f64,
    /// What else the machine did.
    pub disturbance: Disturbance,
}

/// What an interface carried. Directions are its machine's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InterfaceUse {
    /// Its name.
    pub name: String,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
}
