//! Which queues a port has, and who owns them: a snapshot that the control plane replaces.

use std::sync::Arc;

use ringway_datapath::MacAddr;
use ringway_switch::{PortId, Switch};

use crate::bridge::Neighbors;
use crate::gauge::Gauge;
use crate::inbox::Inbox;
use crate::slot::SlotId;
use crate::steering::PortSteering;

/// The location of a queue.
#[derive(Debug, Clone)]
pub struct QueueAddress {
    /// Number of the engine that owns it.
    pub engine: usize,
    /// Its place there.
    pub slot: SlotId,
    /// Its back-pressure.
    pub gauge: Arc<Gauge>,
}

/// All ports and engines at one moment.
#[derive(Debug, Default)]
pub struct Directory {
    /// Incremented with each change.
    pub version: u64,
    /// By port number; an empty list for a number not in use.
    pub ports: Vec<Vec<QueueAddress>>,
    /// By number of the engine.
    pub inboxes: Vec<Arc<Inbox>>,
    /// By port number: the devices on the same bridge of the host, if there are others.
    pub(crate) neighbors: Vec<Option<Arc<Neighbors>>>,
    /// By port number: what guests may choose, up to the last port whose guest may.
    pub(crate) steering: Vec<Option<Arc<PortSteering>>>,
}

impl Directory {
    /// The queues of a port, none if it is down.
    pub fn queues(&self, port: PortId) -> &[QueueAddress] {
        self.ports.get(usize::from(port.0)).map_or(&[], Vec::as_slice)
    }

    /// What the guest of a port may choose for its frames, if it may.
    pub(crate) fn steering(&self, port: PortId) -> Option<&PortSteering> {
        self.steering.get(usize::from(port.0))?.as_deref()
    }

    /// The gauge of the device that gets frames sent to this address by the device `port`, if both
    /// are on one bridge of the host.
    pub(crate) fn neighbor(&self, port: PortId, address: MacAddr) -> Option<&Arc<Gauge>> {
        let neighbors = self.neighbors.get(usize::from(port.0))?.as_ref()?;
        neighbors.get(&address).map(|arrivals| arrivals.gauge())
    }

    /// Whether there are other devices on the bridge of this one.
    pub(crate) fn has_neighbors(&self, port: PortId) -> bool {
        self.neighbors.get(usize::from(port.0)).is_some_and(Option::is_some)
    }
}

/// Where the frames of a port go.
#[derive(Debug, Clone)]
pub enum Forwarding {
    /// Where the switch decides.
    Switch(Arc<Switch>),
    /// Always to one other port: to the queue of the same number if both ports have equally many,
    /// so that the choice of the sender's kernel is kept; otherwise by flow.
    Patch(PortId),
}

impl Forwarding {
    /// The port that all frames go to, if it is always the same.
    pub fn patched_to(&self) -> Option<PortId> {
        match self {
            Forwarding::Switch(_) => None,
            Forwarding::Patch(to) => Some(*to),
        }
    }
}
