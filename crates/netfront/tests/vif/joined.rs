//! Our frontend and our backend, joined by one guest's memory.

use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_hypervisor::QueueEvents;
use ringway_loopback::{LoopbackEvent, LoopbackGrants, LoopbackMemory};
use ringway_netback::{FrontendFeatures, Headroom, MulticastControl, QueueParts};

use crate::machine::{GUEST, HOST, Machine};

pub(crate) type Front = ringway_netfront::VifQueue<LoopbackGrants, LoopbackEvent>;
pub(crate) type Back = ringway_netback::VifQueue<LoopbackMemory, LoopbackEvent>;

/// A new queue's two ends, which may leave all work to each other.
pub(crate) fn pair() -> (Machine, Front, Back) {
    pair_with(&Arc::default())
}

/// The two ends, for a guest with this headroom.
pub(crate) fn pair_with(headroom: &Arc<Headroom>) -> (Machine, Front, Back) {
    let machine = Machine::new();
    let (front_events, back_events) = machine.channels();
    let counters = Arc::new(QueueCounters::default());
    let front = Front::new(machine.grants(), HOST, front_events, counters);
    let mut front = front.expect("a new guest has memory");
    front.set_caps(OffloadCaps::ALL);
    let back = attach(&machine, &mut front, back_events, (None, headroom));
    (machine, front, back)
}

/// A backend on the rings of a frontend, as they are.
pub(crate) fn attach(
    machine: &Machine,
    front: &mut Front,
    events: QueueEvents<LoopbackEvent>,
    (multicast, headroom): (Option<Arc<MulticastControl>>, &Arc<Headroom>),
) -> Back {
    let memory = machine.memory();
    let refs = front.config();
    let rings = machine.map_rings([refs.tx_ring_ref, refs.rx_ring_ref]);
    let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
    let parts = QueueParts::new(GUEST, memory, rings, events, features);
    let parts = QueueParts { multicast, headroom: Arc::clone(headroom), ..parts };
    Back::attach(parts).expect("the rings are sound")
}
