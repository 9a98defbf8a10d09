//! Our frontend and our backend, joined by one guest's memory.

use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_hypervisor::QueueEvents;
use ringway_netback::{FrontendFeatures, QueueParts};

use crate::domain::{Domain, Event, GUEST, HOST};

pub(crate) type Front = ringway_netfront::VifQueue<Domain, Event>;
pub(crate) type Back = ringway_netback::VifQueue<Domain, Event>;

/// A new queue's two ends, which may leave all work to each other.
pub(crate) fn pair() -> (Domain, Front, Back) {
    let domain = Domain::new();
    let (front_events, back_events) = Event::split_pair();
    let counters = Arc::new(QueueCounters::default());
    let front = Front::new(domain.clone(), HOST, front_events, counters);
    let mut front = front.expect("a new guest has memory");
    front.set_caps(OffloadCaps::ALL);
    let back = attach(&domain, &mut front, back_events);
    (domain, front, back)
}

/// A backend on the rings of a frontend, as they are.
pub(crate) fn attach(domain: &Domain, front: &mut Front, events: QueueEvents<Event>) -> Back {
    let mut memory = domain.clone();
    let refs = front.config();
    let [tx_ring, rx_ring] = memory.map_rings([refs.tx_ring_ref, refs.rx_ring_ref]);
    let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
    let counters = Arc::new(QueueCounters::default());
    let parts = QueueParts { peer: GUEST, memory, tx_ring, rx_ring, events, features, counters };
    Back::attach(parts).expect("the rings are sound")
}
