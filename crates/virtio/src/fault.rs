//! What a peer can do wrong with a queue.

use ringway_sys::guest_memory::OutsideMemory;

use crate::{Access, InflightFault};

/// What no honest driver does. Each carries the numbers that make it a fault; the queue is of no
/// use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueFault {
    /// More chains than the queue has entries.
    #[error("avail index {produced} is {ahead} ahead, the queue has {size} entries")]
    RanAhead {
        /// The index as read, or where a packed queue stands.
        produced: u16,
        /// How far it is ahead of what is used.
        ahead: u16,
        /// Entries of the queue.
        size: u16,
    },
    /// What an earlier device is said to have left cannot be.
    #[error(transparent)]
    Inflight(#[from] InflightFault),
    /// A chain that begins outside the table of descriptors.
    #[error("a chain begins at descriptor {head}, the queue has {size}")]
    HeadOutOfRange {
        /// The head as read.
        head: u16,
        /// Descriptors of the queue.
        size: u16,
    },
    /// A chain that goes on outside its table.
    #[error("a chain goes on at descriptor {next}, its table has {size}")]
    NextOutOfRange {
        /// The next descriptor as read.
        next: u16,
        /// Descriptors of the table.
        size: u16,
    },
    /// A packed chain that names a buffer that cannot be.
    #[error("a chain has the buffer id {id}, the queue has {size} entries")]
    IdOutOfRange {
        /// The id as read.
        id: u16,
        /// Entries of the queue.
        size: u16,
    },
    /// A chain of more descriptors than the queue has entries: a loop, mostly.
    #[error("a chain of more than {limit} descriptors")]
    ChainTooLong {
        /// The limit.
        limit: u16,
    },
    /// An indirect table where none was negotiated, or in an indirect table, or beside a next one.
    #[error("descriptor {index} has the flags {flags:#x}: an indirect table may not be there")]
    BadIndirect {
        /// The descriptor.
        index: u16,
        /// Its flags as read.
        flags: u16,
    },
    /// An indirect table that is no whole number of descriptors, has none, or too many.
    #[error("an indirect table of {len} bytes, expected 16 for each of 1 to {size} descriptors")]
    IndirectLen {
        /// Bytes.
        len: u32,
        /// Entries of the queue.
        size: u16,
    },
    /// A chain that no frame needs.
    #[error("a chain of {bytes} bytes, at most {limit}")]
    TooManyBytes {
        /// Bytes so far.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A buffer that goes on at address 0.
    #[error("a buffer of {len} bytes at {address:#x} goes beyond the last address")]
    AddressWraps {
        /// Where it begins.
        address: u64,
        /// Bytes.
        len: u32,
    },
    /// A buffer for the other direction.
    #[error("descriptor {index} has the flags {flags:#x}: the queue's buffers are {expected}")]
    WrongDirection {
        /// The descriptor.
        index: u16,
        /// Its flags as read.
        flags: u16,
        /// What is expected.
        expected: Access,
    },
    /// A buffer or table that is not in the guest's memory.
    #[error(transparent)]
    Outside(#[from] OutsideMemory),
}

/// What no honest device does.
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
    /// A chain that the device does not have.
    #[error("chain {id} is used, which is not outstanding")]
    Unknown {
        /// The id as read.
        id: u32,
    },
    /// More bytes than the chain has room for.
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
