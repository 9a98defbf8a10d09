//! Which vifs a backend serves: all of its domain, or those of one tenant.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ringway_control::{Link, Received, TenantOrder, TrunkRules, VifNumber};
use ringway_trunk::End;
use ringway_wire::DomId;
use ringway_xenbus::Vif;

/// What a tenant's process is started with.
pub struct Tenancy {
    /// The link to its supervisor.
    pub link: Arc<Link>,
    /// Its end of the trunk to the switch process.
    pub trunk: End,
    /// What the trunk carries.
    pub carried: TrunkRules,
    /// The vifs that it serves.
    pub vifs: Vec<VifNumber>,
}

impl Tenancy {
    /// Waits for the supervisor's first message.
    ///
    /// # Errors
    /// If the supervisor sends something else, or has ended.
    pub fn wait(link: Arc<Link>) -> io::Result<Tenancy> {
        match link.wait()? {
            Received::Message(TenantOrder::Start { vifs, trunk: carried }, fds) => {
                Ok(Tenancy { link, trunk: End::from_fds(fds)?, carried, vifs })
            }
            Received::Message(..) => Err(io::ErrorKind::InvalidData.into()),
            Received::Nothing | Received::End => Err(ended()),
        }
    }
}

/// Which vifs a process serves.
pub(crate) enum Scope {
    /// All vifs of its domain in XenStore.
    Domain,
    /// Those that the supervisor names.
    Tenant { link: Arc<Link>, vifs: BTreeSet<Vif> },
}

impl Scope {
    pub(crate) fn of_tenant(link: &Arc<Link>, vifs: &[VifNumber], backend: DomId) -> Scope {
        let vifs = vifs.iter().map(|number| vif_of(*number, backend)).collect();
        Scope::Tenant { link: Arc::clone(link), vifs }
    }

    /// Whether this process serves a vif.
    pub(crate) fn has(&self, vif: Vif) -> bool {
        match self {
            Scope::Domain => true,
            Scope::Tenant { vifs, .. } => vifs.contains(&vif),
        }
    }

    /// The next order of the supervisor.
    pub(crate) fn next_order(&mut self, backend: DomId) -> io::Result<Option<Order>> {
        let Scope::Tenant { link, vifs } = self else { return Ok(None) };
        let (number, duty) = match link.receive()? {
            Received::Message(TenantOrder::Serve(number), _) => (number, Duty::Begins),
            Received::Message(TenantOrder::Forget(number), _) => (number, Duty::Ends),
            Received::Message(TenantOrder::Trunk(carried), _) => {
                return Ok(Some(Order::Trunk(carried)));
            }
            Received::Message(TenantOrder::Start { .. }, _) => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Received::Nothing => return Ok(None),
            Received::End => return Err(ended()),
        };
        let vif = vif_of(number, backend);
        match duty {
            Duty::Begins => vifs.insert(vif),
            Duty::Ends => vifs.remove(&vif),
        };
        Ok(Some(Order::Vif(vif, duty)))
    }

    /// Readable when there is an order.
    pub(crate) fn waker(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Scope::Domain => None,
            Scope::Tenant { link, .. } => Some(link.as_fd()),
        }
    }
}

/// An order of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// Start or stop serving a vif.
    Vif(Vif, Duty),
    /// The trunk carries this from now on.
    Trunk(TrunkRules),
}

/// What must happen to a vif.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duty {
    Begins,
    Ends,
}

fn vif_of(number: VifNumber, backend: DomId) -> Vif {
    Vif { backend, frontend: DomId(number.domid), handle: number.handle }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the supervisor has ended")
}
