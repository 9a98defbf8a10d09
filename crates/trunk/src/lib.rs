//! Trunks: the rings between the process of a tenant and the switch process.
//!
//! A trunk is a vif whose two ends are processes of one host: the tenant's process is its frontend
//! and the switch process its backend, each with the code that serves guests. Memory that both ends
//! map replaces the hypervisor's grants, and socket pairs replace its event channels.
//!
//! A third process starts the two, makes everything that they share ([`Trunk::make`]) and gives
//! each its part. So the switch process takes no descriptor from a tenant's process: the memory
//! cannot be resized while mapped, and the other end cannot change flags of what it waits for or
//! writes to. The rings have fixed places ([`queue_pages`]), so the two ends exchange no messages
//! either.
//!
//! The switch process trusts a tenant's process as little as a backend trusts a guest: every page
//! of a trunk may contain anything at any moment. Read [`Trunk`] first.

mod bell;
mod grants;
mod hypervisor;
mod memory;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_hypervisor::{Access, ForeignMemory, ForeignPage, QueueEvents};
use ringway_sys::SharedPages;
use ringway_wire::netif::{RX_RING_SLOTS, TX_RING_SLOTS};
use ringway_wire::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub use bell::TrunkEvent;
pub use grants::TrunkGrants;
pub use hypervisor::Trunks;
pub use memory::TrunkMemory;

/// Queues that a trunk may have.
pub const QUEUES_MAX: u16 = 16;

/// The domid by which each end names the other: a trunk involves no domains.
pub const PEER: DomId = DomId(0);

/// Pages of a queue: its two rings, and a page for each of their slots.
const PAGES_PER_QUEUE: usize = 2 + TX_RING_SLOTS + RX_RING_SLOTS;

/// What both ends share, before it is split.
#[derive(Debug)]
pub struct Trunk {
    memory: OwnedFd,
    queues: Vec<(OwnedFd, OwnedFd)>,
}

/// Descriptors of one end.
#[derive(Debug)]
pub struct End {
    memory: OwnedFd,
    bells: Vec<OwnedFd>,
}

/// The tenant's end: the parts of a frontend's queue.
pub struct TenantQueue {
    /// The pages that it may use.
    pub grants: TrunkGrants,
    /// Its events.
    pub events: QueueEvents<TrunkEvent>,
}

/// The switch process's end: the parts of a backend's queue.
pub struct SwitchQueue {
    /// The memory of the trunk.
    pub memory: TrunkMemory,
    /// The ring by which the tenant transmits.
    pub tx_ring: ForeignPage,
    /// The ring by which it receives.
    pub rx_ring: ForeignPage,
    /// Its events.
    pub events: QueueEvents<TrunkEvent>,
}

/// The pages of a queue, by their numbers in the trunk's memory: the tx ring is the first, the rx
/// ring the second.
pub fn queue_pages(queue: usize) -> Range<usize> {
    queue * PAGES_PER_QUEUE..(queue + 1) * PAGES_PER_QUEUE
}

impl Trunk {
    /// Makes the memory and the event channels of a trunk of 1 to [`QUEUES_MAX`] queues; other
    /// numbers are clamped to this range.
    ///
    /// # Errors
    /// The system's error: no memory or descriptors are left.
    pub fn make(queues: u16) -> io::Result<Trunk> {
        let queues = queues.clamp(1, QUEUES_MAX);
        let memory = memfd_create("trunk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let bytes = queue_pages(queues.into()).start * PAGE_SIZE;
        ftruncate(&memory, u64::try_from(bytes).map_err(io::Error::other)?)?;
        // An access beyond the end of memory that has shrunk would kill the process.
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = |_| socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let queues = (0..queues).map(pair).collect::<Result<_, _>>()?;
        Ok(Trunk { memory, queues })
    }

    /// The two ends: of the tenant, and of the switch process.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn split(self) -> io::Result<(End, End)> {
        let memory = self.memory.try_clone()?;
        let (tenant, switch) = self.queues.into_iter().unzip();
        Ok((End { memory, bells: tenant }, End { memory: self.memory, bells: switch }))
    }
}

impl End {
    /// The end with these descriptors, in the order of [`fds`](End::fds).
    ///
    /// # Errors
    /// Of kind `InvalidData` if they are too few or too many.
    pub fn from_fds(fds: impl IntoIterator<Item = OwnedFd>) -> io::Result<End> {
        let mut fds = fds.into_iter();
        let memory = fds.next();
        let bells: Vec<OwnedFd> = fds.collect();
        match memory {
            Some(memory) if (1..=usize::from(QUEUES_MAX)).contains(&bells.len()) => {
                Ok(End { memory, bells })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The descriptors, in the order in which [`from_fds`](End::from_fds) takes them.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let bells = self.bells.iter().map(AsFd::as_fd);
        std::iter::once(self.memory.as_fd()).chain(bells).collect()
    }

    /// How many queues the trunk has.
    pub fn queue_count(&self) -> usize {
        self.bells.len()
    }

    fn map(&self) -> io::Result<SharedPages> {
        let bytes = queue_pages(self.bells.len()).start * PAGE_SIZE;
        SharedPages::map(&self.memory, 0, bytes)
    }

    /// The queues, for the frontend in the tenant's process.
    ///
    /// # Errors
    /// What mapping reports.
    pub fn into_tenant_queues(self) -> io::Result<Vec<TenantQueue>> {
        let pages = self.map()?;
        let queues = self.bells.into_iter().enumerate().map(|(queue, bell)| TenantQueue {
            grants: TrunkGrants::new(&pages, queue_pages(queue)),
            events: QueueEvents::Single(event(queue, bell)),
        });
        Ok(queues.collect())
    }

    /// The queues, for the backend in the switch process.
    ///
    /// # Errors
    /// What mapping reports.
    pub fn into_switch_queues(self) -> io::Result<Vec<SwitchQueue>> {
        let pages = self.map()?;
        let queue = |(queue, bell)| {
            let mut memory = TrunkMemory::new(pages.clone());
            let first = u32::try_from(queue_pages(queue).start).map_err(io::Error::other)?;
            let mut ring = |gref| memory.map(PEER, GrantRef(gref), Access::ReadWrite);
            let (tx_ring, rx_ring) = (ring(first)?, ring(first + 1)?);
            let events = QueueEvents::Single(event(queue, bell));
            Ok(SwitchQueue { memory, tx_ring, rx_ring, events })
        };
        self.bells.into_iter().enumerate().map(queue).collect()
    }
}

fn event(queue: usize, bell: OwnedFd) -> TrunkEvent {
    TrunkEvent::new(EvtchnPort(u32::try_from(queue).unwrap_or(u32::MAX)), bell)
}
