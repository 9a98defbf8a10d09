//! What is around the host: everything that it does not decide itself.
//!
//! A [`World`] is a family of types. Its instances belong to the process, or to a simulation, which
//! passes them as [`Parts`] to each call.

use std::io;
use std::time::Instant;

use ringway_engine::steps::Engines;
use ringway_hypervisor::Hypervisor;
use ringway_netback::{ControlRole, Interrupted, QueueParts};
use ringway_xenstore::{Client, Transport};

use crate::device::{Devices, Kernel, Tap, VifDevice};
use crate::notes::Notes;
use crate::session::Session;
use crate::shared::Shared;

/// The kinds of things that a host uses.
pub trait World: Sized {
    /// The engines that move frames.
    type Engines: Engines;
    /// The connection to XenStore.
    type Store: Transport;
    /// The hypervisor.
    type Hypervisor: Hypervisor;
    /// The kernel with the network devices of vifs that are not on the switch.
    type Kernel: Kernel<Tap: Tap<Queue: Into<QueueOf<Self>>>>;
    /// Notes for the next process.
    type Notes: Notes;
    /// The sessions of virtio vifs.
    type Session: Session<QueueOf<Self>>;

    /// Makes a queue of a vif, which adds to `interrupted` what an earlier backend has left in its
    /// rings. With `lent`, frames may stay in pages of the guest: another handle like that in
    /// `parts`. `control` is the queue's part in the vif's control ring.
    ///
    /// # Errors
    /// The guest's rings are invalid, or the engines are gone.
    fn vif_queue(
        parts: QueueParts<MemoryOf<Self>, EventOf<Self>>,
        lent: Option<MemoryOf<Self>>,
        control: ControlRole<EventOf<Self>>,
        interrupted: &mut Interrupted,
        engines: &mut Self::Engines,
    ) -> io::Result<QueueOf<Self>>;
}

/// A queue of the engines of a world.
pub type QueueOf<W> = <<W as World>::Engines as Engines>::Queue;
/// A network device of a world.
pub type DeviceOf<W> = VifDevice<<W as World>::Kernel>;
/// What the session of a virtio vif of a world learns.
pub type SessionEventOf<W> = <<W as World>::Session as Session<QueueOf<W>>>::Event;
/// A handle on the memory of guests of a world.
pub type MemoryOf<W> = <<W as World>::Hypervisor as Hypervisor>::Memory;
/// An event channel of a world.
pub type EventOf<W> = <<W as World>::Hypervisor as Hypervisor>::Event;

/// The parts of a world, for one call.
pub struct Parts<'a, W: World> {
    /// XenStore.
    pub store: &'a mut Client<W::Store>,
    /// The engines.
    pub engines: &'a mut W::Engines,
    /// The hypervisor.
    pub hypervisor: &'a W::Hypervisor,
    /// Network devices.
    pub devices: &'a mut Devices<W::Kernel>,
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
    pub devices: &'a mut Devices<W::Kernel>,
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
