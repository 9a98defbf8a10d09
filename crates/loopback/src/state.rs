//! The whole machine: its domains and its plan of faults.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use ringway_hypervisor::{Access, GrantStatus, PageCopy};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, EvtchnPort, GrantRef};

use crate::domain::{Domain, DomainIndex, Limits, OtherEnd, Port};
use crate::fault::{Fault, FaultPoint};

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Living and dead domains, in order of creation: an index is never reused.
    domains: Vec<Domain>,
    living: BTreeMap<DomId, DomainIndex>,
    plan: Vec<Fault>,
}

/// Identifies a mapping, to end it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MappingId {
    mapper: DomainIndex,
    owner: DomainIndex,
    gref: GrantRef,
    serial: u64,
}

impl State {
    pub(crate) fn create(&mut self, domid: DomId, limits: Limits) -> io::Result<DomainIndex> {
        if self.living.contains_key(&domid) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let index = DomainIndex(self.domains.len());
        self.domains.push(Domain::new(domid, limits));
        self.living.insert(domid, index);
        Ok(index)
    }

    /// Closes ports, and ends grants and mappings.
    pub(crate) fn destroy(&mut self, index: DomainIndex) {
        let domain = &mut self.domains[index.0];
        if !domain.is_alive {
            return;
        }
        self.living.remove(&domain.domid);
        let ports: Vec<EvtchnPort> = domain.ports().map(|(port, _)| port).collect();
        for port in ports {
            self.close(index, port);
        }
        self.domains[index.0].die();
        for domain in &mut self.domains {
            domain.unmap_all_of(index);
        }
    }

    /// The living domain of this number.
    pub(crate) fn find(&self, domid: DomId) -> Option<DomainIndex> {
        self.living.get(&domid).copied()
    }

    /// The domain that has this number, or had it last.
    pub(crate) fn latest(&self, domid: DomId) -> Option<&Domain> {
        self.domains.iter().rev().find(|domain| domain.domid == domid)
    }

    pub(crate) fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    /// The calling domain of an operation, which must be alive.
    pub(crate) fn caller(&mut self, index: DomainIndex) -> io::Result<&mut Domain> {
        let domain = &mut self.domains[index.0];
        if domain.is_alive { Ok(domain) } else { Err(ErrorKind::NotConnected.into()) }
    }

    pub(crate) fn add_fault(&mut self, fault: Fault) {
        self.plan.push(fault);
    }

    pub(crate) fn faults_left(&self) -> &[Fault] {
        &self.plan
    }

    /// Passes a point; true if it fails this time.
    pub(crate) fn fails(&mut self, index: DomainIndex, point: FaultPoint) -> bool {
        let domain = &mut self.domains[index.0];
        let fault = Fault { domid: domain.domid, point, nth: domain.passages.pass(point) };
        let place = self.plan.iter().position(|planned| *planned == fault);
        if let Some(place) = place {
            self.plan.remove(place);
        }
        place.is_some()
    }

    /// The owner of pages that `user` is about to use, or `None` if there is no such domain any
    /// more.
    pub(crate) fn owner(&mut self, domid: DomId) -> Option<DomainIndex> {
        let owner = self.find(domid)?;
        if self.fails(owner, FaultPoint::Death) {
            self.destroy(owner);
            return None;
        }
        Some(owner)
    }

    /// The page of a copy.
    pub(crate) fn copied_page(
        &mut self,
        owner: DomainIndex,
        user: DomId,
        gref: GrantRef,
        access: Access,
    ) -> Result<&SharedPages, GrantStatus> {
        if self.fails(owner, FaultPoint::Copy) {
            return Err(GrantStatus::GeneralError);
        }
        Ok(&self.domains[owner.0].permit(gref, user, access)?.page)
    }

    /// Copies from a page of any domain to one of `target`.
    pub(crate) fn copy_across(
        &mut self,
        target: DomainIndex,
        user: DomId,
        op: &PageCopy,
    ) -> Result<(), GrantStatus> {
        let source = self.owner(op.from).ok_or(GrantStatus::BadDomain)?;
        let from = self.copied_page(source, user, op.from_gref, Access::ReadOnly)?.clone();
        let to = self.copied_page(target, user, op.to_gref, Access::ReadWrite)?;
        from.copy_across(op.from_offset.into(), to, op.to_offset.into(), op.len.into());
        Ok(())
    }

    pub(crate) fn map(
        &mut self,
        mapper: DomainIndex,
        peer: DomId,
        gref: GrantRef,
        access: Access,
    ) -> io::Result<(SharedPages, MappingId)> {
        let user = self.caller(mapper)?.domid;
        let owner = self.owner(peer).ok_or(ErrorKind::NotFound)?;
        if self.fails(owner, FaultPoint::Map) {
            return Err(io::Error::other("a planned fault refused to map"));
        }
        let permitted = self.domains[owner.0].permit(gref, user, access);
        let grant = permitted.map_err(|status| match status {
            GrantStatus::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::NotFound,
        })?;
        grant.mappings += 1;
        grant.mapper = Some(mapper);
        let (page, serial) = (grant.page.clone(), grant.serial);
        self.domains[mapper.0].mappings += 1;
        Ok((page, MappingId { mapper, owner, gref, serial }))
    }

    pub(crate) fn unmap(&mut self, mapping: MappingId) {
        let MappingId { mapper, owner, gref, serial } = mapping;
        let mapper = &mut self.domains[mapper.0];
        if !mapper.is_alive {
            // Its death has ended the mapping.
            return;
        }
        mapper.mappings -= 1;
        // The entry may be another grant by now: its owner can withdraw it at any time.
        match self.domains[owner.0].find_mut(gref) {
            Some(grant) if grant.serial == serial => grant.mappings -= 1,
            _ => {}
        }
    }

    pub(crate) fn offer(&mut self, index: DomainIndex, remote: DomId) -> io::Result<EvtchnPort> {
        self.caller(index)?;
        if self.fails(index, FaultPoint::OfferPort) {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        self.domains[index.0].open_port(Port {
            remote,
            other: None,
            is_pending: false,
            is_doubled: false,
        })
    }

    pub(crate) fn bind(
        &mut self,
        index: DomainIndex,
        remote: DomId,
        port: EvtchnPort,
    ) -> io::Result<EvtchnPort> {
        let domid = self.caller(index)?.domid;
        let owner = self.find(remote).ok_or(ErrorKind::NotFound)?;
        if self.fails(owner, FaultPoint::BindPort) {
            return Err(io::Error::other("a planned fault refused to bind"));
        }
        let offered = self.domains[owner.0].port_mut(port).ok_or(ErrorKind::NotFound)?;
        if offered.remote != domid {
            return Err(ErrorKind::PermissionDenied.into());
        }
        if offered.other.is_some() {
            return Err(ErrorKind::AddrInUse.into());
        }
        let other = Some(OtherEnd { domain: owner, port });
        // Pending at once, as on Xen: events may have been lost while there was no other end.
        let bound = Port { remote, other, is_pending: true, is_doubled: false };
        let bound = self.domains[index.0].open_port(bound)?;
        if let Some(offered) = self.domains[owner.0].port_mut(port) {
            offered.other = Some(OtherEnd { domain: index, port: bound });
        }
        Ok(bound)
    }

    /// The other end stays open, and may be bound to again.
    pub(crate) fn close(&mut self, index: DomainIndex, port: EvtchnPort) {
        let closed = self.domains[index.0].close_port(port);
        if let Some(other) = closed.and_then(|port| port.other) {
            if let Some(left) = self.domains[other.domain.0].port_mut(other.port) {
                left.other = None;
            }
        }
    }

    /// An event without another end is dropped silently, as on Xen.
    pub(crate) fn notify(&mut self, index: DomainIndex, port: EvtchnPort) -> io::Result<()> {
        let sender = self.caller(index)?.port_mut(port).ok_or(ErrorKind::NotConnected)?;
        let other = sender.other;
        if self.fails(index, FaultPoint::Notify) {
            return Err(io::Error::other("a planned fault refused to notify"));
        }
        if let Some(OtherEnd { domain, port }) = other {
            self.deliver(domain, port);
        }
        Ok(())
    }

    fn deliver(&mut self, to: DomainIndex, port: EvtchnPort) {
        if self.fails(to, FaultPoint::LostEvent) {
            return;
        }
        let is_doubled = self.fails(to, FaultPoint::DoubledEvent);
        let is_followed = self.fails(to, FaultPoint::SpuriousEvent);
        let domain = &mut self.domains[to.0];
        if let Some(port) = domain.port_mut(port) {
            port.is_pending = true;
            port.is_doubled |= is_doubled;
        }
        if is_followed {
            let open = || domain.ports().map(|(open, _)| open);
            let next = open().find(|open| *open > port).or_else(|| open().next());
            if let Some(port) = next.and_then(|next| domain.port_mut(next)) {
                port.is_pending = true;
            }
        }
    }

    /// Clears a pending event; true if there was one.
    pub(crate) fn ack(&mut self, index: DomainIndex, port: EvtchnPort) -> bool {
        let Some(port) = self.domains[index.0].port_mut(port) else { return false };
        let was_pending = port.is_pending;
        port.is_pending = std::mem::take(&mut port.is_doubled);
        was_pending
    }

    pub(crate) fn domain_mut(&mut self, index: DomainIndex) -> &mut Domain {
        &mut self.domains[index.0]
    }
}
