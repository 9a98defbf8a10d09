//! The memory of a ring, with the few operations that the halves of a ring need.
//!
//! Both halves are generic over it for one reason: the proofs of `tests/rings/wakeups.rs` run the
//! real halves on memory of the loom model checker, in every order that the memory model allows.

use core::sync::atomic::{Ordering, fence};

use ringway_sys::SharedPages;
use ringway_wire::PAGE_SIZE;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A page that the peer may write at any moment. Offsets are in bytes from its start, and every
/// value is read once, by value.
pub trait RingMemory {
    /// Loads an index.
    fn load(&self, offset: usize, order: Ordering) -> u32;

    /// Stores an index.
    fn store(&self, offset: usize, value: u32, order: Ordering);

    /// Orders every earlier access of this thread before every later one, including stores before
    /// loads.
    fn fence(&self);

    /// Reads one entry.
    fn read<T: FromBytes>(&self, offset: usize) -> T;

    /// Writes one entry.
    fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: T);

    /// Copies entries out.
    fn copy_to(&self, offset: usize, to: &mut [u8]);

    /// Clears the whole page.
    fn clear(&self);
}

impl RingMemory for SharedPages {
    #[inline]
    fn load(&self, offset: usize, order: Ordering) -> u32 {
        SharedPages::load(self, offset, order)
    }

    #[inline]
    fn store(&self, offset: usize, value: u32, order: Ordering) {
        SharedPages::store(self, offset, value, order);
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

    #[inline]
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        SharedPages::copy_to(self, offset, to);
    }

    fn clear(&self) {
        self.copy_from(0, &[0; PAGE_SIZE]);
    }
}
