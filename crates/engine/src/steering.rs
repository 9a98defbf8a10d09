//! How frames for a port are spread over its queues, where the guest behind it has a say or the
//! backend balances them.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ringway_datapath::{FlowHash, Frame};
use ringway_steering::QueueIndex;
use ringway_steering::toeplitz::ToeplitzSteering;

use crate::balance::Table;

/// What a guest has chosen for the frames that it receives, and the table by which they are steered
/// otherwise. The guest's control ring changes the choice at any time; engines read it for each
/// frame, and see each choice as a whole.
#[derive(Debug, Default)]
pub struct PortSteering {
    chosen: ArcSwapOption<ToeplitzSteering>,
    table: Option<Arc<Table>>,
}

impl PortSteering {
    /// That of a port with so many queues, whose flows may move from one that cannot keep up to
    /// others ([`balance_flows`](crate::steps::balance_flows)).
    pub fn balanced(queues: u16) -> PortSteering {
        PortSteering { table: Some(Arc::new(Table::new(queues))), ..PortSteering::default() }
    }

    /// Replaces the choice; with `None`, frames are spread as for any other port.
    pub fn set(&self, chosen: Option<ToeplitzSteering>) {
        self.chosen.store(chosen.map(Arc::new));
    }

    /// How many parts of the port's flows have moved to other queues, of 256 each time; `None` if
    /// none may.
    pub fn moved(&self) -> Option<u64> {
        self.table.as_ref().map(|table| table.moved())
    }

    /// Whether the guest has chosen something.
    pub(crate) fn is_set(&self) -> bool {
        self.chosen.load().is_some()
    }

    /// The table, if flows may move.
    pub(crate) fn table(&self) -> Option<&Arc<Table>> {
        self.table.as_ref()
    }

    /// The queue of a frame, among `count`, if the guest has chosen something. The frame keeps its
    /// hash, which the guest is shown.
    pub(crate) fn queue_of(&self, frame: &mut Frame, count: u16) -> Option<QueueIndex> {
        let chosen = self.chosen.load();
        let chosen = chosen.as_ref()?;
        let headers = frame.headers();
        let hash = headers.and_then(|headers| chosen.flow_hash_parsed(frame.bytes(), &headers));
        frame.flow = hash.map(|(value, kind)| FlowHash { value, kind: kind.number() });
        Some(chosen.queue_of(hash.map(|(value, _)| value), count))
    }
}
