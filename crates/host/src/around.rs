//! What calls concern that a host does not keep itself.

use std::sync::Arc;
use std::time::SystemTime;

use ringway_datapath::QueueCounters;
use ringway_switch::PortId;

/// What a host has to know for a call of all else that its process has.
#[derive(Debug)]
pub struct Around<'a> {
    /// Its uplink.
    pub uplink: Option<OtherPort<'a>>,
    /// The present time, by the wall clock.
    pub wall: SystemTime,
}

/// A port that is not a vif's: the uplink, or a trunk.
#[derive(Debug)]
pub struct OtherPort<'a> {
    /// Its number.
    pub port: PortId,
    /// Its name.
    pub name: &'a str,
    /// The counters of its queues.
    pub counters: &'a [Arc<QueueCounters>],
    /// Why it does not work as it should, if so.
    pub fault: Option<String>,
}
