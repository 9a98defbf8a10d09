//! Memory of a front-end that is not its guest's.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Announced, LOG_PAGE, MapError, Purpose};
use crate::SharedPages;
use crate::linux::guard::{GuardedMapping, count_loss};
use crate::linux::share::MappingShare;

/// A part of a front-end's file. If the file is truncated later, private zeros replace it.
#[derive(Debug, Clone)]
pub struct SharedFile {
    pages: SharedPages,
    mapping: Arc<GuardedMapping>,
}

impl SharedFile {
    /// Maps `len` bytes of the file from `file_offset` on.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(
        share: &Arc<MappingShare>,
        purpose: Purpose,
        fd: OwnedFd,
        file_offset: u64,
        len: u64,
    ) -> Result<SharedFile, MapError> {
        Announced::check(purpose, &fd, file_offset, len)?.map(share, &fd)
    }

    /// A range of a mapping.
    pub(super) fn new(mapping: GuardedMapping, range: Range<usize>) -> SharedFile {
        let mapping = Arc::new(mapping);
        SharedFile { pages: SharedPages::guarded(Arc::clone(&mapping), range), mapping }
    }

    /// Its bytes.
    pub fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Whether zeros replaced it, because its file was truncated or had no memory for a page.
    pub fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}

/// The log of written pages, a bit for each, in memory of a front-end that migrates a guest.
#[derive(Debug)]
pub struct DirtyLog {
    file: SharedFile,
    /// The first page that was marked and has no bit in the log; [`NO_PAGE`] until then.
    outside: AtomicU64,
}

/// More than the number of any page.
const NO_PAGE: u64 = u64::MAX;

impl DirtyLog {
    /// Maps a log of `len` bytes of the file from `file_offset` on.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(
        share: &Arc<MappingShare>,
        fd: OwnedFd,
        file_offset: u64,
        len: u64,
    ) -> Result<DirtyLog, MapError> {
        let file = SharedFile::map(share, Purpose::DirtyLog, fd, file_offset, len)?;
        Ok(DirtyLog { file, outside: AtomicU64::new(NO_PAGE) })
    }

    /// Marks the pages of a range of guest memory as written. See [`DirtyLog::outside`] for those
    /// beyond the end of the log.
    pub fn mark(&self, address: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = address.saturating_add(len - 1) / LOG_PAGE;
        let end = self.pages_max();
        for page in address / LOG_PAGE..=last {
            if page >= end {
                return self.note_outside(page);
            }
            self.file.pages.fetch_or_u8((page / 8) as usize, 1 << (page % 8));
        }
    }

    #[cold]
    fn note_outside(&self, page: u64) {
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.outside.compare_exchange(NO_PAGE, page, set, fetch).is_ok() {
            count_loss();
        }
    }

    /// The first page that was marked though the log has no bit for it, if there was one: a
    /// migration would miss it.
    pub fn outside(&self) -> Option<u64> {
        Some(self.outside.load(Ordering::Relaxed)).filter(|page| *page != NO_PAGE)
    }

    /// Bytes of the log.
    pub fn size(&self) -> u64 {
        self.file.pages.len() as u64
    }

    /// The number of pages that it has bits for.
    pub fn pages_max(&self) -> u64 {
        self.size().saturating_mul(8)
    }

    /// Whether zeros replaced it, so that marks go to private memory.
    pub fn is_lost(&self) -> bool {
        self.file.is_lost()
    }
}
