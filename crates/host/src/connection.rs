//! What is attached of a vif while its guest is connected.

use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_engine::PortSteering;
use ringway_switch::PortId;

/// What is attached while a guest is connected.
pub struct Connection {
    /// The port of the guest.
    pub port: PortId,
    /// The port of the vif's network device, if it has one.
    pub device_port: Option<PortId>,
    /// The port of disabled queues, from which no frames come.
    pub drain: Option<PortId>,
    /// The counters of its queues.
    pub queues: Vec<Arc<QueueCounters>>,
    /// How frames to it are steered, if its guest may choose that or they are balanced.
    pub steering: Option<Arc<PortSteering>>,
    /// The work that the guest may be left with.
    pub caps: OffloadCaps,
}

impl Connection {
    /// Its ports, in the order in which they are released.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + use<> {
        self.drain.into_iter().chain(self.device_port).chain([self.port])
    }
}
