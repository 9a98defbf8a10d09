//! Pages of other domains: `/dev/xen/gntdev`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_wire::grant::{GrantCopy, GrantStatus, PageCopy};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};
use rustix::fs::OFlags;
use rustix::ioctl::Opcode;

use super::{opcode, open, request};
use crate::SharedPages;
use crate::linux::explain;

/// The device. Closing it ends all mappings made with it.
#[derive(Debug, Clone)]
pub struct Gntdev {
    fd: Arc<OwnedFd>,
}

/// Keeps a page mapped in the driver; drop it after the pages.
#[derive(Debug)]
pub struct Mapping {
    device: Gntdev,
    index: u64,
}

/// Working memory of copies, kept so that they do not allocate. Empty between copies.
#[derive(Debug, Default)]
pub struct CopyScratch {
    segments: Vec<Segment>,
    locals: Vec<Local>,
}

impl Gntdev {
    /// Opens the device.
    ///
    /// # Errors
    /// With the remedy.
    pub fn open() -> io::Result<Gntdev> {
        let fd = open("/dev/xen/gntdev", "xen-gntdev", OFlags::empty())?;
        Ok(Gntdev { fd: Arc::new(fd) })
    }

    /// Maps one page. One per call, because a single bad reference fails the whole call.
    ///
    /// # Errors
    /// Of kind `NotFound` if the peer does not grant it with this access.
    pub fn map(
        &self,
        peer: DomId,
        gref: GrantRef,
        writable: bool,
    ) -> io::Result<(SharedPages, Mapping)> {
        let mut argument =
            MapGrantRef { count: 1, _pad: 0, index: 0, domid: peer.0.into(), gref: gref.0 };
        // SAFETY: it is the grant device, which takes this structure, with as many references as
        // its count says, for this opcode.
        unsafe { request::<MAP_GRANT_REF, _>(&*self.fd, &mut argument) }
            .map_err(|error| explain(error, "map a granted page"))?;
        let mapping = Mapping { device: self.clone(), index: argument.index };
        let pages = if writable {
            SharedPages::map(&*self.fd, argument.index, PAGE_SIZE)
        } else {
            SharedPages::map_read_only(&*self.fd, argument.index, PAGE_SIZE)
        };
        // Only now does the kernel call Xen, and it reports every bad reference as this error.
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                let what = format!("domain {peer} does not grant it to this domain in this way");
                io::Error::new(io::ErrorKind::NotFound, what)
            }
            _ => explain(error, "map a granted page"),
        };
        Ok((pages.map_err(refused)?, mapping))
    }

    /// Copies from the peer's pages into local buffers.
    ///
    /// # Errors
    /// If the call as a whole could not be made.
    pub fn copy_from_peer<L: AsMut<[u8]>>(
        &self,
        scratch: &mut CopyScratch,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()> {
        let locals = locals.iter_mut().map(|local| {
            let local = local.as_mut();
            Local { address: local.as_mut_ptr().expose_provenance(), len: local.len() }
        });
        // The borrow of the buffers lasts until after the call, which is what `copy` needs.
        scratch.locals.extend(locals);
        self.copy(scratch, ops, |op, local| Segment {
            source: place(peer, op.gref, op.offset),
            dest: local,
            len: op.len,
            flags: COPY_SOURCE_GREF,
            status: 0,
        })
    }

    /// Copies from local buffers into the peer's pages.
    ///
    /// # Errors
    /// As [`copy_from_peer`](Gntdev::copy_from_peer).
    pub fn copy_to_peer<L: AsRef<[u8]>>(
        &self,
        scratch: &mut CopyScratch,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()> {
        let locals = locals.iter().map(|local| {
            let local = local.as_ref();
            Local { address: local.as_ptr().expose_provenance(), len: local.len() }
        });
        scratch.locals.extend(locals);
        self.copy(scratch, ops, |op, local| Segment {
            source: local,
            dest: place(peer, op.gref, op.offset),
            len: op.len,
            flags: COPY_DEST_GREF,
            status: 0,
        })
    }

    /// Copies from pages of peers into pages of the peer `to`.
    ///
    /// # Errors
    /// As [`copy_from_peer`](Gntdev::copy_from_peer).
    pub fn copy_between_peers(
        &self,
        scratch: &mut CopyScratch,
        to: DomId,
        ops: &mut [PageCopy],
    ) -> io::Result<()> {
        for op in ops.iter_mut() {
            op.status = match op.is_in_pages() {
                true => {
                    scratch.segments.push(Segment {
                        source: place(op.from, op.from_gref, op.from_offset),
                        dest: place(to, op.to_gref, op.to_offset),
                        len: op.len,
                        flags: COPY_SOURCE_GREF | COPY_DEST_GREF,
                        status: 0,
                    });
                    GrantStatus::Okay
                }
                false => GrantStatus::BadCopyArg,
            };
        }
        self.submit(scratch, ops.iter_mut().map(|op| &mut op.status))
    }

    /// Submits only valid operations: a segment that crosses a page would fail all others (`EINVAL`
    /// for the whole call).
    fn copy(
        &self,
        scratch: &mut CopyScratch,
        ops: &mut [GrantCopy],
        segment: impl Fn(&GrantCopy, u64) -> Segment,
    ) -> io::Result<()> {
        for op in ops.iter_mut() {
            op.status = match scratch.local_address(op) {
                Some(local) if usize::from(op.offset) + usize::from(op.len) <= PAGE_SIZE => {
                    scratch.segments.push(segment(op, local));
                    GrantStatus::Okay
                }
                _ => GrantStatus::BadCopyArg,
            };
        }
        let submitted = self.submit(scratch, ops.iter_mut().map(|op| &mut op.status));
        scratch.locals.clear();
        submitted
    }

    /// Submits the segments; those operations whose status is `Okay` have one each.
    fn submit<'a>(
        &self,
        scratch: &mut CopyScratch,
        statuses: impl Iterator<Item = &'a mut GrantStatus>,
    ) -> io::Result<()> {
        let count =
            u32::try_from(scratch.segments.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut argument = Copies { count, segments: scratch.segments.as_mut_ptr() };
        let copied = match count {
            0 => Ok(0),
            // SAFETY: it is the grant device, which takes this structure for this opcode and as
            // many segments as its count says. Each names foreign pages, or local bytes that were
            // checked to lie in a buffer that our caller has borrowed, exclusively where they are
            // written.
            _ => unsafe { request::<GRANT_COPY, _>(&*self.fd, &mut argument) },
        };
        let submitted = statuses.filter(|status| **status == GrantStatus::Okay);
        for (status, segment) in submitted.zip(scratch.segments.drain(..)) {
            *status = GrantStatus::from_raw(segment.status);
        }
        copied.map(drop).map_err(|error| explain(error, "copy granted pages"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let mut argument = UnmapGrantRef { index: self.index, count: 1, _pad: 0 };
        // SAFETY: it is the grant device, which takes this structure for this opcode.
        let unmapped = unsafe { request::<UNMAP_GRANT_REF, _>(&*self.device.fd, &mut argument) };
        debug_assert!(unmapped.is_ok(), "unmap of our own mapping: {unmapped:?}");
    }
}

impl CopyScratch {
    /// The address of the local bytes of an operation, if they are inside their buffer.
    fn local_address(&self, op: &GrantCopy) -> Option<u64> {
        let local = self.locals.get(usize::from(op.local))?;
        let offset = usize::try_from(op.local_offset).ok()?;
        let end = offset.checked_add(usize::from(op.len))?;
        (end <= local.len).then_some((local.address + offset) as u64)
    }
}

/// One of our buffers.
#[derive(Debug, Clone, Copy)]
struct Local {
    address: usize,
    len: usize,
}

const MAP_GRANT_REF: Opcode = opcode::<MapGrantRef>(b'G', 0);
const UNMAP_GRANT_REF: Opcode = opcode::<UnmapGrantRef>(b'G', 1);
const GRANT_COPY: Opcode = opcode::<Copies>(b'G', 8);

/// `GNTCOPY_source_gref`.
const COPY_SOURCE_GREF: u16 = 1 << 0;
/// `GNTCOPY_dest_gref`.
const COPY_DEST_GREF: u16 = 1 << 1;

/// `struct ioctl_gntdev_map_grant_ref` with one reference.
#[repr(C)]
struct MapGrantRef {
    count: u32,
    _pad: u32,
    index: u64,
    domid: u32,
    gref: u32,
}

/// `struct ioctl_gntdev_unmap_grant_ref`.
#[repr(C)]
struct UnmapGrantRef {
    index: u64,
    count: u32,
    _pad: u32,
}

/// `struct gntdev_grant_copy_segment`. Each side is an address or a place in a foreign page.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Segment {
    source: u64,
    dest: u64,
    len: u16,
    flags: u16,
    status: i16,
}

/// `struct ioctl_gntdev_grant_copy`.
#[repr(C)]
struct Copies {
    count: u32,
    segments: *mut Segment,
}

const _: () = assert!(size_of::<MapGrantRef>() == 24 && size_of::<UnmapGrantRef>() == 16);
const _: () = assert!(size_of::<Segment>() == 24 && size_of::<Copies>() == 16);

/// The foreign side of a segment: reference, offset, domain.
fn place(peer: DomId, gref: GrantRef, offset: u16) -> u64 {
    let [g0, g1, g2, g3] = gref.0.to_ne_bytes();
    let [o0, o1] = offset.to_ne_bytes();
    let [d0, d1] = peer.0.to_ne_bytes();
    u64::from_ne_bytes([g0, g1, g2, g3, o0, o1, d0, d1])
}
