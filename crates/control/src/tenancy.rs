//! What the processes of an isolated backend tell each other: the supervisor, the switch process,
//! and one process for each tenant.

use serde::{Deserialize, Serialize};

/// A vif among those of one backend's domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VifNumber {
    /// The guest's domain.
    pub domid: u16,
    /// The vif's number in the guest.
    pub handle: u32,
}

/// From the supervisor to the process of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum TenantOrder {
    /// The first message, with the descriptors of the tenant's end of its trunk.
    Start {
        /// The vifs that it serves.
        vifs: Vec<VifNumber>,
        /// What its trunk carries.
        trunk: TrunkRules,
    },
    /// What the trunk carries from now on.
    Trunk(TrunkRules),
    /// Serve another vif.
    Serve(VifNumber),
    /// Serve a vif no longer: the toolstack has removed it.
    Forget(VifNumber),
}

/// From the supervisor to the switch process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum SwitchOrder {
    /// A tenant has a new trunk, in the place of any that it had: the descriptors of its other end
    /// are beside this.
    Attach {
        /// The tenant.
        tenant: String,
        /// Addresses that its frames may come from.
        allowed: Allowed,
        /// What the trunk carries.
        trunk: TrunkRules,
    },
    /// What a tenant's vifs may do is different now.
    Allow {
        /// The tenant.
        tenant: String,
        /// Addresses that its frames may come from.
        allowed: Allowed,
        /// What the trunk carries.
        trunk: TrunkRules,
    },
    /// A tenant has no trunk any more.
    Detach {
        /// The tenant.
        tenant: String,
    },
}

/// The Ethernet addresses that a tenant's frames may come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allowed {
    /// Any: the toolstack has named none for one of its vifs.
    Any,
    /// Those of its vifs.
    Only(Vec<[u8; 6]>),
}

/// What a tenant's trunk carries, by the rules of its vifs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkRules {
    /// The VLANs of its vifs, each frame with its tag. Empty: its vifs are in no VLAN, and frames
    /// pass as they are.
    pub vlans: Vec<u16>,
    /// Whether what is behind it talks to the uplink only.
    pub is_private: bool,
}

/// From the switch process or the process of a tenant to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub enum ProcessReport {
    /// It serves, and has read every vif that it was started with.
    Ready,
    /// All its threads have just reported.
    Alive,
    /// How many vifs it has.
    Vifs {
        /// All of them.
        count: usize,
        /// Those that are connected.
        connected: usize,
    },
    /// The switch process moves frames of a tenant from now on.
    Attached {
        /// The tenant.
        tenant: String,
    },
    /// The switch process has cut a tenant off, which broke the protocol of its trunk.
    CutOff {
        /// The tenant.
        tenant: String,
        /// What it did.
        reason: String,
    },
}
