//! The messages between a backend and the plugger.
//!
//! A confined backend runs no program and reaches no database. Another process, the *plugger*, adds
//! and removes ports of Open vSwitch for it with `ovs-vsctl`. It checks each name and id that the
//! backend sends, and changes no port that is not this host's.

use ringway_ovs::{Datapath, Ids, OvsBridge, PortWanted};
use serde::{Deserialize, Serialize};

/// From the backend to the plugger.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum PluggerRequest {
    /// Change a port. The next order follows when the last one is done.
    Order(PluggerOrder),
    /// Say what datapath a bridge has. The next question follows when this one has its reply.
    Datapath {
        /// The bridge.
        bridge: OvsBridge,
    },
}

/// What is to be done about the port of a vif.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PluggerOrder {
    /// Tells it from those before: an order that a killed plugger may have carried out is given
    /// again with another number.
    pub number: u64,
    /// Names the vif.
    pub vif: String,
    /// The port that it is to have, or that it is to have none.
    pub wanted: Option<PortWanted>,
}

/// From the plugger to the backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub enum PluggerEvent {
    /// The plugger begins, and knows of no order: the one before may have been killed.
    Begun,
    /// These vifs have ports since an earlier process.
    Found {
        /// The names of vifs, as in orders.
        vifs: Vec<String>,
    },
    /// An order was carried out, and a port has these ids, or why not.
    Done {
        /// Its number.
        number: u64,
        /// Either.
        outcome: Result<Ids, String>,
    },
    /// The datapath of the bridge, or why that is not known.
    Datapath {
        /// Either.
        found: Result<Datapath, String>,
    },
}
