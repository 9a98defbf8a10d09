//! The memory of a queue, with the few operations that both halves need.
//!
//! The halves are generic over it for one reason: the proofs of `tests/queues/wakeups.rs` run the
//! real halves on memory of the loom model checker.

use std::sync::atomic::{Ordering, fence};

use ringway_sys::SharedPages;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An area of a queue, which the peer may write at any moment. Offsets are in bytes from its start,
/// and every value is read once, by value.
pub trait QueueMemory {
    /// Loads an index or flags.
    fn load(&self, offset: usize, order: Ordering) -> u16;

    /// Stores an index or flags.
    fn store(&self, offset: usize, value: u16, order: Ordering);

    /// Orders every earlier access of this thread before every later one, including stores before
    /// loads.
    fn fence(&self);

    /// Reads one entry.
    fn read<T: FromBytes>(&self, offset: usize) -> T;

    /// Writes one entry.
    fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: T);
}

impl QueueMemory for SharedPages {
    #[inline]
    fn load(&self, offset: usize, order: Ordering) -> u16 {
        self.load_u16(offset, order)
    }

    #[inline]
    fn store(&self, offset: usize, value: u16, order: Ordering) {
        self.store_u16(offset, value, order);
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn read<T: FromBytes>(&self, offset: usize) -> T {
        SharedPages::read(self, offset)
    }

    #[inline]
    fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        SharedPages::write(self, offset, value);
    }
}
