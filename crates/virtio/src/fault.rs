//! Violations of the queue protocol by a peer.

use ringway_sys::guest_memory::OutsideMemory;

use crate::{Access, InflightFault};

/// A violation by the driver, with the numbers that prove it. The queue cannot be used any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueFault {
    /// More chains than the queue has entries.
    #[error("avail index {produced} is {ahead} ahead, the queue has {size} entries")]
    RanAhead {
        /// The index as read; for a packed queue, the device's position.
        produced: u16,
        /// How far it is ahead of the used index.
        ahead: u16,
        /// Entries of the queue.
        size: u16,
    },
    /// The inflight area of an earlier device is invalid.
    #[error(transparent)]
    Inflight(#[from] InflightFault),
    /// A chain begins outside the descriptor table.
    #[error("a chain begins at descriptor {head}, the queue has {size}")]
    HeadOutOfRange {
        /// The head as read.
        head: u16,
        /// Descriptors of the queue.
        size: u16,
    },
    /// A chain continues outside its table.
    #[error("a chain continues at descriptor {next}, its table has {size}")]
    NextOutOfRange {
        /// The next descriptor as read.
        next: u16,
        /// Descriptors of the table.
        size: u16,
    },
    /// A packed chain has an invalid buffer id.
    #[error("a chain has the buffer id {id}, the queue has {size} entries")]
    IdOutOfRange {
        /// The id as read.
        id: u16,
        /// Entries of the queue.
        size: u16,
    },
    /// A chain has more descriptors than the queue has entries: usually a loop.
    #[error("a chain of more than {limit} descriptors")]
    ChainTooLong {
        /// The limit.
        limit: u16,
    },
    /// An indirect table that was not negotiated, that is inside another indirect table, or whose
    /// descriptor also has a next one.
    #[error("descriptor {index} has the flags {flags:#x}: an indirect table may not be there")]
    BadIndirect {
        /// The descriptor.
        index: u16,
        /// Its flags as read.
        flags: u16,
    },
    /// The length of an indirect table is not a whole number of descriptors, is zero, or is too
    /// large.
    #[error("an indirect table of {len} bytes, expected 16 for each of 1 to {size} descriptors")]
    IndirectLen {
        /// Bytes.
        len: u32,
        /// Entries of the queue.
        size: u16,
    },
    /// A chain is longer than any frame needs.
    #[error("a chain of {bytes} bytes, at most {limit}")]
    TooManyBytes {
        /// Bytes so far.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A buffer wraps around to address 0.
    #[error("a buffer of {len} bytes at {address:#x} goes beyond the last address")]
    AddressWraps {
        /// Where it begins.
        address: u64,
        /// Bytes.
        len: u32,
    },
    /// A buffer has the wrong direction.
    #[error("descriptor {index} has the flags {flags:#x}: the queue's buffers are {expected}")]
    WrongDirection {
        /// The descriptor.
        index: u16,
        /// Its flags as read.
        flags: u16,
        /// The expected direction.
        expected: Access,
    },
    /// A buffer or table is outside the guest's memory.
    #[error(transparent)]
    Outside(#[from] OutsideMemory),
}

/// A violation by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UsedFault {
    /// More chains are used than were made available.
    #[error("used index {produced} is {ahead} ahead, {outstanding} chains are outstanding")]
    RanAhead {
        /// The index as read.
        produced: u16,
        /// How far it is ahead.
        ahead: u16,
        /// Chains that the device has.
        outstanding: u16,
    },
    /// The device used a chain that it does not have.
    #[error("chain {id} is used, which is not outstanding")]
    Unknown {
        /// The id as read.
        id: u32,
    },
    /// The device reports more bytes than the chain has room for.
    #[error("{len} bytes were written to chain {id}, which has room for {room}")]
    TooManyBytes {
        /// The chain.
        id: u16,
        /// Bytes as read.
        len: u32,
        /// Bytes of its writable buffers.
        room: u32,
    },
}
