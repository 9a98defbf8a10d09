//! The configuration of a guest process, given at its start.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ringway_datapath::OffloadCaps;
use ringway_netfront::HashWish;
use ringway_worker::WorkersConfig;

/// A guest's settings. These do not include its vifs, which are found in XenStore with their
/// addresses and MTUs.
#[derive(Debug, Clone)]
pub struct FrontendConfig {
    /// The guest's name.
    pub name: String,
    /// Its threads.
    pub workers: WorkersConfig,
    /// Prefix of its device names, before the vif's handle: `eth` for `eth0`.
    pub device_prefix: String,
    /// Configuration of particular vifs, by handle.
    pub interfaces: BTreeMap<u32, Interface>,
    /// Configuration of all other vifs.
    pub others: Interface,
}

/// A guest's configuration of one of its vifs.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Its addresses, with prefix lengths; none if the guest configures itself.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The gateway of the default route.
    pub gateway: Option<IpAddr>,
    /// The most queues to ask for; as many as there are CPUs if `None`. A vif gets no more than
    /// its backend offers.
    pub queues: Option<u16>,
    /// Pages of frames that may wait for responses before a queue sends more; all pages of its ring
    /// if `None` (see `ringway_netfront::VifQueue::limit_unanswered`).
    pub max_unanswered: Option<u16>,
    /// How the backend is to hash the frames that it receives; as the backend likes if `None`.
    pub hash: Option<HashWish>,
    /// Work that the backend may leave to the guest.
    pub offloads: OffloadCaps,
    /// Whether its backend is to keep its pages mapped, if it can.
    pub staging: bool,
    /// Whether data of a TCP connection that arrived together may be handed to the kernel as one
    /// frame, where it ends there.
    pub gro: bool,
}

/// No addresses, and otherwise everything that a vif supports.
impl Default for Interface {
    fn default() -> Interface {
        Interface {
            addresses: Vec::new(),
            gateway: None,
            queues: None,
            max_unanswered: None,
            hash: None,
            offloads: OffloadCaps::ALL,
            staging: false,
            gro: true,
        }
    }
}

impl FrontendConfig {
    pub(crate) fn interface(&self, handle: u32) -> &Interface {
        self.interfaces.get(&handle).unwrap_or(&self.others)
    }

    /// Named by handle, not by order, so that a device keeps its name when another vif is removed.
    pub(crate) fn device_name(&self, handle: u32) -> String {
        format!("{}{handle}", self.device_prefix)
    }
}
