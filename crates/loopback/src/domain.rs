//! What the hypervisor knows of one domain.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::AddAssign;

use ringway_hypervisor::{Access, GrantStatus, GrantedPages, StillInUse};
use ringway_sys::SharedPages;
use ringway_wire::grant::{ENTRIES_PER_PAGE, RESERVED_ENTRIES};
use ringway_wire::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};

use crate::fault::Passages;

/// The limits of a domain.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Pages that can be granted.
    pub pages_max: usize,
    /// Grants.
    pub grants_max: usize,
    /// Ports of event channels.
    pub ports_max: usize,
}

impl Default for Limits {
    /// Memory for more than a hundred queues, Xen's default of frames for a grant table, and the
    /// ports of its two-level table of event channels.
    fn default() -> Limits {
        Limits { pages_max: 1 << 16, grants_max: TABLE_FRAMES * ENTRIES_PER_PAGE, ports_max: 1023 }
    }
}

/// Frames of a grant table (`gnttab_max_frames`).
const TABLE_FRAMES: usize = 64;

/// What a domain holds. The default once it has released everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Pages taken, including those kept.
    pub pages: usize,
    /// Pages kept for good, because a grant of their run was ended while a peer still used it.
    pub pages_kept: usize,
    /// Grants that have not ended.
    pub grants: usize,
    /// Pages of other domains that are mapped.
    pub mappings: usize,
    /// Ports that are open.
    pub ports: usize,
    /// Open ports that have another end.
    pub ports_bound: usize,
}

impl AddAssign for Holdings {
    fn add_assign(&mut self, other: Holdings) {
        self.pages += other.pages;
        self.pages_kept += other.pages_kept;
        self.grants += other.grants;
        self.mappings += other.mappings;
        self.ports += other.ports;
        self.ports_bound += other.ports_bound;
    }
}

/// A domain, from its creation to its death. Its number may then be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DomainIndex(pub(crate) usize);

/// A domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) domid: DomId,
    pub(crate) is_alive: bool,
    pub(crate) passages: Passages,
    /// Operations for which a kernel would have failed the whole call.
    pub(crate) copies_out_of_page: u64,
    /// Operations that the kernel's grant device would make of its copies.
    pub(crate) copy_operations: usize,
    pub(crate) mappings: usize,
    limits: Limits,
    pages: usize,
    pages_kept: usize,
    /// Pages of each run, by the number of the run.
    runs: BTreeMap<u64, usize>,
    last_run: u64,
    grants: Vec<Option<Grant>>,
    /// Free places in `grants`; the last one freed is taken first, as in Linux.
    grants_free: Vec<usize>,
    last_grant: u64,
    ports: Vec<Option<Port>>,
}

/// An entry of a grant table.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) page: SharedPages,
    /// Distinguishes this use of the entry from every other.
    pub(crate) serial: u64,
    /// How often the peer has it mapped.
    pub(crate) mappings: usize,
    pub(crate) mapper: Option<DomainIndex>,
    peer: DomId,
    access: Access,
    run: u64,
}

/// One end of an event channel.
#[derive(Debug)]
pub(crate) struct Port {
    /// The domain that owns the other end, or may bind to this one.
    pub(crate) remote: DomId,
    pub(crate) other: Option<OtherEnd>,
    pub(crate) is_pending: bool,
    /// Becomes pending again when it is cleared.
    pub(crate) is_doubled: bool,
}

/// Where the other end of a channel is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OtherEnd {
    pub(crate) domain: DomainIndex,
    pub(crate) port: EvtchnPort,
}

impl Domain {
    pub(crate) fn new(domid: DomId, limits: Limits) -> Domain {
        Domain {
            domid,
            is_alive: true,
            passages: Passages::default(),
            copies_out_of_page: 0,
            copy_operations: 0,
            mappings: 0,
            limits,
            pages: 0,
            pages_kept: 0,
            runs: BTreeMap::new(),
            last_run: 0,
            grants: Vec::new(),
            grants_free: Vec::new(),
            last_grant: 0,
            ports: Vec::new(),
        }
    }

    pub(crate) fn holdings(&self) -> Holdings {
        let ports = || self.ports.iter().flatten();
        Holdings {
            pages: self.pages,
            pages_kept: self.pages_kept,
            grants: self.grants.iter().flatten().count(),
            mappings: self.mappings,
            ports: ports().count(),
            ports_bound: ports().filter(|port| port.other.is_some()).count(),
        }
    }

    /// Releases everything except its number and its counts.
    pub(crate) fn die(&mut self) {
        let (passages, copies_out_of_page) = (self.passages.clone(), self.copies_out_of_page);
        let dead = Domain::new(self.domid, self.limits);
        *self = Domain { is_alive: false, passages, copies_out_of_page, ..dead };
    }

    /// Takes zeroed pages and grants each.
    pub(crate) fn share(
        &mut self,
        peer: DomId,
        count: usize,
        access: Access,
    ) -> io::Result<GrantedPages> {
        if count == 0 {
            return Err(ErrorKind::InvalidInput.into());
        }
        let grants_left = self.limits.grants_max - self.grants.len() + self.grants_free.len();
        if count > self.limits.pages_max - self.pages || count > grants_left {
            return Err(ErrorKind::OutOfMemory.into());
        }
        let pages = SharedPages::zeroed(count * PAGE_SIZE)?;
        self.pages += count;
        self.last_run += 1;
        let run = self.last_run;
        self.runs.insert(run, count);
        let starts = (0..count).map(|page| page * PAGE_SIZE);
        let each_page = starts.map(|start| pages.slice(start..start + PAGE_SIZE));
        let grefs = each_page.map(|page| self.grant(page, peer, access, run)).collect();
        Ok(GrantedPages { pages, grefs, id: run })
    }

    fn grant(&mut self, page: SharedPages, peer: DomId, access: Access, run: u64) -> GrantRef {
        self.last_grant += 1;
        let serial = self.last_grant;
        let grant = Grant { page, serial, mappings: 0, mapper: None, peer, access, run };
        let place = self.grants_free.pop().unwrap_or(self.grants.len());
        match self.grants.get_mut(place) {
            Some(free) => *free = Some(grant),
            None => self.grants.push(Some(grant)),
        }
        let place = u32::try_from(place).expect("a table has a limit");
        GrantRef(RESERVED_ENTRIES + place)
    }

    /// Ends the grants of a run. A run that has a page in use is kept.
    pub(crate) fn end(&mut self, granted: &GrantedPages) -> Result<(), StillInUse> {
        let mut ended = Ok(());
        for &gref in &granted.grefs {
            match self.find(gref) {
                Some(grant) if grant.run != granted.id => {}
                Some(grant) if grant.mappings > 0 => ended = ended.and(Err(StillInUse { gref })),
                _ => self.revoke(gref),
            }
        }
        let count = self.runs.remove(&granted.id).unwrap_or(0);
        match ended {
            Ok(()) => self.pages -= count,
            Err(_) => self.pages_kept += count,
        }
        ended
    }

    /// Frees an entry, in use or not.
    pub(crate) fn revoke(&mut self, gref: GrantRef) {
        let Some(place) = place(gref) else { return };
        if self.grants.get_mut(place).is_some_and(|grant| grant.take().is_some()) {
            self.grants_free.push(place);
        }
    }

    /// Ends all mappings of a domain that died.
    pub(crate) fn unmap_all_of(&mut self, mapper: DomainIndex) {
        for grant in self.grants.iter_mut().flatten() {
            if grant.mapper == Some(mapper) {
                grant.mappings = 0;
            }
        }
    }

    fn find(&self, gref: GrantRef) -> Option<&Grant> {
        self.grants.get(place(gref)?)?.as_ref()
    }

    pub(crate) fn find_mut(&mut self, gref: GrantRef) -> Option<&mut Grant> {
        self.grants.get_mut(place(gref)?)?.as_mut()
    }

    /// The entry, if `user` may use it with this access.
    pub(crate) fn permit(
        &mut self,
        gref: GrantRef,
        user: DomId,
        access: Access,
    ) -> Result<&mut Grant, GrantStatus> {
        let grant = self.find_mut(gref).ok_or(GrantStatus::BadGrantRef)?;
        let is_allowed = grant.access == Access::ReadWrite || access == Access::ReadOnly;
        if grant.peer == user && is_allowed {
            Ok(grant)
        } else {
            Err(GrantStatus::PermissionDenied)
        }
    }

    /// Opens the first free port. Port 0 is never assigned.
    pub(crate) fn open_port(&mut self, port: Port) -> io::Result<EvtchnPort> {
        let free = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if free >= self.limits.ports_max {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        match self.ports.get_mut(free) {
            Some(place) => *place = Some(port),
            None => self.ports.push(Some(port)),
        }
        Ok(EvtchnPort(u32::try_from(free + 1).expect("a table has a limit")))
    }

    pub(crate) fn close_port(&mut self, port: EvtchnPort) -> Option<Port> {
        self.ports.get_mut(port_place(port)?)?.take()
    }

    pub(crate) fn port_mut(&mut self, port: EvtchnPort) -> Option<&mut Port> {
        self.ports.get_mut(port_place(port)?)?.as_mut()
    }

    /// Open ports, in order.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (EvtchnPort, &Port)> {
        let numbered = (1..).map(EvtchnPort).zip(&self.ports);
        numbered.filter_map(|(number, port)| Some((number, port.as_ref()?)))
    }
}

fn place(gref: GrantRef) -> Option<usize> {
    usize::try_from(gref.0.checked_sub(RESERVED_ENTRIES)?).ok()
}

fn port_place(port: EvtchnPort) -> Option<usize> {
    usize::try_from(port.0.checked_sub(1)?).ok()
}
