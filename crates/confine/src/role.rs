//! The role of a process, which decides what it keeps.

use rustix::thread::CapabilitySet;

/// What a process does after it is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves vifs: a backend, or a frontend in a domain of real Xen.
    Vifs,
    /// It serves the vifs of one tenant: another process makes their network devices and passes
    /// open descriptors.
    Tenant,
    /// It serves the vifs of a guest on the emulated hypervisor. Other processes enter its network
    /// namespace to run programs there (`ringway guest exec`).
    EmulatedGuest,
    /// It is a guest behind a vhost-user socket: it connects, and passes its memory to the
    /// back-end.
    VirtioGuest,
    /// It is the emulated hypervisor and XenStore.
    Broker,
    /// It opens sockets of virtual machine monitors for a backend, at any path.
    Opener,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 6] = [
        Role::Vifs,
        Role::Tenant,
        Role::EmulatedGuest,
        Role::VirtioGuest,
        Role::Broker,
        Role::Opener,
    ];

    /// `CAP_NET_ADMIN` if the process makes network devices: a guest on a bridge gets a TAP device
    /// when it comes, which is then set up and added to the bridge, and no guest appears before the
    /// backend has started.
    pub(crate) fn capabilities(self) -> CapabilitySet {
        match self {
            Role::Vifs | Role::EmulatedGuest | Role::VirtioGuest => CapabilitySet::NET_ADMIN,
            Role::Tenant | Role::Broker => CapabilitySet::empty(),
            // Virtual machine monitors run under other users.
            Role::Opener => CapabilitySet::DAC_OVERRIDE,
        }
    }

    /// Whether it may have a directory of its own files.
    pub(crate) fn has_files(self) -> bool {
        matches!(self, Role::Vifs | Role::Tenant | Role::Opener)
    }

    /// Whether it may read the host's description again, and keep it.
    pub(crate) fn reads_description(self) -> bool {
        self == Role::Opener
    }

    /// Whether it may have sockets in a directory that it shares.
    pub(crate) fn has_sockets(self) -> bool {
        matches!(self, Role::Vifs | Role::VirtioGuest | Role::Broker)
    }

    /// Whether it creates sockets.
    pub(crate) fn creates_sockets(self) -> bool {
        matches!(self, Role::Broker | Role::Opener)
    }

    /// Whether it creates and removes them at any path.
    pub(crate) fn is_for_any_path(self) -> bool {
        self == Role::Opener
    }

    /// Whether other processes of its user may inspect it, which entering its namespaces requires.
    pub(crate) fn allows_namespace_entry(self) -> bool {
        matches!(self, Role::EmulatedGuest | Role::VirtioGuest)
    }
}
