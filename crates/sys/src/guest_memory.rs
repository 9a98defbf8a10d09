//! The memory of a virtual machine, as regions of files that its front-end shares.
//!
//! A [`GuestMemory`] is an immutable table; a change of regions creates a new one, which shares the
//! unchanged mappings. Two kinds of addresses refer to it: the guest's, in descriptors, and the
//! front-end's own, in messages about the location of rings. Every access is checked against the
//! table, and nothing that the peer does to its files ends this process: see `guard.rs`.

mod view;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};

use crate::SharedPages;
use crate::descriptor::{self, Kind};
use crate::guard::GuardedMapping;
pub use crate::share::{FRONT_ENDS_MAX, MappingShare, NoShareLeft};
pub use view::{GuestView, Window};

/// The most regions of a table: as many as QEMU has slots.
pub const REGIONS_MAX: usize = 509;
/// Guest memory per bit of a [`DirtyLog`], in bytes.
pub const LOG_PAGE: u64 = 4096;

/// Asks the system once for the values that mapping needs, while that is still allowed: a confined
/// process can read neither the page size nor a file.
pub fn prepare() {
    let _ = rustix::param::page_size();
}

/// Guest memory in a file, as a front-end announces it.
#[derive(Debug)]
pub struct Region {
    /// Its first address in the guest.
    pub guest_address: u64,
    /// Its first address in the front-end's address space.
    pub user_address: u64,
    /// Bytes.
    pub len: u64,
    /// Its byte offset in the file.
    pub file_offset: u64,
    /// A regular file or a memfd.
    pub fd: OwnedFd,
}

/// Information on a mapped region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionInfo {
    /// Its first address in the guest.
    pub guest_address: u64,
    /// Its first address in the front-end's address space.
    pub user_address: u64,
    /// Bytes.
    pub len: u64,
    /// Whether the file may be truncated: it is not sealed against shrinking.
    pub may_shrink: bool,
    /// Whether it was truncated.
    pub is_lost: bool,
}

/// Why a region is refused.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// A region of no bytes.
    #[error("the region at guest address {guest_address:#x} has no bytes")]
    Empty {
        /// The guest's address.
        guest_address: u64,
    },
    /// A region that wraps around to address 0.
    #[error("a region of {len:#x} bytes at {address:#x} goes beyond the last address")]
    Wraps {
        /// The guest's or the front-end's address, or the offset in the file.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// Two regions overlap.
    #[error(
        "the region of {len:#x} bytes at guest address {guest_address:#x}, front-end address \
         {user_address:#x}, overlaps the one of {other_len:#x} bytes at {other_guest_address:#x}, \
         {other_user_address:#x}"
    )]
    Overlap {
        /// The guest's address.
        guest_address: u64,
        /// The front-end's address.
        user_address: u64,
        /// Bytes.
        len: u64,
        /// The guest's address of the other region.
        other_guest_address: u64,
        /// The front-end's address of the other region.
        other_user_address: u64,
        /// Bytes of the other region.
        other_len: u64,
    },
    /// More regions than a table may have.
    #[error("more than {REGIONS_MAX} regions")]
    TooMany,
    /// The descriptor is not memory.
    #[error(
        "the descriptor of a region is {kind}, expected a memfd, or a file in /dev/shm, on huge \
         pages or on a disk"
    )]
    NotAFile {
        /// The kind of the descriptor.
        kind: &'static str,
    },
    /// A region beyond the end of its file.
    #[error(
        "a region of {len:#x} bytes from {file_offset:#x} on is longer than its file, which has \
         {file_len:#x} bytes"
    )]
    Short {
        /// The byte offset of the region in the file.
        file_offset: u64,
        /// Bytes of the region.
        len: u64,
        /// Bytes of the file.
        file_len: u64,
    },
    /// A region to remove that does not exist.
    #[error("there is no region of {len:#x} bytes at guest address {guest_address:#x}")]
    NotThere {
        /// The guest's address.
        guest_address: u64,
        /// Bytes.
        len: u64,
    },
    /// More front-ends than shares.
    #[error(transparent)]
    NoShareLeft(#[from] NoShareLeft),
    /// The host's system refused a call.
    #[error("mapping a region of {len:#x} bytes: {error}")]
    Host {
        /// Bytes.
        len: u64,
        /// Why.
        error: io::Error,
    },
}

/// Bytes outside of all regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {address:#x} are not all in the regions of memory")]
pub struct OutsideMemory {
    /// The first address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

/// All regions of a virtual machine, in the order of guest addresses.
#[derive(Clone)]
pub struct GuestMemory {
    share: Arc<MappingShare>,
    regions: Box<[Arc<Mapped>]>,
}

struct Mapped {
    guest_address: u64,
    user_address: u64,
    len: u64,
    pages: SharedPages,
    mapping: Arc<GuardedMapping>,
    file: FilePlace,
    may_shrink: bool,
}

/// The location of a region in its file, to recognize the same region again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FilePlace {
    device: u64,
    inode: u64,
    offset: u64,
}

impl GuestMemory {
    /// A table without regions, for a front-end with this share.
    pub fn empty(share: Arc<MappingShare>) -> GuestMemory {
        GuestMemory { share, regions: Box::default() }
    }

    /// Maps the regions of a front-end that has no share yet. Duplicates are mapped once.
    ///
    /// # Errors
    /// [`MapError`]; then nothing stays mapped.
    pub fn map(regions: Vec<Region>) -> Result<GuestMemory, MapError> {
        GuestMemory::empty(MappingShare::new()?).with_all(regions)
    }

    /// This table with more regions.
    ///
    /// # Errors
    /// [`MapError`]; then none of them stays mapped.
    pub fn with_all(&self, regions: Vec<Region>) -> Result<GuestMemory, MapError> {
        regions.into_iter().try_fold(self.clone(), |memory, region| memory.with(region))
    }

    /// This table with one more region. The same region again is not an error: QEMU adds it for
    /// each pair of queues.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn with(&self, region: Region) -> Result<GuestMemory, MapError> {
        let new = Announced::check(&region)?;
        if self.regions.iter().any(|mapped| mapped.is(&region, new.file)) {
            return Ok(self.clone());
        }
        if let Some(other) = self.regions.iter().find(|mapped| mapped.overlaps(&region)) {
            return Err(MapError::Overlap {
                guest_address: region.guest_address,
                user_address: region.user_address,
                len: region.len,
                other_guest_address: other.guest_address,
                other_user_address: other.user_address,
                other_len: other.len,
            });
        }
        if self.regions.len() == REGIONS_MAX {
            return Err(MapError::TooMany);
        }
        let mapped = new.map(&self.share, &region);
        let mapped = mapped.map_err(|error| MapError::Host { len: region.len, error })?;
        let mut regions = self.regions.to_vec();
        regions.push(Arc::new(mapped));
        regions.sort_unstable_by_key(|mapped| mapped.guest_address);
        Ok(GuestMemory { share: Arc::clone(&self.share), regions: regions.into() })
    }

    /// This table without one region.
    ///
    /// # Errors
    /// [`MapError::NotThere`].
    pub fn without(
        &self,
        guest_address: u64,
        user_address: u64,
        len: u64,
    ) -> Result<GuestMemory, MapError> {
        let sought = (guest_address, user_address, len);
        let is_it = |region: &Arc<Mapped>| {
            (region.guest_address, region.user_address, region.len) == sought
        };
        let regions: Box<[_]> = self.regions.iter().filter(|it| !is_it(it)).cloned().collect();
        match regions.len() < self.regions.len() {
            true => Ok(GuestMemory { share: Arc::clone(&self.share), regions }),
            false => Err(MapError::NotThere { guest_address, len }),
        }
    }

    /// Every region, in the order of the guest's addresses.
    pub fn regions(&self) -> impl Iterator<Item = RegionInfo> + '_ {
        self.regions.iter().map(|region| RegionInfo {
            guest_address: region.guest_address,
            user_address: region.user_address,
            len: region.len,
            may_shrink: region.may_shrink,
            is_lost: region.mapping.is_lost(),
        })
    }

    /// Whether a file was truncated below its region, which was then replaced by zeros.
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_lost())
    }

    /// Memory at a front-end address, as messages use for rings, within one region.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn pages_of_user(&self, address: u64, len: u64) -> Result<SharedPages, OutsideMemory> {
        self.pages_by(address, len, |region| region.user_address)
    }

    /// Memory at a guest address, within one region.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn pages_of_guest(&self, address: u64, len: u64) -> Result<SharedPages, OutsideMemory> {
        self.pages_by(address, len, |region| region.guest_address)
    }

    /// The guest address of bytes at the front-end's `address`, within one region.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn guest_of_user(&self, address: u64, len: u64) -> Result<u64, OutsideMemory> {
        let inside = self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(region.user_address)?;
            (offset <= region.len && len <= region.len - offset)
                .then(|| region.guest_address + offset)
        });
        inside.ok_or(OutsideMemory { address, len })
    }

    fn pages_by(
        &self,
        address: u64,
        len: u64,
        start: impl Fn(&Mapped) -> u64,
    ) -> Result<SharedPages, OutsideMemory> {
        let inside = self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(start(region))?;
            let is_inside = offset <= region.len && len <= region.len - offset;
            let offset = usize::try_from(offset).ok()?;
            is_inside.then(|| region.pages.slice(offset..offset + len as usize))
        });
        inside.ok_or(OutsideMemory { address, len })
    }

    /// The region that contains a guest address.
    fn find(&self, address: u64) -> Option<usize> {
        let behind = self.regions.partition_point(|region| region.guest_address <= address);
        let index = behind.checked_sub(1)?;
        (address - self.regions[index].guest_address < self.regions[index].len).then_some(index)
    }
}

impl fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.regions()).finish()
    }
}

/// What is known about an announced region before it is mapped.
struct Announced {
    file: FilePlace,
    may_shrink: bool,
    /// The page size of the file, in bytes; every mapping is a multiple of it.
    page: u64,
}

impl Announced {
    fn check(region: &Region) -> Result<Announced, MapError> {
        let Region { guest_address, user_address, len, file_offset, ref fd } = *region;
        if len == 0 {
            return Err(MapError::Empty { guest_address });
        }
        for address in [guest_address, user_address, file_offset] {
            if address.checked_add(len).is_none() {
                return Err(MapError::Wraps { address, len });
            }
        }
        let host = |error: rustix::io::Errno| MapError::Host { len, error: error.into() };
        // Before anything that might block on the process behind it.
        match descriptor::kind(fd).map_err(|error| MapError::Host { len, error })? {
            Kind::Local => {}
            other => return Err(MapError::NotAFile { kind: other.name() }),
        }
        let stat = fstat(fd).map_err(host)?;
        let file_len = u64::try_from(stat.st_size).unwrap_or(0);
        if file_offset + len > file_len {
            return Err(MapError::Short { file_offset, len, file_len });
        }
        // A file that does not support seals has none.
        let seals = fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
        let system = fstatfs(fd).map_err(host)?;
        let page = match system.f_type as i64 {
            HUGETLBFS_MAGIC => u64::try_from(system.f_bsize).unwrap_or(0),
            _ => rustix::param::page_size() as u64,
        };
        Ok(Announced {
            file: FilePlace {
                device: stat.st_dev as u64,
                inode: stat.st_ino as u64,
                offset: file_offset,
            },
            may_shrink: !seals.contains(SealFlags::SHRINK),
            page: page.max(1),
        })
    }

    fn map(self, share: &Arc<MappingShare>, region: &Region) -> io::Result<Mapped> {
        let skip = region.file_offset % self.page;
        let too_long = || io::Error::from(io::ErrorKind::OutOfMemory);
        let whole = (skip + region.len).checked_next_multiple_of(self.page).ok_or_else(too_long)?;
        let whole = usize::try_from(whole).map_err(|_| too_long())?;
        let from = region.file_offset - skip;
        let mapping = GuardedMapping::new(share, region.fd.as_fd(), from, whole)?;
        let mapping = Arc::new(mapping);
        let skip = skip as usize;
        let range = skip..skip + region.len as usize;
        Ok(Mapped {
            guest_address: region.guest_address,
            user_address: region.user_address,
            len: region.len,
            pages: SharedPages::guarded(Arc::clone(&mapping), range),
            mapping,
            file: self.file,
            may_shrink: self.may_shrink,
        })
    }
}

impl Mapped {
    fn is(&self, region: &Region, file: FilePlace) -> bool {
        let own = (self.guest_address, self.user_address, self.len, self.file);
        own == (region.guest_address, region.user_address, region.len, file)
    }

    fn overlaps(&self, region: &Region) -> bool {
        // Neither sum wraps around; that was checked.
        let shares = |own: u64, other: u64| own < other + region.len && other < own + self.len;
        shares(self.guest_address, region.guest_address)
            || shares(self.user_address, region.user_address)
    }
}

/// The magic number in `statfs(2)` of files on huge pages.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Other memory of a front-end: `len` bytes of the file from `file_offset` on. If the file is
/// truncated later, private zeros replace it.
///
/// # Errors
/// [`MapError`].
pub fn map_shared(
    share: &Arc<MappingShare>,
    fd: OwnedFd,
    file_offset: u64,
    len: u64,
) -> Result<SharedPages, MapError> {
    map_file(share, fd, file_offset, len).map(|mapped| mapped.pages)
}

fn map_file(
    share: &Arc<MappingShare>,
    fd: OwnedFd,
    file_offset: u64,
    len: u64,
) -> Result<Mapped, MapError> {
    let region = Region { guest_address: 0, user_address: 0, len, file_offset, fd };
    let announced = Announced::check(&region)?;
    announced.map(share, &region).map_err(|error| MapError::Host { len, error })
}

/// The log of written pages, a bit for each, in memory of a front-end that migrates a guest.
///
/// Marks beyond the end of the log are dropped: the front-end decides its length.
#[derive(Debug, Clone)]
pub struct DirtyLog {
    pages: SharedPages,
    mapping: Arc<GuardedMapping>,
}

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
        let Mapped { pages, mapping, .. } = map_file(share, fd, file_offset, len)?;
        Ok(DirtyLog { pages, mapping })
    }

    /// Marks the pages of a range of guest memory as written.
    pub fn mark(&self, address: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = address.saturating_add(len - 1) / LOG_PAGE;
        let end = (self.pages.len() as u64).saturating_mul(8);
        for page in address / LOG_PAGE..=last {
            if page >= end {
                return;
            }
            self.pages.fetch_or_u8((page / 8) as usize, 1 << (page % 8));
        }
    }

    /// Whether its file was truncated, so that marks go to private memory.
    pub fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}
