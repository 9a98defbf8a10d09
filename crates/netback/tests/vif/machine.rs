//! A machine within this process, with one host, and one guest or several.

use ringway_hypervisor::{
    Access, EventChannel, ForeignMemory, ForeignPage, Hypervisor, QueueEvents,
};
use ringway_loopback::{
    Limits, Loopback, LoopbackDomain, LoopbackEvent, LoopbackGrants, LoopbackMemory,
};
use ringway_wire::{DomId, GrantRef};

/// The guest.
pub(crate) const GUEST: DomId = DomId(7);
/// The domain with the backend.
pub(crate) const HOST: DomId = DomId(0);

/// The machine, its host and one of its guests.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) loopback: Loopback,
    pub(crate) guest_id: DomId,
    pub(crate) guest: LoopbackDomain,
    pub(crate) host: LoopbackDomain,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine::with(Limits::default())
    }

    /// A machine whose guest has these limits.
    pub(crate) fn with(limits: Limits) -> Machine {
        let loopback = Loopback::new();
        let create = |domid, limits| loopback.create_domain(domid, limits).expect("it is new");
        let (guest, host) = (create(GUEST, limits), create(HOST, Limits::default()));
        Machine { loopback, guest_id: GUEST, guest, host }
    }

    /// The guest's own pages.
    pub(crate) fn grants(&self) -> LoopbackGrants {
        self.guest.grants().expect("a domain of this machine has grants")
    }

    /// The host's access to them.
    pub(crate) fn memory(&self) -> LoopbackMemory {
        self.host.memory().expect("a domain of this machine has memory")
    }

    /// Maps a page of the guest, as its backend does.
    pub(crate) fn map(&self, gref: GrantRef, access: Access) -> ForeignPage {
        self.memory().map(self.guest_id, gref, access).expect("the page is granted")
    }

    /// Maps both rings of a queue.
    pub(crate) fn map_rings(&self, rings: [GrantRef; 2]) -> [ForeignPage; 2] {
        rings.map(|gref| self.map(gref, Access::ReadWrite))
    }

    /// Two channels, one a direction: the guest's ends and the host's.
    pub(crate) fn channels(&self) -> (QueueEvents<LoopbackEvent>, QueueEvents<LoopbackEvent>) {
        let offer = || self.guest.alloc_unbound(HOST).expect("a port is left");
        let (tx, rx) = (offer(), offer());
        let [back_tx, back_rx] = [&tx, &rx].map(|offered| {
            let bound = self.host.bind_interdomain(self.guest_id, offered.port());
            bound.expect("the port is for the host")
        });
        (QueueEvents::Split { tx, rx }, QueueEvents::Split { tx: back_tx, rx: back_rx })
    }
}
