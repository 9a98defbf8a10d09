//! Split queues: a table of descriptors, a ring of available heads, and a ring of used heads.
//! Indices run freely over 16 bits.

mod device;
mod driver;

pub use device::{Singles, SplitDevice, SplitPosition};
pub use driver::SplitDriver;

use ringway_wire::virtio::{Desc, UsedElem, avail, used};

use crate::chain::Entry;
use crate::{QueueFault, Result};

/// Byte offset of a descriptor in its table.
#[inline]
fn desc_at(index: u16) -> usize {
    usize::from(index) * size_of::<Desc>()
}

/// Byte offset of the available entry of an index.
#[inline]
fn avail_at(index: u16, size: u16) -> usize {
    avail::RING + usize::from(index & (size - 1)) * size_of::<u16>()
}

/// Byte offset of the used entry of an index.
#[inline]
fn used_at(index: u16, size: u16) -> usize {
    used::RING + usize::from(index & (size - 1)) * size_of::<UsedElem>()
}

#[inline]
fn entry_of(desc: Desc) -> Entry {
    Entry { address: desc.addr, len: desc.len, flags: desc.flags }
}

/// The index of the next descriptor of a chain, in a table of this size.
#[inline]
fn next_of(desc: Desc, size: u16) -> Result<u16> {
    if desc.next >= size {
        return Err(QueueFault::NextOutOfRange { next: desc.next, size });
    }
    Ok(desc.next)
}
