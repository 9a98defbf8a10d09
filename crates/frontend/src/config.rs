//! What a guest process is told at its start.

use std::net::IpAddr;
use std::path::PathBuf;

use ringway_datapath::OffloadCaps;
use ringway_worker::WorkersConfig;

/// A guest's settings.
#[derive(Debug, Clone)]
pub struct FrontendConfig {
    /// The guest's name.
    pub name: String,
    /// Where its control socket goes.
    pub control: PathBuf,
    /// Its threads.
    pub workers: WorkersConfig,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
}

/// One network interface of a guest.
#[derive(Debug, Clone)]
pub struct Interface {
    /// The vif's number in the guest.
    pub handle: u32,
    /// The device's name, such as `eth0`.
    pub name: String,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Its addresses, with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Where the default route goes.
    pub gateway: Option<IpAddr>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Queues to ask for; as many as are offered and there are CPUs if `None`.
    pub queues: Option<u16>,
    /// Work that the backend may leave undone.
    pub offloads: OffloadCaps,
}
