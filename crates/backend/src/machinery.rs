//! What the host is given by this process: workers, a hypervisor, network devices and files.

use std::io;
use std::time::Instant;

use ringway_host::{Devices, Hosting, MemoryOf, Parts, Retried, Shared, World};
use ringway_host_shell::{HostKernel, NoteFiles, VifSession};
use ringway_hypervisor::Hypervisor;
use ringway_netback::{ControlRole, Interrupted, QueueParts, VifQueue};
use ringway_tap::VifOrTap;
use ringway_vhost_shell::PassedOn;
use ringway_worker::Workers;
use ringway_xenstore::{Client, Socket};

use crate::vif_or_trunk::VifOrTrunk;

/// A queue of a vif, of a trunk or of a TAP device.
pub(crate) type AnyQueue<H> =
    VifOrTap<VifOrTrunk<VifQueue<<H as Hypervisor>::Memory, <H as Hypervisor>::Event>>>;

/// All of it, apart from XenStore.
pub(crate) struct Machinery<H: Hypervisor> {
    pub(crate) hypervisor: H,
    pub(crate) workers: Workers<AnyQueue<H>>,
    /// The network devices of vifs and of the uplink.
    pub(crate) devices: Devices<HostKernel>,
    pub(crate) notes: Retried<NoteFiles>,
}

/// What serves a vif.
pub(crate) type HostingOf<'a, H> = Hosting<'a, Machinery<H>>;

impl<H: Hypervisor> Machinery<H> {
    pub(crate) fn parts<'a>(&'a mut self, store: &'a mut Client) -> Parts<'a, Machinery<H>> {
        let Machinery { hypervisor, workers: engines, devices, notes } = self;
        Parts { store, engines, hypervisor, devices, notes }
    }

    pub(crate) fn hosting<'a>(&'a mut self, shared: &'a mut Shared) -> HostingOf<'a, H> {
        let Machinery { hypervisor, workers: engines, devices, notes } = self;
        Hosting { shared, engines, hypervisor, devices, notes, now: Instant::now() }
    }
}

impl<H: Hypervisor> World for Machinery<H> {
    type Engines = Workers<AnyQueue<H>>;
    type Store = Socket;
    type Hypervisor = H;
    type Kernel = HostKernel;
    type Notes = Retried<NoteFiles>;
    type Session = VifSession<AnyQueue<H>, PassedOn>;

    fn vif_queue(
        parts: QueueParts<H::Memory, H::Event>,
        lent: Option<MemoryOf<Self>>,
        control: ControlRole<H::Event>,
        interrupted: &mut Interrupted,
        _engines: &mut Workers<AnyQueue<H>>,
    ) -> io::Result<AnyQueue<H>> {
        let mut queue = VifQueue::attach(parts).map_err(io::Error::other)?;
        *interrupted += queue.interrupted();
        if let Some(memory) = lent {
            queue.lend_pages(memory);
        }
        queue.join_control(control).map_err(io::Error::other)?;
        Ok(VifOrTap::Vif(VifOrTrunk::Vif(queue)))
    }
}
