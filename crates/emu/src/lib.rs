//! The emulated hypervisor, for any Linux machine.
//!
//! A small [`Broker`] process owns the domains. The backend (domain 0, or a driver domain) and
//! every guest are separate processes, each connected to the broker by one socket. So killing one
//! has real consequences: its event channels close, its uses of other domains' grants end, and its
//! domain dies. [`EmuHypervisor`] is such a connection, and implements the hypervisor port.
//!
//! - Guest memory is a memfd that cannot be resized, so no access to it can fault.
//! - The grant table is another memfd, with real v1 entries. The owner writes the entries; the peer
//!   sets `GTF_reading` and `GTF_writing` while it uses the frame. Neither contacts the broker.
//! - Event channels are pairs of sockets, an end for each side. The broker creates them and is not
//!   involved afterwards.
//!
//! XenStore is not served here; [`Broker::on_change`] notifies its server of domains.
//!
//! What is weaker than on Xen, and why that is acceptable:
//! 1. A backend checks the grants itself, and can access all of the guest's memory. On Xen the
//!    hypervisor checks, in well under a microsecond; a request to the broker would take several
//!    for each batch. A backend in domain 0 is trusted there as well; a driver domain is not.
//! 2. All these processes belong to one user (the sockets have mode 0600), who could just as well
//!    kill the backend. `ringway-confine` limits their privileges.
//!
//! Read `protocol.rs` first, then `domains.rs` for the rules, `table.rs` for the life of a grant.

mod broker;
mod connection;
mod domains;
mod event;
mod grants;
mod hypervisor;
mod memory;
mod peers;
mod protocol;
mod socket;
mod span;
mod table;

pub use broker::{Broker, BrokerHandle};
pub use domains::{
    DOMAINS_MAX, DomainEvent, DomainInfo, DomainState, GUEST_PORTS_MAX, MEMORY_BYTES_MAX,
    NewDomain, Role,
};
pub use event::EmuEvent;
pub use grants::{EmuGrants, OwnPages};
pub use hypervisor::EmuHypervisor;
pub use memory::EmuMemory;
