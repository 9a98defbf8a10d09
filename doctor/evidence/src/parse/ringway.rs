//! `ringway vif list --json`: the queues that guests of a running ringway may request, and those in
//! use.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Counters;
use crate::{Gap, Text};

/// All vifs, and the uplink, which has no guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vifs {
    /// In the order that the tool prints.
    pub all: Vec<Vif>,
}

/// One vif, with the fields that checks use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Vif {
    /// Such as `vif1.0`.
    pub name: String,
    /// `xen`, or `virtio` for one behind a vhost-user socket.
    #[serde(default)]
    pub kind: String,
    /// As Xen's tools name it; empty in records of older versions.
    #[serde(default)]
    pub state: String,
    /// Why it does not work as it should, if so.
    #[serde(default)]
    pub error: Option<String>,
    /// The version of ringway that serves it; empty in records of older versions.
    #[serde(default)]
    pub version: String,
    /// How often the process that serves it was replaced since it was made; records of older
    /// versions lack it.
    #[serde(default)]
    pub restarts: u64,
    /// Queues that its guest may request; 0 for the uplink.
    pub max_queues: u64,
    /// Those in use.
    pub queues: Vec<Queue>,
    /// What ringway says of the host, if it serves the last accepted description instead of a wrong
    /// one.
    #[serde(default)]
    pub notice: Option<String>,
    /// Details of a virtio vif; records of older versions lack them.
    #[serde(default)]
    pub virtio: Option<Virtio>,
    /// The offloads that it and its guest use, such as `csum-v4`.
    #[serde(default)]
    pub offloads: Vec<String>,
    /// What it may send and receive at most.
    #[serde(default)]
    pub limits: Limits,
}

/// Limits of a vif, by the direction of its guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Limits {
    /// What the guest may send.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// What it may receive.
    #[serde(default)]
    pub rate_rx: Option<Rate>,
}

/// Bytes in each interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Rate {
    /// Bytes.
    pub bytes: u64,
    /// Length of an interval, in microseconds.
    pub interval_us: u64,
}

impl Vif {
    /// Queues that its guest may request after the next start of its machine. A machine that runs
    /// keeps more than that if the configured number was lowered.
    pub fn max_queues_next(&self) -> u64 {
        let of_virtio = self.virtio.as_ref().and_then(|virtio| virtio.max_queues_next);
        of_virtio.unwrap_or(self.max_queues)
    }
}

/// The state of a vif whose guest can exchange frames.
pub const CONNECTED: &str = "Connected";

/// Details of a virtio vif.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Virtio {
    /// The path of its socket.
    pub socket: String,
    /// ringway's end of that socket: `server` if it creates the socket, `client` if it connects;
    /// empty in records of older versions.
    #[serde(default)]
    pub mode: String,
    /// Queues that its next guest may request; records of older versions lack them.
    #[serde(default)]
    pub max_queues_next: Option<u64>,
    /// Features that its guest uses, by their names in Linux's headers.
    #[serde(default)]
    pub features: Vec<String>,
}

/// The counters of a queue. Directions are the guest's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Queue {
    /// From 0.
    pub index: usize,
    /// Packets that the guest sent.
    pub tx_packets: u64,
    /// Bytes that the guest sent.
    pub tx_bytes: u64,
    /// Packets that the guest received.
    pub rx_packets: u64,
    /// Bytes that the guest received.
    pub rx_bytes: u64,
    /// Frames that ringway dropped, by its reasons.
    #[serde(default)]
    pub dropped: BTreeMap<String, u64>,
}

impl Counters for Vifs {
    fn parse(text: &Text) -> Result<Vifs, Gap> {
        let all = serde_json::from_str(text.value())
            .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))?;
        Ok(Vifs { all })
    }
}

impl Vifs {
    /// A queue by its vif's name and its number.
    pub fn queue(&self, vif: &str, index: usize) -> Option<&Queue> {
        let vif = self.all.iter().find(|known| known.name == vif)?;
        vif.queues.iter().find(|queue| queue.index == index)
    }
}
