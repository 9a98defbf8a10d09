//! One process's view of the emulated hypervisor.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex};

use ringway_hypervisor::Hypervisor;
use ringway_wire::{DomId, EvtchnPort};

use crate::connection::Connection;
use crate::domains::{DOMAINS_MAX, DomainInfo, NewDomain};
use crate::event::EmuEvent;
use crate::grants::{EmuGrants, OwnMemory};
use crate::memory::EmuMemory;
use crate::peers::{Peers, map_memory};
use crate::protocol::Call;
use crate::table::Table;

/// A domain, which lives as long as this, a clone or any handle created from it. Domain 0 does not
/// die with them.
#[derive(Debug, Clone)]
pub struct EmuHypervisor {
    domid: DomId,
    broker: Arc<Connection>,
    peers: Arc<Peers>,
    own: Option<Arc<Mutex<OwnMemory>>>,
}

impl EmuHypervisor {
    /// Becomes a domain of the broker of `dir`.
    ///
    /// # Errors
    /// Of kind `NotFound` if there is no such domain or it is dead, `AddrInUse` if another process
    /// is this domain, or what the system reports.
    pub fn connect(dir: &Path, domid: DomId) -> io::Result<EmuHypervisor> {
        let broker = Arc::new(Connection::open(dir, domid)?);
        let (reply, fds) = broker.call(&Call::Hello)?;
        let info = reply.info();
        let own = match fds.into_inner() {
            Ok([pages, table]) => {
                let own =
                    OwnMemory::new(map_memory(&pages, info.memory_bytes)?, Table::map(&table)?);
                Some(Arc::new(Mutex::new(own)))
            }
            Err(none) if none.is_empty() && info.memory_bytes == 0 => None,
            Err(_) => return Err(ErrorKind::OutOfMemory.into()),
        };
        let peers = Arc::new(Peers::new(Arc::clone(&broker), info.domid));
        Ok(EmuHypervisor { domid: info.domid, broker, peers, own })
    }

    /// Creates a domain; its process may connect at once. For domain 0 only.
    ///
    /// # Errors
    /// Of kind `PermissionDenied` if we are not domain 0, `AlreadyExists`, `QuotaExceeded` if there
    /// are [`DOMAINS_MAX`], `InvalidInput` for a reserved number or a size that is not whole pages
    /// or exceeds [`MEMORY_BYTES_MAX`](crate::MEMORY_BYTES_MAX).
    pub fn create_domain(&self, new: NewDomain) -> io::Result<DomId> {
        if new.domid == Some(DomId(0)) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.broker.call(&Call::CreateDomain(new)).map(|(reply, _)| reply.info().domid)
    }

    /// Destroys a domain, even a running one. Its process only loses its connection. For domain 0
    /// only.
    ///
    /// # Errors
    /// Of kind `PermissionDenied` if we are not domain 0, or it is domain 0; `NotFound`.
    pub fn destroy_domain(&self, domid: DomId) -> io::Result<()> {
        self.broker.call(&Call::DestroyDomain(domid)).map(drop)
    }

    /// All domains, by number. For domain 0 only.
    ///
    /// # Errors
    /// Of kind `PermissionDenied` if we are not domain 0.
    pub fn domains(&self) -> io::Result<Vec<DomainInfo>> {
        let mut domains = Vec::new();
        let mut from = DomId(0);
        while domains.len() < DOMAINS_MAX {
            match self.broker.call(&Call::NextDomain(from)) {
                Ok((reply, _)) => {
                    domains.push(reply.info());
                    from = DomId(reply.info().domid.0.saturating_add(1));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        Ok(domains)
    }

    /// Unmaps another domain's memory. That happens by itself when its last page is unmapped; this
    /// is for a peer whose pages were only copied. Does nothing while a page is mapped.
    pub fn forget(&self, peer: DomId) {
        self.peers.forget(peer);
    }
}

impl Hypervisor for EmuHypervisor {
    type Memory = EmuMemory;
    type Grants = EmuGrants;
    type Event = EmuEvent;

    fn domid(&self) -> DomId {
        self.domid
    }

    /// Always succeeds; using the handle fails with `PermissionDenied` unless this is domain 0 or a
    /// driver domain.
    fn memory(&self) -> io::Result<EmuMemory> {
        Ok(EmuMemory::new(Arc::clone(&self.peers)))
    }

    /// Of kind `Unsupported` for domain 0: it may be several processes, which have no common
    /// allocator.
    fn grants(&self) -> io::Result<EmuGrants> {
        let own = self.own.as_ref().ok_or(ErrorKind::Unsupported)?;
        Ok(EmuGrants::new(Arc::clone(own), Arc::clone(&self.broker)))
    }

    /// Of kind `QuotaExceeded` when this domain has no port left.
    fn alloc_unbound(&self, remote: DomId) -> io::Result<EmuEvent> {
        EmuEvent::open(&self.broker, &Call::AllocUnbound { remote })
    }

    fn bind_interdomain(&self, remote: DomId, port: EvtchnPort) -> io::Result<EmuEvent> {
        EmuEvent::open(&self.broker, &Call::BindInterdomain { remote, port })
    }
}
