//! Where frames are, for checks between rounds: nothing on the data path calls this.

use ringway_switch::PortId;

use crate::slot::SlotId;

/// Where a frame is in an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// It was taken in from this port and could not be forwarded yet.
    Kept {
        /// The port.
        from: PortId,
    },
    /// It waits to leave by a queue of this port.
    Waits {
        /// The port.
        to: PortId,
        /// The place of the queue.
        slot: SlotId,
    },
    /// It waits until its flow has moved to another queue of this port, or stays.
    Parked {
        /// The port.
        to: PortId,
    },
    /// It waits for a queue that is moving to this place.
    Gathers {
        /// The place.
        slot: SlotId,
    },
}
