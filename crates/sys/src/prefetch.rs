//! Prefetches cache lines that another CPU has written.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use core::arch::asm;

/// Bytes of a cache line, on nearly all CPUs.
pub(crate) const CACHE_LINE: usize = 64;

/// The intended use of a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// To be read.
    Read,
    /// To be written: other CPUs must give it up.
    Write,
}

/// Prefetches the cache line at an address, which may be any. Only a hint.
#[inline]
pub(crate) fn prefetch(at: *const u8, intent: Intent) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    match intent {
        // SAFETY: a hint changes no memory and no register, and raises no fault at any address.
        Intent::Read => unsafe {
            asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        },
        // SAFETY: as above; on a CPU without this instruction it does nothing.
        Intent::Write => unsafe {
            asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        },
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    match intent {
        // SAFETY: as above.
        Intent::Read => unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        },
        // SAFETY: as above.
        Intent::Write => unsafe {
            asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        },
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = (at, intent);
}
