//! What is around the host: everything that it does not decide itself.
//!
//! A [`World`] is a family of types. Its instances belong to the process, or to a simulation, which
//! passes them as [`Parts`] to each call.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_engine::steps::Engines;
use ringway_hypervisor::Hypervisor;
use ringway_netback::{Interrupted, QueueParts};
use ringway_xenbus::{Keys, Vif};
use ringway_xenstore::{Client, Transport};

use crate::comparison::Followed;
use crate::notes::Notes;
use crate::shared::Shared;

/// The kinds of things that a host uses.
pub trait World: Sized {
    /// The engines that move frames.
    type Engines: Engines;
    /// The connection to XenStore.
    type Store: Transport;
    /// The hypervisor.
    type Hypervisor: Hypervisor;
    /// The network devices of vifs that are not on the switch.
    type Devices: Devices<Device: Device<Queue: Into<QueueOf<Self>>>>;
    /// Notes for the next process.
    type Notes: Notes;

    /// Makes a queue of a vif, which adds to `interrupted` what an earlier backend has left in its
    /// rings. With `lent`, frames may stay in pages of the guest: another handle like that in
    /// `parts`.
    ///
    /// # Errors
    /// The guest's rings are invalid, or the engines are gone.
    fn vif_queue(
        parts: QueueParts<MemoryOf<Self>, EventOf<Self>>,
        lent: Option<MemoryOf<Self>>,
        interrupted: &mut Interrupted,
        engines: &mut Self::Engines,
    ) -> io::Result<QueueOf<Self>>;
}

/// A queue of the engines of a world.
pub type QueueOf<W> = <<W as World>::Engines as Engines>::Queue;
/// A network device of a world.
pub type DeviceOf<W> = <<W as World>::Devices as Devices>::Device;
/// A handle on the memory of guests of a world.
pub type MemoryOf<W> = <<W as World>::Hypervisor as Hypervisor>::Memory;
/// An event channel of a world.
pub type EventOf<W> = <<W as World>::Hypervisor as Hypervisor>::Event;

/// The network devices of vifs that are not on the switch.
pub trait Devices {
    /// A device.
    type Device: Device;
    /// What the kernel says of all links at one time.
    type Links;

    /// Makes the device that a toolstack wants for a vif, if it wants one, or takes over that of an
    /// earlier process.
    ///
    /// # Errors
    /// Why it cannot be made, with the remedy.
    fn of_xen(&mut self, vif: Vif, keys: &Keys, queues: u16) -> io::Result<Option<Self::Device>>;

    /// Follows what has become of a device. If it was deleted, it is made again, and is then
    /// [detached](DeviceFacts::is_detached).
    ///
    /// # Errors
    /// Why it does not work as it should; that may change later.
    fn follow(&mut self, device: &mut Self::Device, links: &Self::Links) -> io::Result<()>;

    /// Removes the device of a vif that has ended.
    ///
    /// # Errors
    /// It is gone already.
    fn remove(&mut self, device: Self::Device) -> io::Result<()>;
}

/// A network device, of which a vif uses some queues.
pub trait Device {
    /// A queue, at the host's side.
    type Queue;

    /// Its present name.
    fn name(&self) -> String;

    /// What is known of it.
    fn facts(&self) -> &DeviceFacts;

    /// What is known of it, to change that.
    fn facts_mut(&mut self) -> &mut DeviceFacts;

    /// Whether it was deleted while its queues were in use.
    fn is_deleted(&self) -> bool;

    /// Enables the first `count` queues and disables the others, and sets the work that it may
    /// leave to the guest.
    ///
    /// # Errors
    /// It was deleted, or was made with fewer queues.
    fn enable(&mut self, count: u16, caps: OffloadCaps) -> io::Result<()>;

    /// Its enabled queues, with their counters.
    fn queues(&self, counters: &[Arc<QueueCounters>]) -> Vec<Self::Queue>;
}

/// What the host knows of a network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
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

impl DeviceFacts {
    /// A new device.
    pub fn new(mtu: u32, queues_made: u16, attached_to: String) -> DeviceFacts {
        DeviceFacts { mtu, queues_made, attached_to, is_detached: false, fault: None }
    }

    /// Shows users why it does not work as it should, if so, and logs that once.
    pub fn show(&mut self, name: &str, outcome: io::Result<()>) -> Followed {
        let fault = outcome.err().map(|error| error.to_string());
        if let Some(fault) = fault.as_ref().filter(|fault| self.fault.as_ref() != Some(*fault)) {
            tracing::warn!(name, "{fault}");
        }
        self.fault = fault;
        if self.fault.is_some() { Followed::Again } else { Followed::Done }
    }
}

/// The parts of a world, for one call.
pub struct Parts<'a, W: World> {
    /// XenStore.
    pub store: &'a mut Client<W::Store>,
    /// The engines.
    pub engines: &'a mut W::Engines,
    /// The hypervisor.
    pub hypervisor: &'a W::Hypervisor,
    /// Network devices.
    pub devices: &'a mut W::Devices,
    /// Notes.
    pub notes: &'a mut W::Notes,
}

/// What serves a vif, apart from XenStore.
pub struct Hosting<'a, W: World> {
    /// What all vifs share.
    pub shared: &'a mut Shared,
    /// The engines.
    pub engines: &'a mut W::Engines,
    /// The hypervisor.
    pub hypervisor: &'a W::Hypervisor,
    /// Network devices.
    pub devices: &'a mut W::Devices,
    /// Notes.
    pub notes: &'a mut W::Notes,
    /// The present time.
    pub now: Instant,
}

impl<W: World> Parts<'_, W> {
    /// XenStore, and the rest for a vif.
    pub fn split<'a>(
        &'a mut self,
        shared: &'a mut Shared,
        now: Instant,
    ) -> (&'a mut Client<W::Store>, Hosting<'a, W>) {
        let hosting = Hosting {
            shared,
            engines: &mut *self.engines,
            hypervisor: self.hypervisor,
            devices: &mut *self.devices,
            notes: &mut *self.notes,
            now,
        };
        (&mut *self.store, hosting)
    }
}
