//! What a process serves by: a network device that it keeps itself, or one whose queues another
//! process has passed to it.

use std::io;
use std::ops::{Deref, DerefMut};

use ringway_tap::Tap;

use super::{Followed, HostDevice};

/// A network device, as a process serves by it.
pub(crate) struct Device {
    pub(crate) tap: Tap,
    /// Its MTU, apart from what its guest uses since before that was lowered.
    pub(crate) mtu: u32,
    /// Queues that the device was created with: no more can be in use.
    pub(crate) queues_made: u16,
    /// What the device is attached to, as configured.
    pub(crate) attached_to: String,
    /// Whether it was made again, and its queues are not attached yet.
    pub(crate) is_detached: bool,
    /// Why it does not work as it should, if so.
    pub(crate) fault: Option<String>,
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
        Device { tap, mtu, queues_made, attached_to, is_detached: false, fault: None }
    }

    /// Shows users why it does not work as it should, if so, and logs that once.
    pub(super) fn show(&mut self, name: &str, outcome: io::Result<()>) -> Followed {
        let fault = outcome.err().map(|error| error.to_string());
        if let Some(fault) = fault.as_ref().filter(|fault| self.fault.as_ref() != Some(*fault)) {
            tracing::warn!(name, "{fault}");
        }
        self.fault = fault;
        if self.fault.is_some() { Followed::Again } else { Followed::Done }
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

    /// Shows users why it does not work as it should, if so, and logs that once.
    pub(crate) fn show(&mut self, outcome: io::Result<()>) -> Followed {
        match self {
            VifDevice::Kept(device) => device.show(outcome),
            VifDevice::Passed(device) => {
                let name = device.tap.name().to_owned();
                device.show(&name, outcome)
            }
        }
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
