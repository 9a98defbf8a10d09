//! Which queues a port has, and who owns them: a snapshot that the control plane replaces.

use std::sync::Arc;

use ringway_switch::{PortId, Switch};

use crate::gauge::Gauge;
use crate::inbox::Inbox;
use crate::slot::SlotId;

/// Where a queue is.
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
    /// Counts up with each change.
    pub version: u64,
    /// By port number; an empty list for a number not in use.
    pub ports: Vec<Vec<QueueAddress>>,
    /// By number of the engine.
    pub inboxes: Vec<Arc<Inbox>>,
}

impl Directory {
    /// The queues of a port, none if it is down.
    pub fn queues(&self, port: PortId) -> &[QueueAddress] {
        self.ports.get(usize::from(port.0)).map_or(&[], Vec::as_slice)
    }
}

/// Where the frames of a port go.
#[derive(Debug, Clone)]
pub enum Forwarding {
    /// Where the switch says.
    Switch(Arc<Switch>),
    /// To one other port, always: from a queue to the queue of the same number where both ports
    /// have as many, so that the choice of the sender's kernel is followed; otherwise by flow.
    Patch(PortId),
}

impl Forwarding {
    /// The one port that frames go to, if it is always the same.
    pub fn patched_to(&self) -> Option<PortId> {
        match self {
            Forwarding::Switch(_) => None,
            Forwarding::Patch(to) => Some(*to),
        }
    }
}
