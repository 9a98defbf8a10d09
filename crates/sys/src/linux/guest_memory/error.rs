//! Why memory of a front-end is not mapped.

use std::fmt;
use std::io;

use super::REGIONS_MAX;
use crate::linux::share::NoShareLeft;

/// What a front-end's memory is for, in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A region of its guest's memory.
    Region {
        /// Its first address in the guest.
        guest_address: u64,
    },
    /// The log of written pages.
    DirtyLog,
    /// The record of chains in flight.
    InflightArea,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Purpose::Region { guest_address } => {
                write!(f, "the region at guest address {guest_address:#x}")
            }
            Purpose::DirtyLog => f.write_str("the dirty log (SET_LOG_BASE)"),
            Purpose::InflightArea => f.write_str("the inflight area (SET_INFLIGHT_FD)"),
        }
    }
}

/// Why memory of a front-end is refused.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Memory of no bytes.
    #[error("{purpose} has no bytes")]
    Empty {
        /// What it is for.
        purpose: Purpose,
    },
    /// Memory that wraps around to address 0.
    #[error("{purpose}: {len:#x} bytes from {address:#x} on go beyond the last address")]
    Wraps {
        /// What it is for.
        purpose: Purpose,
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
        "the descriptor of {purpose} is {kind}, expected a memfd, or a file in /dev/shm, on huge \
         pages or on a disk"
    )]
    NotAFile {
        /// What it is for.
        purpose: Purpose,
        /// The kind of the descriptor.
        kind: &'static str,
    },
    /// Memory beyond the end of its file.
    #[error(
        "{purpose}, {len:#x} bytes from {file_offset:#x} on, is longer than its file, which has \
         {file_len:#x} bytes"
    )]
    Short {
        /// What it is for.
        purpose: Purpose,
        /// Its byte offset in the file.
        file_offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the file.
        file_len: u64,
    },
    /// The file is not open for reading and writing.
    #[error(
        "the descriptor of {purpose} is {access}: the front-end must open the file for reading \
         and writing"
    )]
    Access {
        /// What it is for.
        purpose: Purpose,
        /// How the file is open.
        access: &'static str,
    },
    /// The file is sealed against writing.
    #[error(
        "the file of {purpose} is sealed against writing: the front-end must share a file without \
         F_SEAL_WRITE and F_SEAL_FUTURE_WRITE"
    )]
    Sealed {
        /// What it is for.
        purpose: Purpose,
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
    /// No memory for a file on huge pages.
    #[error(
        "mapping {len:#x} bytes of {purpose}: {error}; there may be too few free huge pages of \
         {page:#x} bytes (vm.nr_hugepages)"
    )]
    HugePages {
        /// What it is for.
        purpose: Purpose,
        /// Bytes.
        len: u64,
        /// Bytes of a huge page of the file.
        page: u64,
        /// Why.
        error: io::Error,
    },
    /// The host's system refused a call.
    #[error("mapping {len:#x} bytes of {purpose}: {error}")]
    Host {
        /// What it is for.
        purpose: Purpose,
        /// Bytes.
        len: u64,
        /// Why.
        error: io::Error,
    },
}
