//! Which queues a port has, and who owns them: a snapshot that the control thread replaces.

use std::sync::Arc;

use ringway_switch::{PortId, Switch};

use crate::gauge::Gauge;
use crate::inbox::Inbox;

/// Names one attachment of a queue; a number is never used for a second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotId {
    /// Index into the owner's slots.
    pub(crate) index: usize,
    /// Tells attachments in the same slot apart.
    pub(crate) generation: u64,
}

/// Where a queue is.
#[derive(Debug, Clone)]
pub(crate) struct QueueAddress {
    /// Index of the worker that owns it.
    pub(crate) worker: usize,
    pub(crate) slot: SlotId,
    pub(crate) gauge: Arc<Gauge>,
}

/// All ports and workers at one moment.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// Counts up with each change.
    pub(crate) version: u64,
    /// By port number; an empty list for a number not in use.
    pub(crate) ports: Vec<Vec<QueueAddress>>,
    /// By worker number.
    pub(crate) inboxes: Vec<Arc<Inbox>>,
}

impl Directory {
    /// The queues of a port, none if it is down.
    pub(crate) fn queues(&self, port: PortId) -> &[QueueAddress] {
        self.ports.get(usize::from(port.0)).map_or(&[], Vec::as_slice)
    }
}

/// Where the frames of a port go.
#[derive(Debug, Clone)]
pub enum Forwarding {
    /// Where the switch says.
    Switch(Arc<Switch>),
    /// To one other port, always: from a queue to the queue of the same number where both ports
    /// have as many, so that whoever chose the queue is followed; otherwise by flow.
    Patch(PortId),
}

impl Forwarding {
    /// The one port that frames go to, if it is always the same.
    pub(crate) fn patched_to(&self) -> Option<PortId> {
        match self {
            Forwarding::Switch(_) => None,
            Forwarding::Patch(to) => Some(*to),
        }
    }
}
