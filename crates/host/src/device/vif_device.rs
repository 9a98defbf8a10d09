//! What a process serves by: a network device that it keeps itself, or one whose queues another
//! process has passed to it.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters, Side};
use ringway_ovs::OvsBridge;

use super::kernel::{Kernel, Link, Tap};
use super::{HostDevice, Place};
use crate::comparison::Followed;

/// A network device, as a process serves by it.
#[derive(Debug)]
pub struct Device<T> {
    /// Its open files.
    pub tap: T,
    /// Its MTU, apart from what its guest uses since before that was lowered.
    pub mtu: u32,
    /// Queues that the device was created with: no more can be in use.
    pub queues_made: u16,
    /// What the device is attached to, as configured.
    pub attached_to: String,
    /// Whether it was made again, and its queues are not attached yet.
    pub is_detached: bool,
    /// Why it does not work as it should, if so.
    pub fault: Option<String>,
}

/// The network device of a vif that is served.
pub enum VifDevice<K: Kernel> {
    /// This process keeps it.
    Kept(Box<HostDevice<K>>),
    /// Another process keeps it, and has passed its queues to this one.
    Passed(Device<K::Tap>),
}

impl<T> Device<T> {
    pub(crate) fn new(tap: T, mtu: u32, queues_made: u16, attached_to: String) -> Device<T> {
        Device { tap, mtu, queues_made, attached_to, is_detached: false, fault: None }
    }

    /// Where it should be.
    pub(super) fn configured(&self, is_gone: bool) -> Place {
        Place { attached_to: self.attached_to.clone(), is_down: false, is_gone }
    }

    /// Shows users why it does not work as it should, if so, and logs that once.
    pub(crate) fn show(&mut self, name: &str, outcome: io::Result<()>) -> Followed {
        let fault = outcome.err().map(|error| error.to_string());
        if let Some(fault) = fault.as_ref().filter(|fault| self.fault.as_ref() != Some(*fault)) {
            tracing::warn!(name, "{fault}");
        }
        self.fault = fault;
        if self.fault.is_some() { Followed::Again } else { Followed::Done }
    }
}

impl<K: Kernel> VifDevice<K> {
    /// What this process keeps of it.
    pub fn kept(&self) -> Option<&HostDevice<K>> {
        match self {
            VifDevice::Kept(device) => Some(device),
            VifDevice::Passed(_) => None,
        }
    }

    /// The bridge of Open vSwitch that it is for, if it is for one.
    pub(crate) fn ovs(&self) -> Option<&OvsBridge> {
        self.kept()?.ovs.as_ref()
    }

    /// Where it is: see [`HostDevice::place`].
    pub(crate) fn place(&self, links: Option<&[Link]>) -> Place {
        match self {
            VifDevice::Kept(device) => device.place(links),
            // Its keeper knows better.
            VifDevice::Passed(device) => device.configured(device.tap.is_deleted()),
        }
    }

    /// Its present name.
    pub fn name(&self) -> String {
        match self {
            VifDevice::Kept(device) => device.seen_name().to_owned(),
            VifDevice::Passed(device) => device.tap.name().to_owned(),
        }
    }

    /// Whether it was deleted while its queues were in use.
    pub fn is_deleted(&self) -> bool {
        self.tap.is_deleted()
    }

    /// Enables the first `count` queues and disables the others, and sets the work that it may
    /// leave to the guest.
    ///
    /// # Errors
    /// It was deleted, or was made with fewer queues.
    pub fn enable(&mut self, count: u16, caps: OffloadCaps) -> io::Result<()> {
        self.tap.set_enabled(count)?;
        self.tap.set_offloads(caps)
    }

    /// Its enabled queues, with their counters.
    pub fn queues(&self, counters: &[Arc<QueueCounters>]) -> Vec<<K::Tap as Tap>::Queue> {
        self.tap.queues(Side::Host, counters)
    }
}

impl<K: Kernel> Deref for VifDevice<K> {
    type Target = Device<K::Tap>;

    fn deref(&self) -> &Device<K::Tap> {
        match self {
            VifDevice::Kept(device) => device,
            VifDevice::Passed(device) => device,
        }
    }
}

impl<K: Kernel> DerefMut for VifDevice<K> {
    fn deref_mut(&mut self) -> &mut Device<K::Tap> {
        match self {
            VifDevice::Kept(device) => device,
            VifDevice::Passed(device) => device,
        }
    }
}
