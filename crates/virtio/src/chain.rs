//! A descriptor chain after it has been read and checked.

use ringway_sys::guest_memory::GuestView;
use ringway_wire::virtio::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Access, QueueFault};

/// A range of guest memory. It does not wrap around; whether it is mapped is checked when it is
/// copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buffer {
    /// The guest's address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// A chain that was taken and must be used exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain {
    /// The number by which the driver knows it.
    pub id: u16,
    /// Ring descriptors that it occupies.
    pub slots: u16,
}

/// The buffers of one chain. Allocated once per queue, so that reading a chain allocates nothing.
#[derive(Debug)]
pub struct Buffers {
    list: Vec<Buffer>,
    bytes: u64,
    /// The most descriptors of a chain: as many as the queue has entries.
    limit: u16,
}

impl Buffers {
    /// For chains of a queue with `size` entries.
    pub fn new(size: u16) -> Buffers {
        Buffers { list: Vec::with_capacity(usize::from(size)), bytes: 0, limit: size }
    }

    /// The buffers, in order.
    #[inline]
    pub fn list(&self) -> &[Buffer] {
        &self.list
    }

    /// Total bytes of all buffers.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }

    /// Adds a descriptor's buffer.
    #[inline]
    pub(crate) fn push(&mut self, index: u16, entry: Entry, due: Access) -> Result<(), QueueFault> {
        let Entry { address, len, flags } = entry;
        if flags & VRING_DESC_F_WRITE != due.flag() {
            return Err(QueueFault::WrongDirection { index, flags, expected: due });
        }
        if self.list.len() >= usize::from(self.limit) {
            return Err(QueueFault::ChainTooLong { limit: self.limit });
        }
        if address.checked_add(u64::from(len)).is_none() {
            return Err(QueueFault::AddressWraps { address, len });
        }
        self.bytes += u64::from(len);
        let limit = due.bytes_max();
        if self.bytes > limit {
            return Err(QueueFault::TooManyBytes { bytes: self.bytes, limit });
        }
        self.list.push(Buffer { address, len });
        Ok(())
    }

    /// The number of descriptors in the table of an indirect descriptor.
    pub(crate) fn table_len(&self, entry: Entry) -> Result<u16, QueueFault> {
        let (len, size) = (entry.len, self.limit);
        let count = u16::try_from(len / DESC_LEN).unwrap_or(u16::MAX);
        if len % DESC_LEN != 0 || count == 0 || count > size {
            return Err(QueueFault::IndirectLen { len, size });
        }
        if entry.address.checked_add(u64::from(len)).is_none() {
            return Err(QueueFault::AddressWraps { address: entry.address, len });
        }
        Ok(count)
    }
}

/// Bytes of a descriptor, in a ring or a table.
const DESC_LEN: u32 = 16;

/// The fields that split and packed descriptors have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
}

impl Entry {
    #[inline]
    pub(crate) fn has_next(self) -> bool {
        self.flags & VRING_DESC_F_NEXT != 0
    }

    #[inline]
    pub(crate) fn is_indirect(self) -> bool {
        self.flags & VRING_DESC_F_INDIRECT != 0
    }

    /// Descriptor `index` of the indirect table. Tables need not be aligned, so it is copied.
    pub(crate) fn of_table<D: FromBytes + IntoBytes>(
        self,
        guest: &GuestView,
        index: u16,
    ) -> Result<D, QueueFault> {
        let mut desc = D::new_zeroed();
        let offset = u64::from(index) * u64::from(DESC_LEN);
        guest.copy_to(self.address + offset, desc.as_mut_bytes())?;
        Ok(desc)
    }
}
