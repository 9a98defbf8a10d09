//! The messages between the processes of an isolated backend: the supervisor, the switch process,
//! and one process for each tenant.

use serde::{Deserialize, Serialize};

/// A vif, identified within one backend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TenantVif {
    /// A Xen vif.
    Xen {
        /// The guest's domain.
        domid: u16,
        /// The vif's number in the guest.
        handle: u32,
    },
    /// The virtio vif of this name.
    Virtio(String),
}

/// From the supervisor to the process of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum TenantOrder {
    /// The first message, with the descriptors of the tenant's end of its trunk. For each of its
    /// Xen vifs, and of its virtio vifs on bridges, a [`Serve`](TenantOrder::Serve) follows.
    Start {
        /// How many of these there are.
        vifs: usize,
        /// What its trunk carries.
        trunk: TrunkRules,
    },
    /// What the trunk carries from now on.
    Trunk(TrunkRules),
    /// Open files of a network device, as descriptors: they belong to the next order with one. A
    /// message has room for some only.
    Queues,
    /// Serve a vif, or serve it from the start if the process does so already. A virtio vif is
    /// served because its opener says so: it only gets its network device, if it lacks one.
    Serve {
        /// The vif.
        vif: TenantVif,
        /// Its network device, if it has one.
        device: Option<PassedDevice>,
    },
    /// The network device of a vif was made again: its queues take the place of those of the former
    /// one, and its guest stays connected.
    Renew {
        /// The vif.
        vif: TenantVif,
        /// Its new device.
        device: MadeDevice,
    },
    /// The network device of a vif has another MTU.
    Mtu {
        /// The vif.
        vif: TenantVif,
        /// The MTU, in bytes.
        mtu: u32,
    },
    /// Stop serving a vif: the toolstack has removed it. Of a virtio vif, forget the device.
    Forget(TenantVif),
}

/// The network device of a vif, which the supervisor has made or could not make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassedDevice {
    /// It exists.
    Made(MadeDevice),
    /// It cannot be made.
    NotMade {
        /// Why.
        reason: String,
    },
}

/// A network device whose open files another process has, one for each queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeDevice {
    /// Its queues.
    pub queues: u16,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// What it is attached to, as configured.
    pub attached_to: String,
}

/// From the supervisor to the switch process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum SwitchOrder {
    /// A tenant has a new trunk, which replaces any earlier one. The descriptors of its other end
    /// come with the message.
    Attach {
        /// The tenant.
        tenant: String,
        /// What it may use.
        permitted: Permitted,
    },
    /// The rules of a tenant's vifs have changed.
    Allow {
        /// The tenant.
        tenant: String,
        /// What it may use.
        permitted: Permitted,
    },
    /// A tenant has no trunk any more.
    Detach {
        /// The tenant.
        tenant: String,
    },
}

/// What a tenant may use, according to the rules of its vifs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permitted {
    /// The source addresses that its frames may have, and that no other tenant has; `None` if it
    /// may have any, because the toolstack has set none for one of its vifs.
    pub own: Option<Vec<[u8; 6]>>,
    /// Those that its vifs share with others.
    pub shared: Vec<[u8; 6]>,
    /// What the trunk carries.
    pub trunk: TrunkRules,
}

/// What a tenant's trunk carries, according to the rules of its vifs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkRules {
    /// The VLANs of its vifs; each frame carries its tag. If empty, its vifs are in no VLAN, and
    /// frames pass unchanged.
    pub vlans: Vec<u16>,
    /// Whether the ports behind it reach the uplink only.
    pub is_private: bool,
}

/// From the switch process or the process of a tenant to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub enum ProcessReport {
    /// It serves, and has read all vifs of its start.
    Ready,
    /// All its threads have just reported.
    Alive,
    /// How many vifs it has.
    Vifs {
        /// All of them.
        count: usize,
        /// The connected ones.
        connected: usize,
    },
    /// The switch process moves frames of a tenant from now on.
    Attached {
        /// The tenant.
        tenant: String,
    },
    /// The switch process has cut off a tenant that broke the protocol of its trunk.
    CutOff {
        /// The tenant.
        tenant: String,
        /// The violation.
        reason: String,
    },
}
