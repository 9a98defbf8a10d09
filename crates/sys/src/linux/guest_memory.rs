//! The memory of a virtual machine, as regions of files that its front-end shares.
//!
//! A [`GuestMemory`] is an immutable table; a change of regions creates a new one, which shares the
//! unchanged mappings. Two kinds of addresses refer to it: the guest's, in descriptors, and the
//! front-end's own, in messages about the location of rings. Every access is checked against the
//! table, and nothing that the peer does to its files ends this process: see `guard.rs`.

mod error;
mod loss;
mod other;
mod view;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat, fstatfs};
use rustix::io::Errno;

use crate::SharedPages;
use crate::linux::descriptor::{self, Kind};
use crate::linux::guard::GuardedMapping;
pub use crate::linux::share::{FRONT_ENDS_MAX, MappingShare, NoShareLeft};
pub use error::{MapError, Purpose};
pub use loss::LossCheck;
pub use other::{DirtyLog, SharedFile};
pub use view::{GuestView, Window};

/// The most regions of a table: as many as QEMU has slots.
pub const REGIONS_MAX: usize = 509;
/// Guest memory per bit of a [`DirtyLog`], in bytes.
pub const LOG_PAGE: u64 = 4096;

/// Bytes of memory of this host, once [`prepare`] has asked for them.
static HOST_MEMORY: OnceLock<u64> = OnceLock::new();

/// Asks the system once for the values that mapping needs, while that is still allowed: a confined
/// process can read neither the page size nor a file.
pub fn prepare() {
    let _ = rustix::param::page_size();
    let found = rustix::system::sysinfo();
    let _ = HOST_MEMORY.set(found.totalram.saturating_mul(found.mem_unit.into()));
}

/// Bytes of memory of this host; 0 unless [`prepare`] was called.
pub fn host_memory() -> u64 {
    HOST_MEMORY.get().copied().unwrap_or_default()
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
    /// Whether zeros replaced it, because its file was truncated or had no memory for a page.
    pub is_lost: bool,
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
    memory: SharedFile,
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
        let Region { guest_address, user_address, len, file_offset, ref fd } = region;
        let purpose = Purpose::Region { guest_address };
        for address in [guest_address, user_address] {
            if address.checked_add(len).is_none() {
                return Err(MapError::Wraps { purpose, address, len });
            }
        }
        let new = Announced::check(purpose, fd, file_offset, len)?;
        if self.regions.iter().any(|mapped| mapped.is(&region, new.file)) {
            return Ok(self.clone());
        }
        if let Some(other) = self.regions.iter().find(|mapped| mapped.overlaps(&region)) {
            return Err(MapError::Overlap {
                guest_address,
                user_address,
                len,
                other_guest_address: other.guest_address,
                other_user_address: other.user_address,
                other_len: other.len,
            });
        }
        if self.regions.len() == REGIONS_MAX {
            return Err(MapError::TooMany);
        }
        let mapped = Mapped {
            guest_address,
            user_address,
            len,
            memory: new.map(&self.share, fd)?,
            file: new.file,
            may_shrink: new.may_shrink(),
        };
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
            is_lost: region.memory.is_lost(),
        })
    }

    /// Whether zeros replaced a region. See [`LossCheck`] for when to ask.
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.memory.is_lost())
    }

    /// Memory at a front-end address, as messages use for rings, within one region.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn pages_of_user(&self, address: u64, len: u64) -> Result<SharedPages, OutsideMemory> {
        let inside = self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(region.user_address)?;
            let is_inside = offset <= region.len && len <= region.len - offset;
            let offset = usize::try_from(offset).ok()?;
            is_inside.then(|| region.memory.pages().slice(offset..offset + len as usize))
        });
        inside.ok_or(OutsideMemory { address, len })
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

/// What is known about an announced part of a file before it is mapped.
struct Announced {
    purpose: Purpose,
    len: u64,
    file: FilePlace,
    seals: SealFlags,
    /// The page size of the file, in bytes; every mapping is a multiple of it.
    page: u64,
    is_huge: bool,
}

impl Announced {
    fn check(
        purpose: Purpose,
        fd: &OwnedFd,
        file_offset: u64,
        len: u64,
    ) -> Result<Announced, MapError> {
        if len == 0 {
            return Err(MapError::Empty { purpose });
        }
        if file_offset.checked_add(len).is_none() {
            return Err(MapError::Wraps { purpose, address: file_offset, len });
        }
        let host = |error: io::Error| MapError::Host { purpose, len, error };
        let errno = |error: Errno| host(error.into());
        // Before anything that might block on the process behind it.
        match descriptor::kind(fd).map_err(host)? {
            Kind::Local => {}
            other => return Err(MapError::NotAFile { purpose, kind: other.name() }),
        }
        let stat = fstat(fd).map_err(errno)?;
        let file_len = u64::try_from(stat.st_size).unwrap_or(0);
        if file_offset + len > file_len {
            return Err(MapError::Short { purpose, file_offset, len, file_len });
        }
        // A file that does not support seals has none.
        let seals = fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
        let system = fstatfs(fd).map_err(errno)?;
        let is_huge = system.f_type as i64 == HUGETLBFS_MAGIC;
        let page = match is_huge {
            true => u64::try_from(system.f_bsize).unwrap_or(0),
            false => rustix::param::page_size() as u64,
        };
        Ok(Announced {
            purpose,
            len,
            file: FilePlace {
                device: stat.st_dev as u64,
                inode: stat.st_ino as u64,
                offset: file_offset,
            },
            seals,
            page: page.max(1),
            is_huge,
        })
    }

    fn may_shrink(&self) -> bool {
        !self.seals.contains(SealFlags::SHRINK)
    }

    fn map(&self, share: &Arc<MappingShare>, fd: &OwnedFd) -> Result<SharedFile, MapError> {
        self.try_map(share, fd).map_err(|error| self.explain(fd, error))
    }

    fn try_map(&self, share: &Arc<MappingShare>, fd: &OwnedFd) -> io::Result<SharedFile> {
        let skip = self.file.offset % self.page;
        let too_long = || io::Error::from(io::ErrorKind::OutOfMemory);
        let whole = (skip + self.len).checked_next_multiple_of(self.page).ok_or_else(too_long)?;
        let whole = usize::try_from(whole).map_err(|_| too_long())?;
        let mapping = GuardedMapping::new(share, fd, self.file.offset - skip, whole)?;
        let skip = skip as usize;
        Ok(SharedFile::new(mapping, skip..skip + self.len as usize))
    }

    /// Names what the front-end can change, if that is why a file could not be mapped.
    fn explain(&self, fd: &OwnedFd, error: io::Error) -> MapError {
        let Announced { purpose, len, page, .. } = *self;
        let access = fcntl_getfl(fd).map(|flags| flags & OFlags::RWMODE);
        match (Errno::from_io_error(&error), access) {
            (Some(Errno::ACCESS), Ok(OFlags::RDONLY)) => {
                MapError::Access { purpose, access: "read-only" }
            }
            (Some(Errno::ACCESS), Ok(OFlags::WRONLY)) => {
                MapError::Access { purpose, access: "write-only" }
            }
            (Some(Errno::PERM), _)
                if self.seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) =>
            {
                MapError::Sealed { purpose }
            }
            (Some(Errno::NOMEM), _) if self.is_huge => {
                MapError::HugePages { purpose, len, page, error }
            }
            _ => MapError::Host { purpose, len, error },
        }
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
