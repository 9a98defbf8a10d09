//! Ports that are not a vif's.

use std::sync::Arc;

use ringway_datapath::QueueCounters;
use ringway_switch::PortId;

use crate::device::UplinkRules;

/// What users are shown of the uplink, or of a trunk.
#[derive(Debug)]
pub(crate) struct OtherPort<'a> {
    /// Its number.
    pub(crate) port: PortId,
    /// Its name.
    pub(crate) name: &'a str,
    /// The counters of its queues.
    pub(crate) counters: &'a [Arc<QueueCounters>],
    /// What goes through it; `None` for a trunk, where vifs have their own rules.
    pub(crate) rules: Option<&'a UplinkRules>,
    /// Why it does not work as it should, if so.
    pub(crate) fault: Option<String>,
}
