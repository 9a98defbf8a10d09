//! Copies into memory that another CPU has read last.
//!
//! A copy by loads and stores waits for each cache line of its target to come from the other CPU,
//! only to overwrite all of it. `rep movsb` has the whole length in advance, so a CPU may take such
//! lines without their bytes: "Fast-String Operation" in volume 1 of Intel's Software Developer's
//! Manual, section 7.3.9.3, and what was measured in ADR 39. Elsewhere this is the usual copy.

use core::ptr;

/// Copies `len` bytes to memory that a peer reads. Bytes that are read again soon, as those of a
/// private buffer, are better copied by [`ptr::copy_nonoverlapping`].
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[inline]
pub(crate) unsafe fn copy_to_peer(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= x86::LEN_MIN && !x86::is_slow_distance(from, to) && x86::has_fast_strings() {
        // SAFETY: the caller's promise.
        return unsafe { x86::copy(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use core::arch::asm;
    use core::sync::atomic::{AtomicU8, Ordering};

    use raw_cpuid::{CpuId, Hypervisor, cpuid};

    /// For fewer bytes the instruction's start costs more than it saves.
    pub(super) const LEN_MIN: usize = 512;

    /// Copies with the string instruction, which every CPU has.
    ///
    /// # Safety
    /// As for [`core::ptr::copy_nonoverlapping`].
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise. The ABI has the direction flag clear, so the instruction
        // goes upwards; it changes no flags.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Whether the target is less than a cache line ahead of the source, modulo a page. CPUs
    /// compare only these bits of the two addresses, take such ranges for overlapping, and copy
    /// byte by byte: 740 instead of 26 ns for 1500 bytes on an AMD EPYC of family 26. glibc
    /// avoids it too (`Avoid_Short_Distance_REP_MOVSB`).
    #[inline]
    pub(super) fn is_slow_distance(from: *const u8, to: *mut u8) -> bool {
        const PAGE: usize = 4096;
        const LINE: usize = 64;
        let ahead = to.addr().wrapping_sub(from.addr()) % PAGE;
        (1..LINE).contains(&ahead)
    }

    #[inline]
    pub(super) fn has_fast_strings() -> bool {
        const UNKNOWN: u8 = 0;
        const NO: u8 = 1;
        const YES: u8 = 2;
        static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
        // Relaxed: nothing else depends on it, and every thread finds the same.
        match KNOWN.load(Ordering::Relaxed) {
            YES => true,
            NO => false,
            _ => {
                let found = detect();
                KNOWN.store(if found { YES } else { NO }, Ordering::Relaxed);
                found
            }
        }
    }

    /// Whether the CPU announces fast string instructions, both for long and for short copies, and
    /// is a real one: QEMU's emulator announces them, and copies byte by byte.
    #[cold]
    fn detect() -> bool {
        const FAST_SHORT_REP_MOVSB: u32 = 1 << 4;
        let cpu = CpuId::new();
        let Some(features) = cpu.get_extended_feature_info() else { return false };
        let hypervisor = cpu.get_hypervisor_info().map(|found| found.identify());
        features.has_rep_movsb_stosb()
            && cpuid!(7, 0).edx & FAST_SHORT_REP_MOVSB != 0
            && hypervisor != Some(Hypervisor::QEMU)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// At each distance of the two ranges in their pages.
    fn assert_copies_exactly(copy: unsafe fn(*const u8, *mut u8, usize)) {
        const SPACE: usize = 3 * 4096;
        let source: Vec<u8> = (0..SPACE).map(|n| (n % 251) as u8).collect();
        for len in [0, 1, 511, 512, 513, 1500, 4096] {
            for ahead in [0, 1, 31, 63, 64, 65, 4095] {
                let mut target = [0xee; SPACE];
                // SAFETY: neither range ends above 7 + 4095 + 4096, which is inside.
                unsafe { copy(source[7..].as_ptr(), target[7 + ahead..].as_mut_ptr(), len) };
                let end = 7 + ahead + len;
                assert_eq!(target[7 + ahead..end], source[7..7 + len], "{len} at {ahead}");
                assert!(target[..7 + ahead].iter().all(|&byte| byte == 0xee), "{len} at {ahead}");
                assert!(target[end..].iter().all(|&byte| byte == 0xee), "{len} at {ahead}");
            }
        }
    }

    #[test]
    fn a_copy_changes_its_target_and_nothing_else() {
        assert_copies_exactly(copy_to_peer);
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn the_string_instruction_copies_the_same() {
        assert_copies_exactly(x86::copy);
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn a_target_just_ahead_of_its_source_is_slow_also_in_another_page() {
        let at = |address: usize| ptr::without_provenance_mut::<u8>(address);
        let is_slow = |from, to| x86::is_slow_distance(at(from), at(to));
        for page in [0, 5 * 4096] {
            assert!(!is_slow(10_000, page + 10_000));
            assert!(is_slow(10_000, page + 10_001) && is_slow(10_000, page + 10_063));
            assert!(!is_slow(10_000, page + 10_064) && !is_slow(10_000, page + 9_999));
        }
        assert!(is_slow(8191, 4096), "ahead by one, a page below");
    }
}
