//! What a process serves by: a network device that it keeps itself, or one whose queues another
//! process has passed to it.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_host::DeviceFacts;
use ringway_tap::{Side, Tap, TapQueue};

use super::HostDevice;

/// A network device, as a process serves by it.
pub(crate) struct Device {
    pub(crate) tap: Tap,
    facts: DeviceFacts,
}

/// The network device of a vif that is served.
pub(crate) enum VifDevice {
    /// This process keeps it.
    Kept(Box<HostDevice>),
    /// Another process keeps it, and has passed its queues to this one.
    Passed(Device),
}

impl Device {
    pub(crate) fn new(tap: Tap, mtu: u32, queues_made: u16, attached_to: String) -> Device {
        Device { tap, facts: DeviceFacts::new(mtu, queues_made, attached_to) }
    }
}

impl VifDevice {
    /// What this process keeps of it.
    pub(crate) fn kept(&self) -> Option<&HostDevice> {
        match self {
            VifDevice::Kept(device) => Some(device),
            VifDevice::Passed(_) => None,
        }
    }
}

impl ringway_host::Device for VifDevice {
    type Queue = TapQueue;

    fn name(&self) -> String {
        match self {
            VifDevice::Kept(device) => device.seen_name().to_owned(),
            VifDevice::Passed(device) => device.tap.name().to_owned(),
        }
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn facts_mut(&mut self) -> &mut DeviceFacts {
        &mut self.facts
    }

    fn is_deleted(&self) -> bool {
        self.tap.is_deleted()
    }

    fn enable(&mut self, count: u16, caps: OffloadCaps) -> io::Result<()> {
        self.tap.set_enabled(count)?;
        self.tap.set_offloads(caps)
    }

    fn queues(&self, counters: &[Arc<QueueCounters>]) -> Vec<TapQueue> {
        self.tap.queues(Side::Host, |queue| Arc::clone(&counters[queue]))
    }
}

impl Deref for Device {
    type Target = DeviceFacts;

    fn deref(&self) -> &DeviceFacts {
        &self.facts
    }
}

impl DerefMut for Device {
    fn deref_mut(&mut self) -> &mut DeviceFacts {
        &mut self.facts
    }
}

impl Deref for VifDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        match self {
            VifDevice::Kept(device) => device,
            VifDevice::Passed(device) => device,
        }
    }
}

impl DerefMut for VifDevice {
    fn deref_mut(&mut self) -> &mut Device {
        match self {
            VifDevice::Kept(device) => device,
            VifDevice::Passed(device) => device,
        }
    }
}
