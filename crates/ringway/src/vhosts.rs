//! A `[[vhost]]` of the description, in the form that a backend takes.

use std::path::PathBuf;

use ringway_backend::VhostVif;
use ringway_vhost_shell::Mode;
use ringway_xenbus::VifLimits;

use crate::description::{SocketMode, Vhost};
use crate::host::nodes;

/// Which end creates the socket of a vif.
pub(crate) fn mode(vhost: &Vhost) -> Mode {
    match vhost.mode {
        SocketMode::Client => Mode::Client,
        SocketMode::Server => Mode::Server,
    }
}

/// All that a backend knows of a vif.
pub(crate) fn config(described: &Vhost) -> VhostVif {
    let (features, protocol) = described.features();
    let limits = nodes::limits(&described.vif);
    // One on a bridge takes that of the bridge.
    let mtu = if described.vif.bridge.is_some() { described.vif.mtu } else { limits.mtu };
    VhostVif {
        name: described.name.0.clone(),
        socket: PathBuf::from(&described.socket.0),
        mode: mode(described),
        queues: described.queues,
        offloads: described.vif.offloads.caps(),
        bridge: described.vif.bridge.as_ref().map(|bridge| bridge.0.clone()),
        features,
        protocol,
        max_memory: described.max_memory.map(|max| max.bytes),
        mac: described.mac.map(|mac| mac.0),
        rules: described.vif.rules(),
        limits: VifLimits { mtu, ..limits },
    }
}
