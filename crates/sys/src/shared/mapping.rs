//! Shared memory that is a mapping of a file or a device.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{OutOfMemory, SharedPages};
use crate::linux::guard::GuardedMapping;

struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `Mapping` only records what to unmap; munmap may be called from any thread.
unsafe impl Send for Mapping {}
// SAFETY: no method of `Mapping` takes a shared reference.
unsafe impl Sync for Mapping {}

impl SharedPages {
    /// Maps `len` bytes of `fd` from `offset`, shared, for reading and writing.
    ///
    /// # Errors
    /// What mmap(2) reports. The caller ensures that the file cannot shrink (a sealed memfd, or a
    /// device mapping); otherwise an access beyond its end would be fatal.
    pub fn map(fd: impl AsFd, offset: u64, len: usize) -> io::Result<SharedPages> {
        SharedPages::map_with(ProtFlags::READ | ProtFlags::WRITE, fd, offset, len)
    }

    /// Maps part of a file for reading only: a write ends the process with `SIGSEGV`.
    ///
    /// # Errors
    /// As [`map`](SharedPages::map).
    pub fn map_read_only(fd: impl AsFd, offset: u64, len: usize) -> io::Result<SharedPages> {
        SharedPages::map_with(ProtFlags::READ, fd, offset, len)
    }

    /// A part of a mapping whose file may be truncated.
    pub(crate) fn guarded(mapping: Arc<GuardedMapping>, range: Range<usize>) -> SharedPages {
        let (base, len) = (mapping.base(), mapping.len());
        SharedPages { base, len, _memory: mapping }.slice(range)
    }

    fn map_with(
        protection: ProtFlags,
        fd: impl AsFd,
        offset: u64,
        len: usize,
    ) -> io::Result<SharedPages> {
        // SAFETY: a null hint with no MAP_FIXED cannot replace an existing mapping.
        let base = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, offset) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedPages { base, len, _memory: Arc::new(Mapping { base, len }) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was returned by mmap and no `SharedPages` refers to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

impl From<OutOfMemory> for io::Error {
    fn from(error: OutOfMemory) -> io::Error {
        io::Error::new(io::ErrorKind::OutOfMemory, error)
    }
}
