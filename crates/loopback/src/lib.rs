//! A hypervisor within one process: domains, grants and event channels as plain data.
//!
//! It is for simulations and tests that run both ends of a vif in one thread. It has no thread, no
//! clock, no descriptor and no randomness, so a program that makes the same calls sees the same
//! results. Pages are memory of the heap.
//!
//! [`Loopback`] is the machine: it creates and destroys domains, lets calls fail at the
//! [`FaultPoint`]s that a plan names, and counts what each domain holds. [`LoopbackDomain`] is one
//! domain's view of it, and implements the hypervisor port. It passes the conformance suite.
//!
//! ```
//! use ringway_hypervisor::{Access, GrantTable, Hypervisor};
//! use ringway_loopback::{Fault, FaultPoint, Holdings, Limits, Loopback};
//! use ringway_wire::DomId;
//!
//! let (host, guest) = (DomId(0), DomId(7));
//! let machine = Loopback::new();
//! let back = machine.create_domain(host, Limits::default())?;
//! let front = machine.create_domain(guest, Limits::default())?;
//! machine.add_fault(Fault { domid: guest, point: FaultPoint::Share, nth: 2 });
//!
//! let mut grants = front.grants()?;
//! let pages = grants.share(host, 3, Access::ReadWrite)?;
//! assert!(grants.share(host, 1, Access::ReadOnly).is_err(), "the second time it fails");
//!
//! let channel = front.alloc_unbound(host)?;
//! let other_end = back.bind_interdomain(guest, ringway_hypervisor::EventChannel::port(&channel))?;
//! assert_eq!(machine.pending_ports(host).len(), 1, "a new binding is pending");
//!
//! grants.end(pages).expect("the pages are not in use");
//! drop((channel, other_end));
//! assert_eq!(machine.holdings(), Holdings::default(), "everything is released");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! What differs from Xen:
//! 1. Pages live as long as a handle to them. A page whose run was ended while it was mapped is
//!    not given out again, and counts as kept.
//! 2. A page that is mapped read-only can be written; on Xen that would fault.
//! 3. An event is never masked: the simulator delivers it by reading
//!    [`pending_ports`](Loopback::pending_ports) when it chooses to.

mod domain;
mod event;
mod fault;
mod grants;
mod hypervisor;
mod memory;
mod state;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_wire::{DomId, EvtchnPort, GrantRef};

pub use domain::{Holdings, Limits};
pub use event::LoopbackEvent;
pub use fault::{Fault, FaultPoint};
pub use grants::LoopbackGrants;
pub use hypervisor::LoopbackDomain;
pub use memory::LoopbackMemory;

use domain::Domain;
use state::State;

/// The machine. Clones are handles on the same one.
#[derive(Debug, Clone, Default)]
pub struct Loopback(Arc<Mutex<State>>);

impl Loopback {
    /// A machine without domains and without faults.
    pub fn new() -> Loopback {
        Loopback::default()
    }

    /// Creates a domain, which lives until it is destroyed.
    ///
    /// # Errors
    /// Of kind `AlreadyExists` if a living domain has the number.
    pub fn create_domain(&self, domid: DomId, limits: Limits) -> io::Result<LoopbackDomain> {
        let index = self.state().create(domid, limits)?;
        Ok(LoopbackDomain::new(self.clone(), domid, index))
    }

    /// Destroys a domain, whatever it is doing. Its ports close, and the other ends of its channels
    /// stay open without one. Its grants are gone: a copy from its pages reports
    /// `GNTST_bad_domain`, and mapping one reports `NotFound`. A page that is mapped already stays
    /// readable until it is unmapped. Its own handles report `NotConnected`. Does nothing if there
    /// is no such domain.
    pub fn destroy_domain(&self, domid: DomId) {
        let mut state = self.state();
        if let Some(index) = state.find(domid) {
            state.destroy(index);
        }
    }

    /// Whether a domain of this number lives. A domain may also die of [`FaultPoint::Death`].
    pub fn is_alive(&self, domid: DomId) -> bool {
        self.state().find(domid).is_some()
    }

    /// Adds a fault to the plan. The domain need not exist yet. A passage in the past has no
    /// effect.
    pub fn add_fault(&self, fault: Fault) {
        self.state().add_fault(fault);
    }

    /// Adds a fault at the next passage of a point.
    pub fn fail_next(&self, domid: DomId, point: FaultPoint) {
        let nth = self.passages(domid, point) + 1;
        self.add_fault(Fault { domid, point, nth });
    }

    /// How often a point was passed for the domain that has this number or had it last, including
    /// failed passages.
    pub fn passages(&self, domid: DomId, point: FaultPoint) -> u64 {
        self.state().latest(domid).map_or(0, |domain| domain.passages.count(point))
    }

    /// Faults of the plan that have not happened, in the order they were added.
    pub fn faults_left(&self) -> Vec<Fault> {
        self.state().faults_left().to_vec()
    }

    /// Withdraws a grant while its peer may be using it, as a hostile guest does.
    pub fn revoke(&self, domid: DomId, gref: GrantRef) {
        let mut state = self.state();
        if let Some(index) = state.find(domid) {
            state.domain_mut(index).revoke(gref);
        }
    }

    /// The ports of a domain that have an event pending, in order.
    pub fn pending_ports(&self, domid: DomId) -> Vec<EvtchnPort> {
        let state = self.state();
        let Some(domain) = state.latest(domid) else { return Vec::new() };
        let pending = domain.ports().filter(|(_, port)| port.is_pending);
        pending.map(|(number, _)| number).collect()
    }

    /// Whether an event is pending at this port.
    pub fn is_pending(&self, domid: DomId, port: EvtchnPort) -> bool {
        let mut state = self.state();
        let index = state.find(domid);
        let port = index.and_then(|index| state.domain_mut(index).port_mut(port));
        port.is_some_and(|port| port.is_pending)
    }

    /// Makes a port pending without an event from a domain. Does nothing if it is not open.
    pub fn raise(&self, domid: DomId, port: EvtchnPort) {
        let mut state = self.state();
        let index = state.find(domid);
        if let Some(port) = index.and_then(|index| state.domain_mut(index).port_mut(port)) {
            port.is_pending = true;
        }
    }

    /// What the domain that has this number, or had it last, holds.
    pub fn holdings_of(&self, domid: DomId) -> Holdings {
        self.state().latest(domid).map(Domain::holdings).unwrap_or_default()
    }

    /// What all domains together hold.
    pub fn holdings(&self) -> Holdings {
        let mut holdings = Holdings::default();
        self.state().domains().for_each(|domain| holdings += domain.holdings());
        holdings
    }

    /// Copies that the domain asked for beyond the end of a foreign page. Here only the operation
    /// fails; on Xen the whole call would, so a correct backend submits none.
    pub fn copies_out_of_page(&self, domid: DomId) -> u64 {
        self.state().latest(domid).map_or(0, |domain| domain.copies_out_of_page)
    }

    /// Operations that Linux's grant device would make of the domain's copies: one for each page of
    /// its own that a copy touches.
    pub fn copy_operations(&self, domid: DomId) -> usize {
        self.state().latest(domid).map_or(0, |domain| domain.copy_operations)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
