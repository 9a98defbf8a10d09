//! Pages of our own for other domains: `/dev/xen/gntalloc`.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use ringway_wire::{DomId, GrantRef, PAGE_SIZE};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::Opcode;

use super::{opcode, open, request};
use crate::SharedPages;
use crate::linux::explain;

/// The device. Closing it ends all grants made with it; the kernel keeps a page that a peer still
/// uses until the peer releases it.
#[derive(Debug)]
pub struct Gntalloc {
    fd: OwnedFd,
}

/// Pages that can be shared in one run.
pub const RUN_MAX: usize = 512; // not a limit: our own pages

/// The file with the limit of pages that all programs of this domain may share together.
pub const LIMIT_FILE: &str = "/sys/module/xen_gntalloc/parameters/limit";

impl Gntalloc {
    /// Opens the device.
    ///
    /// # Errors
    /// With the remedy.
    pub fn open() -> io::Result<Gntalloc> {
        Ok(Gntalloc { fd: open("/dev/xen/gntalloc", "xen-gntalloc", OFlags::empty())? })
    }

    /// Takes `count` zeroed pages and grants each to `peer`; also returns the number by which
    /// [`release`](Gntalloc::release) identifies them.
    ///
    /// # Errors
    /// Of kind `InvalidInput` if `count` is 0 or more than [`RUN_MAX`], `OutOfMemory` at the
    /// module's limit, with the remedy, or when the grant table is full.
    pub fn share(
        &self,
        peer: DomId,
        count: usize,
        writable: bool,
    ) -> io::Result<(SharedPages, Vec<GrantRef>, u64)> {
        let pages = u32::try_from(count).ok().filter(|_| (1..=RUN_MAX).contains(&count));
        let pages = pages.ok_or(io::ErrorKind::InvalidInput)?;
        let flags = if writable { FLAG_WRITABLE } else { 0 };
        let mut run = Run {
            head: RunHead { domid: peer.0, flags, count: pages, index: 0 },
            grefs: [0; RUN_MAX],
        };
        // SAFETY: it is the grant allocator, which takes this head for this opcode and writes as
        // many references after it as the head requests, which is not more than there is room for.
        unsafe { request::<ALLOC_GREF, _>(&self.fd, &mut run) }
            .map_err(|error| out_of_memory(error, count))?;
        let index = run.head.index;
        let grefs = run.grefs.iter().take(count).map(|gref| GrantRef(*gref)).collect();
        match SharedPages::map(&self.fd, index, count * PAGE_SIZE) {
            Ok(pages) => Ok((pages, grefs, index)),
            Err(error) => {
                self.release(index, count)?;
                Err(explain(error, "map granted pages"))
            }
        }
    }

    /// Ends the grants of a run. Its memory is freed when it is neither mapped here nor used by the
    /// peer.
    ///
    /// # Errors
    /// If there is no such run.
    pub fn release(&self, index: u64, count: usize) -> io::Result<()> {
        let count = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut argument = Release { index, count, _pad: 0 };
        // SAFETY: it is the grant allocator, which takes this structure for this opcode.
        unsafe { request::<DEALLOC_GREF, _>(&self.fd, &mut argument) }?;
        Ok(())
    }
}

/// The kernel reports its own limit and a full grant table as the same error.
fn out_of_memory(error: Errno, count: usize) -> io::Error {
    match error {
        Errno::NOSPC | Errno::NOMEM => {
            let limit = fs::read_to_string(LIMIT_FILE).unwrap_or_default();
            io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "no room to grant {count} more pages; the limit for all programs is {}; write \
                     a larger one to {LIMIT_FILE}",
                    limit.trim()
                ),
            )
        }
        _ => explain(error, "grant pages"),
    }
}

const ALLOC_GREF: Opcode = opcode::<OneRun>(b'G', 5);
const DEALLOC_GREF: Opcode = opcode::<Release>(b'G', 6);

/// `GNTALLOC_FLAG_WRITABLE`.
const FLAG_WRITABLE: u16 = 1;

/// `struct ioctl_gntalloc_alloc_gref` up to its references.
#[repr(C)]
struct RunHead {
    domid: u16,
    flags: u16,
    count: u32,
    index: u64,
}

/// The structure as the kernel declares it, with one reference: the opcode contains its size.
#[repr(C)]
struct OneRun {
    head: RunHead,
    grefs: [u32; 1],
}

#[repr(C)]
struct Run {
    head: RunHead,
    grefs: [u32; RUN_MAX],
}

/// `struct ioctl_gntalloc_dealloc_gref`.
#[repr(C)]
struct Release {
    index: u64,
    count: u32,
    _pad: u32,
}

const _: () = assert!(size_of::<OneRun>() == 24 && size_of::<Release>() == 16);
