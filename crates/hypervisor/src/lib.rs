//! The hypervisor port: everything domains use to talk to each other, apart from XenStore.
//!
//! Domains share pages by *grants* and wake each other through *event channels*. The data path is
//! generic over these traits and never names an implementation. `conformance`, behind the feature
//! of that name, is the one suite that every implementation passes.
//!
//! # Example
//!
//! An event channel whose ends are one object, and what a queue does with it:
//!
//! ```
//! use std::cell::Cell;
//! use std::io;
//! use std::os::fd::BorrowedFd;
//!
//! use ringway_hypervisor::{Direction, EventChannel, QueueEvents};
//! use ringway_wire::EvtchnPort;
//!
//! struct Echo(Cell<bool>);
//!
//! impl EventChannel for Echo {
//!     fn port(&self) -> EvtchnPort {
//!         EvtchnPort(1)
//!     }
//!
//!     fn waker(&self) -> Option<BorrowedFd<'_>> {
//!         None
//!     }
//!
//!     fn notify(&self) -> io::Result<()> {
//!         self.0.set(true);
//!         Ok(())
//!     }
//!
//!     fn ack(&self) -> io::Result<bool> {
//!         Ok(self.0.take())
//!     }
//! }
//!
//! let events = QueueEvents::Single(Echo(Cell::new(false)));
//! events.notify(Direction::Tx)?;
//! assert!(events.ack()?, "it was pending");
//! assert!(!events.ack()?, "and is no longer");
//! # Ok::<(), io::Error>(())
//! ```

#[cfg(feature = "conformance")]
pub mod conformance;
mod events;

use std::io;
use std::os::fd::BorrowedFd;

pub use events::{Direction, QueueEvents};
use ringway_sys::SharedPages;
pub use ringway_wire::grant::{GrantCopy, GrantStatus, PageCopy};
use ringway_wire::{DomId, EvtchnPort, GrantRef};

/// What the holder of a grant may do with the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The peer may only read it (`GTF_readonly`).
    ReadOnly,
    /// The peer may read and write it.
    ReadWrite,
}

/// The backend's access to other domains' granted memory: one handle per worker.
pub trait ForeignMemory {
    /// Maps one granted page, for as long as the result lives.
    ///
    /// # Errors
    /// Of kind `PermissionDenied` if the grant does not allow it, `NotFound` if there is no such
    /// domain or reference.
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage>;

    /// Copies from the peer's pages into local buffers, all operations in one call.
    ///
    /// # Errors
    /// Only if the call as a whole could not be made; the fate of each operation is in its status.
    fn copy_from_peer<L: AsMut<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()>;

    /// Copies from local buffers into the peer's pages, all operations in one call.
    ///
    /// # Errors
    /// As [`copy_from_peer`](ForeignMemory::copy_from_peer).
    fn copy_to_peer<L: AsRef<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()>;

    /// Copies from pages of peers into pages of the peer `to`, all operations in one call.
    ///
    /// # Errors
    /// As [`copy_from_peer`](ForeignMemory::copy_from_peer).
    fn copy_between_peers(&mut self, to: DomId, ops: &mut [PageCopy]) -> io::Result<()>;
}

/// A mapped foreign page. Dropping it ends the mapping and the grant's use.
pub struct ForeignPage {
    pages: SharedPages,
    _release: Box<dyn Send>,
}

impl ForeignPage {
    /// Joins the mapped page with whatever must be dropped to release it.
    pub fn new(pages: SharedPages, release: impl Send + 'static) -> ForeignPage {
        ForeignPage { pages, _release: Box::new(release) }
    }

    /// The page itself.
    pub fn pages(&self) -> &SharedPages {
        &self.pages
    }
}

/// A run of our own pages that a peer may use.
#[derive(Debug, Clone)]
pub struct GrantedPages {
    /// The memory.
    pub pages: SharedPages,
    /// The grant of each page, in order.
    pub grefs: Vec<GrantRef>,
    /// The number by which the port that created it identifies it.
    pub id: u64,
}

/// The frontend's own memory and grant table.
///
/// Pages are taken and granted in one step, because a user space process on Xen gets memory that
/// can be granted in no other way (`gntalloc`).
pub trait GrantTable {
    /// Takes `count` consecutive zeroed pages and lets `peer` use each of them.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when the domain has no more pages or the table is full; nothing stays
    /// granted then.
    fn share(&mut self, peer: DomId, count: usize, access: Access) -> io::Result<GrantedPages>;

    /// Ends the grants of a run and frees its pages. A page that the peer still uses is not reused
    /// before the peer releases it.
    ///
    /// # Errors
    /// [`StillInUse`] if the port keeps such pages for good; a port may also wait for the peer
    /// without reporting it.
    fn end(&mut self, granted: GrantedPages) -> Result<(), StillInUse>;
}

/// A grant could not be ended: the peer still uses the page (XSA-396).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("grant {gref} is still in use by its peer")]
pub struct StillInUse {
    /// The grant.
    pub gref: GrantRef,
}

/// One end of an event channel.
pub trait EventChannel {
    /// This end's port, as the peer would name it in XenStore.
    fn port(&self) -> EvtchnPort;

    /// The descriptor that is readable while an event is pending. None on a simulated machine,
    /// where no thread sleeps and the simulator asks the machine itself what is pending.
    fn waker(&self) -> Option<BorrowedFd<'_>>;

    /// Makes the other end pending.
    ///
    /// # Errors
    /// Of kind `NotConnected` when the other end is gone; harmless.
    fn notify(&self) -> io::Result<()>;

    /// Clears a pending event; true if there was one.
    ///
    /// # Errors
    /// What the descriptor reports.
    fn ack(&self) -> io::Result<bool>;
}

/// One domain's view of its hypervisor.
pub trait Hypervisor {
    /// Backend side of grants.
    type Memory: ForeignMemory + Send + 'static;
    /// Frontend side of grants.
    type Grants: GrantTable + Send + 'static;
    /// Event channels.
    type Event: EventChannel + Send + 'static;

    /// The domain this process is.
    fn domid(&self) -> DomId;

    /// A handle for one worker.
    ///
    /// # Errors
    /// What the port reports.
    fn memory(&self) -> io::Result<Self::Memory>;

    /// The grant table of this domain. Handles share the table.
    ///
    /// # Errors
    /// What the port reports.
    fn grants(&self) -> io::Result<Self::Grants>;

    /// Makes a port that `remote` may bind to.
    ///
    /// # Errors
    /// What the port reports.
    fn alloc_unbound(&self, remote: DomId) -> io::Result<Self::Event>;

    /// Binds to a port that `remote` has made for us.
    ///
    /// # Errors
    /// Of kind `NotFound` when there is no such port, `PermissionDenied` when it is meant for
    /// another domain, `AddrInUse` when it is bound already.
    fn bind_interdomain(&self, remote: DomId, port: EvtchnPort) -> io::Result<Self::Event>;
}
