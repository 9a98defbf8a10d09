//! The configuration of a guest process, given at its start.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ringway_datapath::OffloadCaps;
use ringway_worker::WorkersConfig;

/// A guest's settings. Its vifs are not among them: those are found in XenStore, with their
/// addresses and MTUs.
#[derive(Debug, Clone)]
pub struct FrontendConfig {
    /// The guest's name.
    pub name: String,
    /// Its threads.
    pub workers: WorkersConfig,
    /// What its devices are called, before the vif's handle: `eth` for `eth0`.
    pub device_prefix: String,
    /// What is known of some vifs beforehand, by handle.
    pub interfaces: BTreeMap<u32, Interface>,
    /// What goes for all others.
    pub others: Interface,
}

/// What a guest makes of one of its vifs.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Its addresses, with prefix lengths; none if the guest configures itself.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Where the default route goes.
    pub gateway: Option<IpAddr>,
    /// The most queues to ask for; as many as there are CPUs if `None`. A vif gets no more than
    /// its backend offers.
    pub queues: Option<u16>,
    /// Pages of frames that may wait for responses before a queue sends more; all that its ring has
    /// if `None` (see `ringway_netfront::VifQueue::limit_unanswered`).
    pub max_unanswered: Option<u16>,
    /// Work that the backend may leave undone.
    pub offloads: OffloadCaps,
}

/// No address, and all that a vif can have.
impl Default for Interface {
    fn default() -> Interface {
        Interface {
            addresses: Vec::new(),
            gateway: None,
            queues: None,
            max_unanswered: None,
            offloads: OffloadCaps::ALL,
        }
    }
}

impl FrontendConfig {
    pub(crate) fn interface(&self, handle: u32) -> &Interface {
        self.interfaces.get(&handle).unwrap_or(&self.others)
    }

    /// By handle and not by order, so that a device keeps its name when another vif goes.
    pub(crate) fn device_name(&self, handle: u32) -> String {
        format!("{}{handle}", self.device_prefix)
    }
}
