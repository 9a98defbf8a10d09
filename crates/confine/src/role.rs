//! What a process is there for, which decides what it keeps.

use rustix::thread::CapabilitySet;

/// What a process does after it is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves vifs: a backend, or a frontend in a domain of real Xen.
    Vifs,
    /// It serves the vifs of a guest on the emulated hypervisor. Others enter its network namespace
    /// to run programs there (`ringway guest exec`).
    EmulatedGuest,
    /// It is a guest behind a vhost-user socket: it dials, and passes its memory on.
    VirtioGuest,
    /// It is the emulated hypervisor, and XenStore.
    Broker,
    /// It opens sockets of virtual machine monitors for a backend, wherever they are.
    Opener,
}

impl Role {
    /// `CAP_NET_ADMIN` where vifs are served: a guest on a bridge gets a TAP device when it comes,
    /// which is then set up and put on its bridge, and no guest announces itself before the backend
    /// has started.
    pub(crate) fn capabilities(self) -> CapabilitySet {
        match self {
            Role::Vifs | Role::EmulatedGuest | Role::VirtioGuest => CapabilitySet::NET_ADMIN,
            Role::Broker => CapabilitySet::empty(),
            // Virtual machine monitors run as users of their own.
            Role::Opener => CapabilitySet::DAC_OVERRIDE,
        }
    }

    /// Whether it makes and removes sockets outside of its directory.
    pub(crate) fn makes_sockets(self) -> bool {
        self == Role::Opener
    }

    /// Whether other processes of its user may inspect it, which entering its namespaces takes.
    pub(crate) fn is_entered(self) -> bool {
        matches!(self, Role::EmulatedGuest | Role::VirtioGuest)
    }
}
