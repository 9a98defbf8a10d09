//! Memory that another process may write at any moment.

#[cfg(feature = "std")]
mod mapping;
mod words;

use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

pub use words::SharedWords;

use crate::prefetch::{CACHE_LINE, Intent, prefetch};
use crate::string_copy::copy_to_peer;

/// A range of memory shared with an untrusted peer.
///
/// References into it are impossible: values are read once, by value, with volatile access, so a
/// check and a use of a value always see the same bytes (XSA-155). Every access is bounds-checked
/// and panics outside the range: offsets are ours, or were checked before.
///
/// Clones and [`slice`](SharedPages::slice)s share the memory, which is released with the last of
/// them.
#[derive(Clone)]
pub struct SharedPages {
    base: NonNull<u8>,
    len: usize,
    /// A mapping, or heap words with interior mutability.
    _memory: Arc<dyn Send + Sync>,
}

// SAFETY: it is plain memory with no thread affinity, and every access goes through raw pointers
// with volatile or atomic operations, so moving the handle between threads is sound.
unsafe impl Send for SharedPages {}
// SAFETY: as above; concurrent accesses by two of our threads are no different from concurrent
// accesses by the peer, which the type must tolerate anyway.
unsafe impl Sync for SharedPages {}

/// The heap has no room for the requested memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {len} bytes")]
pub struct OutOfMemory {
    /// The length in bytes.
    pub len: usize,
}

impl SharedPages {
    /// `len` zeroed bytes of this process's own heap, for peers in the same process: a simulated
    /// machine, tests. It needs no descriptor and no system call of its own.
    ///
    /// # Errors
    /// [`OutOfMemory`], also if no object can be that long.
    pub fn zeroed(len: usize) -> Result<SharedPages, OutOfMemory> {
        let words = AtomicU64::new_vec_zeroed(len.div_ceil(size_of::<AtomicU64>()));
        let words = words.map_err(|_| OutOfMemory { len })?;
        let base = words.as_ptr().cast_mut().cast::<u8>();
        let base = NonNull::new(base).expect("a vector's pointer is not null");
        Ok(SharedPages { base, len, _memory: Arc::new(words) })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a slice of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether its start has the given alignment.
    pub fn is_aligned_to(&self, bytes: usize) -> bool {
        self.base.addr().get() % bytes == 0
    }

    /// A view of a part, sharing the memory.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn slice(&self, range: Range<usize>) -> SharedPages {
        let len = range.end.checked_sub(range.start).expect("a range runs forwards");
        let base = self.at(range.start, len);
        let base = NonNull::new(base).expect("memory does not start at zero");
        SharedPages { base, len, _memory: Arc::clone(&self._memory) }
    }

    /// Reads one value at a byte offset, once.
    #[inline]
    pub fn read<T: FromBytes>(&self, offset: usize) -> T {
        let source = self.at(offset, size_of::<T>()).cast::<T>();
        assert!(source.is_aligned(), "shared values are aligned");
        // SAFETY: `at` checked that the bytes are inside the memory, the line above the alignment;
        // `FromBytes` makes any bytes a valid value, torn or not.
        unsafe { source.read_volatile() }
    }

    /// Writes one value at a byte offset.
    ///
    /// It is written in words of four bytes where possible, so that it never has to be in memory
    /// before: see "Structs that stall" in HACKING.md.
    #[inline]
    pub fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        const WORD: usize = size_of::<u32>();
        let target = self.at(offset, size_of::<T>()).cast::<T>();
        assert!(target.is_aligned(), "shared values are aligned");
        let (source, words) = (ptr::from_ref(&value).cast::<u32>(), target.cast::<u32>());
        if size_of::<T>() % WORD != 0 || !words.is_aligned() {
            // SAFETY: in bounds and aligned as in `read`; the memory is writable and we hold no
            // reference to it. `IntoBytes` has no padding, so nothing uninitialised leaks.
            return unsafe { target.write_volatile(value) };
        }
        for index in 0..size_of::<T>() / WORD {
            // SAFETY: the word is inside the value, and all bytes of it are initialised.
            let word = unsafe { source.wrapping_add(index).read_unaligned() };
            // SAFETY: as above, and the line before has checked that words are aligned.
            unsafe { words.wrapping_add(index).write_volatile(word) }
        }
    }

    /// Prefetches the cache lines of a part. Only a hint.
    ///
    /// # Panics
    /// If the part is not inside.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize, intent: Intent) {
        let start = self.at(offset, len);
        for line in (0..len).step_by(CACHE_LINE) {
            prefetch(start.wrapping_add(line), intent);
        }
    }

    /// Loads a 32-bit index with the given ordering.
    #[inline]
    pub fn load(&self, offset: usize, order: Ordering) -> u32 {
        self.atomic(offset).load(order)
    }

    /// Stores a 32-bit index with the given ordering.
    #[inline]
    pub fn store(&self, offset: usize, value: u32, order: Ordering) {
        self.atomic(offset).store(value, order);
    }

    /// Loads a 16-bit index with the given ordering.
    #[inline]
    pub fn load_u16(&self, offset: usize, order: Ordering) -> u16 {
        self.atomic_u16(offset).load(order)
    }

    /// Stores a 16-bit index with the given ordering.
    #[inline]
    pub fn store_u16(&self, offset: usize, value: u16, order: Ordering) {
        self.atomic_u16(offset).store(value, order);
    }

    /// Sets bits of a byte and returns its previous value; for logs that several threads write.
    ///
    /// Release: orders our writes of the logged data before the bit that reports them. Its partner
    /// is the peer, which clears the bit before it reads the data.
    #[inline]
    pub fn fetch_or_u8(&self, offset: usize, bits: u8) -> u8 {
        let byte = self.at(offset, 1);
        // SAFETY: in bounds, and a byte is always aligned; the memory outlives `&self`, and every
        // access to such bytes, ours and the peer's, is atomic or volatile.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        byte.fetch_or(bits, Ordering::Release)
    }

    /// Copies bytes out.
    #[inline]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        let source = self.at(offset, to.len());
        // SAFETY: `at` checked the source range and `to` is our own exclusive slice, so they do not
        // overlap. The peer may write the source meanwhile; see "racing copies" below.
        unsafe { ptr::copy_nonoverlapping(source, to.as_mut_ptr(), to.len()) }
        // See "racing copies" below.
        compiler_fence(Ordering::SeqCst);
    }

    /// Copies bytes in.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &[u8]) {
        let target = self.at(offset, from.len());
        // SAFETY: `at` checked the target range, and `from` cannot overlap it, as no reference
        // into the memory exists. The peer may access it meanwhile; see "racing copies" below.
        unsafe { copy_to_peer(from.as_ptr(), target, from.len()) }
    }

    /// Copies bytes to other shared memory, or to another place in the same.
    #[inline]
    pub fn copy_across(&self, offset: usize, to: &SharedPages, to_offset: usize, len: usize) {
        let (source, target) = (self.at(offset, len), to.at(to_offset, len));
        // SAFETY: `at` checked both ranges, which may overlap; the target is writable and we hold
        // no reference to it. Peers may access both meanwhile; see "racing copies" below.
        unsafe { ptr::copy(source, target, len) }
    }

    /// Copies out a value and the bytes after it, with one check.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn copy_to_both<T: FromBytes>(&self, offset: usize, first: &mut T, then: &mut [u8]) {
        let source = self.at(offset, size_of::<T>() + then.len());
        let behind = source.wrapping_add(size_of::<T>());
        // SAFETY: as in `copy_to`. Values in buffers are not aligned, and `FromBytes` makes any
        // bytes a valid one.
        *first = unsafe { source.cast::<T>().read_unaligned() };
        // SAFETY: as in `copy_to`: `at` has checked these bytes, too.
        unsafe { ptr::copy_nonoverlapping(behind, then.as_mut_ptr(), then.len()) }
        // See "racing copies" below.
        compiler_fence(Ordering::SeqCst);
    }

    /// Copies in a value and the bytes after it, with one check.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn copy_from_both<T: IntoBytes>(&self, offset: usize, first: &T, then: &[u8]) {
        let target = self.at(offset, size_of::<T>() + then.len());
        let behind = target.wrapping_add(size_of::<T>());
        // SAFETY: as in `copy_from`; `IntoBytes` has no padding.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(first).cast(), target, size_of::<T>()) }
        // SAFETY: as in `copy_from`: `at` has checked these bytes, too.
        unsafe { ptr::copy_nonoverlapping(then.as_ptr(), behind, then.len()) }
    }

    // Racing copies. A bulk copy may race with a write of the peer. We accept that because:
    // 1. the peer is another process: the race is between machine instructions, not between two
    //    accesses that one compiler sees;
    // 2. the compiler cannot invent a second read: no reference exists, and behind the fence the
    //    source may be other bytes, so that only the copy can be inspected, also where a few bytes
    //    stay in registers;
    // 3. torn bytes are as harmless as any bytes a hostile peer may have put there before.

    /// The address of `len` bytes at `offset`, for a system call that reads or writes them.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        // Not `offset + len`, which may wrap.
        if offset > self.len || len > self.len - offset {
            outside(offset, len, self.len);
        }
        // SAFETY: `offset` is at most `self.len`, so the result is inside or one past the memory.
        unsafe { self.base.as_ptr().add(offset) }
    }

    #[inline]
    fn atomic(&self, offset: usize) -> &AtomicU32 {
        let word = self.at(offset, size_of::<u32>()).cast::<u32>();
        assert!(word.is_aligned(), "shared values are aligned");
        // SAFETY: in bounds and aligned; the memory outlives `&self`; every access to such words,
        // ours and the peer's, is atomic or volatile.
        unsafe { AtomicU32::from_ptr(word) }
    }

    #[inline]
    fn atomic_u16(&self, offset: usize) -> &AtomicU16 {
        let word = self.at(offset, size_of::<u16>()).cast::<u16>();
        assert!(word.is_aligned(), "shared values are aligned");
        // SAFETY: as in `atomic`.
        unsafe { AtomicU16::from_ptr(word) }
    }
}

/// Not inlined, so that an inlined bounds check is two comparisons.
#[cold]
#[inline(never)]
fn outside(offset: usize, len: usize, end: usize) -> ! {
    panic!("{offset}+{len} is outside {end}")
}

impl fmt::Debug for SharedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPages").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_heap_is_zeroed_and_shared_by_its_handles() {
        let pages = SharedPages::zeroed(2 * 4096).expect("there is memory");
        let second = pages.slice(4096..8192);
        let mut bytes = [1; 8192];
        pages.copy_to(0, &mut bytes);
        assert_eq!(bytes, [0; 8192]);
        second.write(8, 0x1234_5678_u32);
        assert_eq!(pages.load(4104, Ordering::Relaxed), 0x1234_5678);
        drop(pages);
        assert_eq!(second.read::<u32>(8), 0x1234_5678, "a part keeps the whole");
    }

    #[test]
    #[should_panic(expected = "8193+0 is outside 8192")]
    fn memory_of_the_heap_has_the_requested_length() {
        SharedPages::zeroed(8192).expect("there is memory").copy_to(8193, &mut []);
    }
}
