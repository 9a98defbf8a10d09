//! The hypervisor under a hostile guest: the emulated one, or Xen, chosen when it starts.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ringway_emu::{EmuEvent, EmuHypervisor};
use ringway_hypervisor::{Access, EventChannel, GrantTable, GrantedPages, Hypervisor};
use ringway_sys::poll::wait_readable;
use ringway_wire::{DomId, EvtchnPort, GrantRef};
use ringway_xen::{XenEvent, XenHypervisor};

/// How long another part of the host may take for a step that takes milliseconds on an idle host.
pub const SOON: Duration = Duration::from_secs(60);
/// How long to wait for an event before the guest checks whether its time is up.
const PAUSE: Duration = Duration::from_millis(2);

/// Which hypervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HypervisorKind {
    /// On a host of `ringway run`, named by --dir
    Emulated,
    /// In this Xen domain
    Xen,
}

/// The guest's domain.
#[derive(Debug)]
pub enum Machine {
    /// On the emulated hypervisor.
    Emulated(EmuHypervisor),
    /// On Xen, through its devices in `/dev/xen`.
    Xen(XenHypervisor),
}

/// One end of an event channel.
#[derive(Debug)]
pub enum Event {
    /// On the emulated hypervisor.
    Emulated(EmuEvent),
    /// On Xen.
    Xen(XenEvent),
}

impl Machine {
    /// The domain.
    pub fn domid(&self) -> DomId {
        match self {
            Machine::Emulated(machine) => machine.domid(),
            Machine::Xen(machine) => machine.domid(),
        }
    }

    /// Takes pages and grants each to a peer.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` if pages or grants run out.
    pub fn share(&self, peer: DomId, count: usize, access: Access) -> io::Result<GrantedPages> {
        match self {
            Machine::Emulated(machine) => machine.grants()?.share(peer, count, access),
            Machine::Xen(machine) => machine.grants()?.share(peer, count, access),
        }
    }

    /// Ends grants, as far as the peer has released the pages.
    pub fn end(&self, granted: GrantedPages) {
        // Pages that are still in use are lost to this guest, which affects only itself.
        let _ = match self {
            Machine::Emulated(machine) => machine.grants().map(|mut it| it.end(granted)),
            Machine::Xen(machine) => machine.grants().map(|mut it| it.end(granted)),
        };
    }

    /// Ends one grant of a run and keeps the rest. Returns false if a program cannot: on Xen the
    /// kernel ends the grants of a run together.
    pub fn revoke(&self, gref: GrantRef) -> bool {
        match self {
            Machine::Emulated(machine) => {
                machine.grants().is_ok_and(|mut grants| grants.end_access(gref).is_ok())
            }
            Machine::Xen(_) => false,
        }
    }

    /// Creates a port to which a peer may bind.
    ///
    /// # Errors
    /// If no ports are left.
    pub fn alloc_unbound(&self, peer: DomId) -> io::Result<Event> {
        match self {
            Machine::Emulated(machine) => machine.alloc_unbound(peer).map(Event::Emulated),
            Machine::Xen(machine) => machine.alloc_unbound(peer).map(Event::Xen),
        }
    }
}

impl Event {
    /// The port number for the peer.
    pub fn port(&self) -> EvtchnPort {
        match self {
            Event::Emulated(event) => event.port(),
            Event::Xen(event) => event.port(),
        }
    }

    /// Makes the other end pending. A missing other end is ignored.
    pub fn notify(&self) {
        let _ = match self {
            Event::Emulated(event) => event.notify(),
            Event::Xen(event) => event.notify(),
        };
    }

    /// Clears a pending event.
    pub fn ack(&self) {
        let _ = match self {
            Event::Emulated(event) => event.ack(),
            Event::Xen(event) => event.ack(),
        };
    }

    /// Waits for an event, for two milliseconds at most.
    pub fn rest(&self) {
        match self.waker() {
            Some(waker) => {
                let _ = wait_readable(&waker, Some(PAUSE));
            }
            // waits: this event has no descriptor to wait for.
            None => std::thread::sleep(PAUSE),
        }
    }

    /// The descriptor that becomes readable with an event.
    pub fn waker(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Event::Emulated(event) => event.waker(),
            Event::Xen(event) => event.waker(),
        }
    }
}
