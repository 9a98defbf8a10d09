//! The hypervisor port on real Xen, over the devices that Linux gives a program: `gntdev` for the
//! pages of others, `gntalloc` for its own, `evtchn` for event channels.
//!
//! Everything that a program holds ends with it: the kernel unmaps, closes ports and ends grants.
//! A peer notices nothing of a mapping or a port that goes so, and another program may take both
//! up again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ringway_hypervisor::{
    Access, EventChannel, ForeignMemory, ForeignPage, GrantCopy, GrantTable, GrantedPages,
    Hypervisor, StillInUse,
};
use ringway_sys::xen::evtchn::{self, Evtchn};
use ringway_sys::xen::gntalloc::Gntalloc;
use ringway_sys::xen::gntdev::{CopyScratch, Gntdev};
use ringway_wire::{DomId, EvtchnPort, GrantRef};

/// A domain of Xen's, as one of its programs sees it.
#[derive(Debug)]
pub struct XenHypervisor {
    domid: DomId,
    gntdev: Option<Gntdev>,
    gntalloc: Option<Arc<Gntalloc>>,
}

impl XenHypervisor {
    /// What a backend needs. `domid` is the domain where this program runs; XenStore tells it, by
    /// the relative path `domid`.
    ///
    /// # Errors
    /// When a device is not there or not permitted, with the remedy.
    pub fn backend(domid: DomId) -> io::Result<XenHypervisor> {
        evtchn::check()?;
        Ok(XenHypervisor { domid, gntdev: Some(Gntdev::open()?), gntalloc: None })
    }

    /// What a frontend needs.
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

    /// Of kind `InvalidInput` for any port that Xen refuses: it does not say why.
    fn bind_interdomain(&self, remote: DomId, port: EvtchnPort) -> io::Result<XenEvent> {
        Evtchn::interdomain(remote, port).map(XenEvent)
    }
}

/// Pages of other domains. A batch of copies is one system call, of which the kernel makes one
/// hypercall for every 16 (`GNTDEV_COPY_BATCH`).
#[derive(Debug)]
pub struct XenMemory {
    device: Gntdev,
    scratch: CopyScratch,
}

impl ForeignMemory for XenMemory {
    /// Of kind `NotFound` whatever it is that Xen dislikes: the kernel does not tell.
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage> {
        let (pages, mapping) = self.device.map(peer, gref, access == Access::ReadWrite)?;
        Ok(ForeignPage::new(pages, mapping))
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
}

/// Pages of our own for other domains.
#[derive(Debug, Clone)]
pub struct XenGrants {
    device: Arc<Gntalloc>,
}

impl GrantTable for XenGrants {
    /// Of kind `OutOfMemory`, with the remedy, at the limit that the kernel's module sets to all
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
