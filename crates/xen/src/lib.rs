//! The hypervisor port on real Xen, through the devices of the Linux kernel: `gntdev` for the pages
//! of other domains, `gntalloc` for our own, `evtchn` for event channels.
//!
//! Everything that a program holds ends with it: the kernel unmaps pages, closes ports and ends
//! grants. A peer does not notice when a mapping or port goes away like this, and another program
//! may take both over.
//!
//! No Xen library is linked: the devices are the kernel's stable interface, while the libraries
//! change with the version of Xen, and no crate with a suitable licence has the grant copy. Each
//! event channel has a file of its own, so the file's readiness is that of one queue, which is what
//! workers wait for. The price is two descriptors for each queue, hypercalls of at most 16 copies,
//! where the kernel's own backend makes one of 64, and a read and a write for each event.
//!
//! The devices determine three details:
//! 1. A copy that crosses a page would fail the whole call, so it is not submitted; every other
//!    fault of a reference concerns its own copy alone.
//! 2. A mapping of several references fails as a whole, so each ring page is mapped by itself.
//! 3. `gntalloc` cannot grant memory that a program already has, so pages are allocated and granted
//!    in one step. It does not report that a peer still uses a page; the kernel keeps such a page
//!    and tries again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ringway_hypervisor::{
    Access, EventChannel, ForeignMemory, ForeignPage, GrantCopy, GrantStatus, GrantTable,
    GrantedPages, Hypervisor, PageCopy, StillInUse,
};
use ringway_sys::xen::evtchn::{self, Evtchn};
use ringway_sys::xen::gntalloc::Gntalloc;
use ringway_sys::xen::gntdev::{CopyScratch, Gntdev};
use ringway_wire::{DomId, EvtchnPort, GrantRef};

/// A domain of Xen, as seen by one of its programs.
#[derive(Debug)]
pub struct XenHypervisor {
    domid: DomId,
    gntdev: Option<Gntdev>,
    gntalloc: Option<Arc<Gntalloc>>,
}

impl XenHypervisor {
    /// The view of a backend. `domid` is the domain in which this program runs; XenStore provides
    /// it under the relative path `domid`.
    ///
    /// # Errors
    /// If a device does not exist or is not permitted, with the remedy.
    pub fn backend(domid: DomId) -> io::Result<XenHypervisor> {
        evtchn::check()?;
        Ok(XenHypervisor { domid, gntdev: Some(Gntdev::open()?), gntalloc: None })
    }

    /// The view of a frontend.
    ///
    /// # Errors
    /// As [`backend`](XenHypervisor::backend).
    pub fn frontend(domid: DomId) -> io::Result<XenHypervisor> {
        evtchn::check()?;
        Ok(XenHypervisor { domid, gntdev: None, gntalloc: Some(Arc::new(Gntalloc::open()?)) })
    }
}

impl Hypervisor for XenHypervisor {
    type Memory = XenMemory;
    type Grants = XenGrants;
    type Event = XenEvent;

    fn domid(&self) -> DomId {
        self.domid
    }

    /// Of kind `Unsupported` for a frontend.
    fn memory(&self) -> io::Result<XenMemory> {
        let device = self.gntdev.clone().ok_or(io::ErrorKind::Unsupported)?;
        Ok(XenMemory { device, scratch: CopyScratch::default() })
    }

    /// Of kind `Unsupported` for a backend.
    fn grants(&self) -> io::Result<XenGrants> {
        let device = self.gntalloc.clone().ok_or(io::ErrorKind::Unsupported)?;
        Ok(XenGrants { device })
    }

    fn alloc_unbound(&self, remote: DomId) -> io::Result<XenEvent> {
        Evtchn::unbound(remote).map(XenEvent)
    }

    /// Of kind `InvalidInput` for any port that Xen refuses: it reports no reason.
    fn bind_interdomain(&self, remote: DomId, port: EvtchnPort) -> io::Result<XenEvent> {
        Evtchn::interdomain(remote, port).map(XenEvent)
    }
}

/// Pages of other domains. A batch of copies is one system call; the kernel makes one hypercall for
/// every 16 of them (`GNTDEV_COPY_BATCH`).
#[derive(Debug)]
pub struct XenMemory {
    device: Gntdev,
    scratch: CopyScratch,
}

impl ForeignMemory for XenMemory {
    /// Of kind `OutOfMemory`, with the remedy, if this domain may map no more pages; otherwise of
    /// kind `NotFound`, because the kernel does not report Xen's reason.
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage> {
        match self.device.map(peer, gref, access == Access::ReadWrite) {
            Ok((pages, mapping)) => Ok(ForeignPage::new(pages, mapping)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Err(_) if self.is_granted(peer, gref, access) => Err(maps_no_more()),
            Err(error) => Err(error),
        }
    }

    fn copy_from_peer<L: AsMut<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()> {
        self.device.copy_from_peer(&mut self.scratch, peer, ops, locals)
    }

    fn copy_to_peer<L: AsRef<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()> {
        self.device.copy_to_peer(&mut self.scratch, peer, ops, locals)
    }

    fn copy_between_peers(&mut self, to: DomId, ops: &mut [PageCopy]) -> io::Result<()> {
        self.device.copy_between_peers(&mut self.scratch, to, ops)
    }
}

impl XenMemory {
    /// Whether a grant that could not be mapped is valid nevertheless. A copy takes no entry in the
    /// table of mappings; a mapping for reading takes one, and is also refused if the table is
    /// full.
    ///
    /// A guest can make this true with a grant that Xen allows only to be copied. It then waits for
    /// its own vif, as it would for a host that is short of a resource.
    fn is_granted(&mut self, peer: DomId, gref: GrantRef, access: Access) -> bool {
        let (offset, len, local, local_offset) = (0, 1, 0, 0);
        let status = GrantStatus::GeneralError;
        let mut ops = [GrantCopy { gref, offset, len, local, local_offset, status }];
        let copied = self.copy_from_peer(peer, &mut ops, &mut [[0]]);
        let may_read = copied.is_ok() && ops[0].status == GrantStatus::Okay;
        may_read && (access == Access::ReadOnly || self.device.map(peer, gref, false).is_err())
    }
}

fn maps_no_more() -> io::Error {
    let what = "this domain maps as many guest pages as Xen allows: raise \
                gnttab_max_maptrack_frames on Xen's command line, or max_maptrack_frames in the \
                configuration of a driver domain";
    io::Error::new(io::ErrorKind::OutOfMemory, what)
}

/// Pages of our own, shared with other domains.
#[derive(Debug, Clone)]
pub struct XenGrants {
    device: Arc<Gntalloc>,
}

impl GrantTable for XenGrants {
    /// Of kind `OutOfMemory`, with the remedy, at the limit that the kernel module sets for all
    /// programs together: 1024 pages, where a queue needs 514.
    fn share(&mut self, peer: DomId, count: usize, access: Access) -> io::Result<GrantedPages> {
        let (pages, grefs, id) = self.device.share(peer, count, access == Access::ReadWrite)?;
        Ok(GrantedPages { pages, grefs, id })
    }

    /// Never fails: the kernel keeps a page that the peer still uses and asks again later.
    fn end(&mut self, granted: GrantedPages) -> Result<(), StillInUse> {
        let released = self.device.release(granted.id, granted.grefs.len());
        debug_assert!(released.is_ok(), "the run is ours: {released:?}");
        Ok(())
    }
}

/// One end of an event channel. Dropping it closes the port; its peer may then be bound again.
#[derive(Debug)]
pub struct XenEvent(Evtchn);

impl EventChannel for XenEvent {
    fn port(&self) -> EvtchnPort {
        self.0.port()
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn notify(&self) -> io::Result<()> {
        self.0.notify()
    }

    fn ack(&self) -> io::Result<bool> {
        self.0.take()
    }
}
