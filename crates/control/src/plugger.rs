//! The messages between a backend and the plugger.
//!
//! A confined backend runs no program and reaches no database. Another process, the *plugger*, adds
//! and removes ports of Open vSwitch for it with `ovs-vsctl`. It checks each name and id that the
//! backend sends, and changes no port that is not this host's.

use ringway_ovs::{Ids, PortWanted};
use serde::{Deserialize, Serialize};

/// From the backend to the plugger. The next order follows when the last one is done.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum PluggerOrder {
    /// Give a vif this port.
    Join {
        /// Names the vif.
        vif: String,
        /// The port.
        wanted: PortWanted,
        /// Whether its network device was made since.
        is_new: bool,
    },
    /// Remove the port of a vif, if it has one.
    Leave {
        /// Names the vif.
        vif: String,
    },
}

/// From the plugger to the backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub enum PluggerEvent {
    /// These vifs have ports since an earlier process.
    Found {
        /// The names of vifs, as in orders.
        vifs: Vec<String>,
    },
    /// The last order was carried out, and a port has these ids, or why not.
    Done {
        /// Either.
        outcome: Result<Ids, String>,
    },
}
