//! Grant table entries, version 1 (`grant_table.h`: `grant_entry_v1`).
//!
//! ringway uses version 1, which has security support on every architecture. Its frame numbers have
//! 32 bits.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{DomId, GrantRef, PAGE_SIZE};

/// One entry of a v1 grant table: 8 bytes, shared with the hypervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantEntryV1 {
    /// `GTF_*` bits.
    pub flags: u16,
    /// The domain that may use the entry.
    pub domid: u16,
    /// The granted frame number of the granting domain.
    pub frame: u32,
}

/// The entry is invalid (`GTF_invalid`).
pub const GTF_INVALID: u16 = 0;
/// The entry allows `domid` to map or copy the frame (`GTF_permit_access`).
pub const GTF_PERMIT_ACCESS: u16 = 1;
/// The bits that hold the entry's type (`GTF_type_mask`).
pub const GTF_TYPE_MASK: u16 = 3;
/// Access is restricted to reading (`GTF_readonly`).
pub const GTF_READONLY: u16 = 1 << 2;
/// The hypervisor sets this while the frame is in use for reading (`GTF_reading`).
pub const GTF_READING: u16 = 1 << 3;
/// The hypervisor sets this while the frame is in use for writing (`GTF_writing`).
pub const GTF_WRITING: u16 = 1 << 4;

/// Entries in one page of a v1 table.
pub const ENTRIES_PER_PAGE: usize = PAGE_SIZE / size_of::<GrantEntryV1>();

/// References that a toolstack keeps for itself at the start of each table
/// (`GNTTAB_NR_RESERVED_ENTRIES`).
pub const RESERVED_ENTRIES: u32 = 8;

/// Status codes of grant operations (`GNTST_*`), as a port reports them per operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum GrantStatus {
    /// Done.
    Okay = 0,
    /// Undefined error.
    GeneralError = -1,
    /// Unrecognised or unreachable domain.
    BadDomain = -2,
    /// Unrecognised or inappropriate grant reference.
    BadGrantRef = -3,
    /// Not enough privilege for the operation.
    PermissionDenied = -8,
    /// The page does not exist.
    BadPage = -9,
    /// The copy crosses a page boundary or has another bad argument.
    BadCopyArg = -10,
    /// The page is paged out for now: try again.
    Again = -12,
}

impl GrantStatus {
    /// The status of a number that a hypervisor reports. An unknown number is a `GeneralError`.
    pub fn from_raw(raw: i16) -> GrantStatus {
        match raw {
            0 => GrantStatus::Okay,
            -2 => GrantStatus::BadDomain,
            -3 => GrantStatus::BadGrantRef,
            -8 => GrantStatus::PermissionDenied,
            -9 => GrantStatus::BadPage,
            -10 => GrantStatus::BadCopyArg,
            -12 => GrantStatus::Again,
            _ => GrantStatus::GeneralError,
        }
    }
}

/// One copy between a page of the peer and a local buffer.
///
/// It must not cross a page of the peer: `offset + len <= PAGE_SIZE`. The caller checks this before
/// it submits the batch, because a real hypervisor would refuse the whole batch.
#[derive(Debug, Clone, Copy)]
pub struct GrantCopy {
    /// The peer's page.
    pub gref: GrantRef,
    /// The offset in that page, in bytes.
    pub offset: u16,
    /// Bytes to copy.
    pub len: u16,
    /// The index of the local buffer.
    pub local: u16,
    /// The offset in the local buffer, in bytes.
    pub local_offset: u32,
    /// The outcome, written by the call.
    pub status: GrantStatus,
}

/// One copy from a page of one peer to a page of another, or of the same.
///
/// It must cross neither page, as [`GrantCopy`].
#[derive(Debug, Clone, Copy)]
pub struct PageCopy {
    /// The domain that grants the page to read.
    pub from: DomId,
    /// That page.
    pub from_gref: GrantRef,
    /// The offset in that page, in bytes.
    pub from_offset: u16,
    /// The page to write, of the domain that the call names.
    pub to_gref: GrantRef,
    /// The offset in that page, in bytes.
    pub to_offset: u16,
    /// Bytes to copy.
    pub len: u16,
    /// The outcome, written by the call. It does not say which of the two pages was refused.
    pub status: GrantStatus,
}

impl PageCopy {
    /// Whether it stays inside both pages.
    #[inline]
    pub fn is_in_pages(&self) -> bool {
        let end = |offset: u16| usize::from(offset) + usize::from(self.len);
        end(self.from_offset) <= PAGE_SIZE && end(self.to_offset) <= PAGE_SIZE
    }
}

const _: () = assert!(size_of::<GrantEntryV1>() == 8);
