//! The grant table of a domain, in memory that the domain, its peers and the broker share.
//!
//! An entry has two words: flags and domid, which change together and atomically, and the frame.
//! The owner writes the frame before the permission; a peer marks its use before it reads the
//! frame; the owner revokes only an entry without marks. So the owner knows that every frame that a
//! peer reads is in use.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use ringway_hypervisor::{Access, StillInUse};
use ringway_sys::{SharedPages, SharedWords};
use ringway_wire::grant::{
    ENTRIES_PER_PAGE, GTF_PERMIT_ACCESS, GTF_READING, GTF_READONLY, GTF_TYPE_MASK, GTF_WRITING,
    GrantEntryV1, GrantStatus,
};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

/// Frames of a domain's grant table (`gnttab_max_frames`).
const FRAMES: usize = 64;

/// Bytes of the table.
pub(crate) const TABLE_BYTES: usize = FRAMES * PAGE_SIZE;

/// Entries of the table.
pub(crate) const ENTRIES: u32 = 32_768;

/// Attempts to mark an entry that keeps changing. Xen gives up after as many.
const TRIES_MAX: usize = 5;

/// Words of an entry: flags and domid, then the frame.
const ENTRY_WORDS: usize = 2;
const WORDS: usize = ENTRY_WORDS * FRAMES * ENTRIES_PER_PAGE;

const _: () = assert!(FRAMES * ENTRIES_PER_PAGE == 32_768);
const _: () = assert!(size_of::<GrantEntryV1>() == ENTRY_WORDS * size_of::<u32>());
const _: () = assert!(cfg!(target_endian = "little"), "flags are the low half of the first word");

/// A mapped table.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    words: SharedWords<WORDS>,
}

/// The mark on a frame in use, to be returned to [`Table::end_use`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    /// The granted frame. The owner chose it freely, so it must be checked.
    pub(crate) frame: u32,
    /// The bits that this use has set.
    pub(crate) marked: u16,
}

impl Table {
    /// Maps a table that the broker created.
    ///
    /// # Errors
    /// What mmap(2) reports.
    pub(crate) fn map(fd: impl AsFd) -> io::Result<Table> {
        Ok(Table { words: SharedWords::new(SharedPages::map(fd, 0, TABLE_BYTES)?) })
    }

    /// Owner: lets `peer` use `frame`. The entry must be free.
    pub(crate) fn permit(&self, gref: GrantRef, peer: DomId, frame: u32, access: Access) {
        let Some(at) = first_word(gref) else { return };
        let readonly = if access == Access::ReadOnly { GTF_READONLY } else { 0 };
        // Release orders the frame before the permission, for a peer that acquires the latter.
        self.words.store(at + 1, frame, Ordering::Relaxed);
        self.words.store(at, word(GTF_PERMIT_ACCESS | readonly, peer), Ordering::Release);
    }

    /// Owner: ends the permission, unless a peer uses the frame.
    ///
    /// One attempt is enough: only a peer that begins or ends a use changes the word meanwhile.
    pub(crate) fn revoke(&self, gref: GrantRef) -> Result<(), StillInUse> {
        let Some(at) = first_word(gref) else { return Ok(()) };
        let found = self.words.load(at, Ordering::Acquire);
        let is_used = flags(found) & (GTF_READING | GTF_WRITING) != 0;
        if is_used || self.words.compare_exchange(at, found, 0).is_err() {
            return Err(StillInUse { gref });
        }
        Ok(())
    }

    /// Peer: marks a use, if the entry allows it to `user`, and returns the frame.
    ///
    /// # Errors
    /// `BadGrantRef` for a missing or unused entry, `PermissionDenied` for one of another domain or
    /// a read-only one, `GeneralError` for one that its owner keeps changing.
    // Always inlined, with its callers: a call returns its result in memory, which is half of what
    // a mark costs.
    #[inline(always)]
    pub(crate) fn begin_use(
        &self,
        gref: GrantRef,
        user: DomId,
        access: Access,
    ) -> Result<Use, GrantStatus> {
        let at = first_word(gref).ok_or(GrantStatus::BadGrantRef)?;
        let wanted = match access {
            Access::ReadOnly => GTF_READING,
            Access::ReadWrite => GTF_READING | GTF_WRITING,
        };
        let found = self.words.load(at, Ordering::Acquire);
        // The fast path: most entries are as they were granted, and have no other use.
        if found & !u32::from(GTF_READONLY) == word(GTF_PERMIT_ACCESS, user)
            && (found & u32::from(GTF_READONLY) == 0 || access == Access::ReadOnly)
            && self.words.compare_exchange(at, found, found | u32::from(wanted)).is_ok()
        {
            // The exchange acquired what `permit` released, so this is its frame.
            let frame = self.words.load(at + 1, Ordering::Relaxed);
            return Ok(Use { frame, marked: wanted });
        }
        self.begin_use_slowly(at, user, access, wanted)
    }

    /// [`begin_use`](Table::begin_use) of an entry in any state.
    #[cold]
    fn begin_use_slowly(
        &self,
        at: usize,
        user: DomId,
        access: Access,
        wanted: u16,
    ) -> Result<Use, GrantStatus> {
        let mut found = self.words.load(at, Ordering::Acquire);
        for _ in 0..TRIES_MAX {
            let (flags, domid) = (flags(found), domid(found));
            if flags & GTF_TYPE_MASK != GTF_PERMIT_ACCESS {
                return Err(GrantStatus::BadGrantRef);
            }
            if domid != user || (flags & GTF_READONLY != 0 && access == Access::ReadWrite) {
                return Err(GrantStatus::PermissionDenied);
            }
            match self.words.compare_exchange(at, found, found | u32::from(wanted)) {
                Ok(_) => {
                    // The exchange acquired what `permit` released, so this is its frame.
                    let frame = self.words.load(at + 1, Ordering::Relaxed);
                    return Ok(Use { frame, marked: wanted & !flags });
                }
                Err(now) => found = now,
            }
        }
        Err(GrantStatus::GeneralError)
    }

    /// Peer: ends a use that [`begin_use`](Table::begin_use) marked.
    ///
    /// It clears the bits that this use has set. Bits that were set already belong to an earlier
    /// use of the same entry, which clears them when it ends, possibly before this one ends. So an
    /// entry used twice at once may look unused while its second use still runs. We accept that
    /// because:
    /// 1. an honest owner grants a frame once per buffer and posts the grant once;
    /// 2. an owner that posts it twice can be surprised only in its own memory;
    /// 3. a count per entry would need memory that all backends write, and a way to undo the counts
    ///    of a killed one.
    #[inline]
    pub(crate) fn end_use(&self, gref: GrantRef, ended: Use) {
        self.clear(gref, ended.marked);
    }

    /// Peer: clears the marks of `access`, its own and those of others.
    pub(crate) fn clear_marks(&self, gref: GrantRef, access: Access) {
        self.clear(gref, if access == Access::ReadOnly { GTF_READING } else { GTF_WRITING });
    }

    /// Broker: clears all marks on entries for `user`, which no longer uses any.
    pub(crate) fn clear_all_marks_of(&self, user: DomId) {
        for gref in (0..ENTRIES).map(GrantRef) {
            let Some(at) = first_word(gref) else { return };
            let found = self.words.load(at, Ordering::Relaxed);
            if domid(found) == user && flags(found) & (GTF_READING | GTF_WRITING) != 0 {
                self.clear(gref, GTF_READING | GTF_WRITING);
            }
        }
    }

    #[inline]
    fn clear(&self, gref: GrantRef, bits: u16) {
        if let Some(at) = first_word(gref) {
            // Release orders our accesses to the frame before the owner can see it unused.
            self.words.fetch_and(at, !u32::from(bits));
        }
    }
}

/// The number of the entry's first word; `None` beyond the end of the table.
#[inline]
fn first_word(gref: GrantRef) -> Option<usize> {
    let index = usize::try_from(gref.0).ok().filter(|_| gref.0 < ENTRIES)?;
    Some(index * ENTRY_WORDS)
}

fn word(flags: u16, domid: DomId) -> u32 {
    u32::from(flags) | u32::from(domid.0) << 16
}

#[inline]
fn flags(word: u32) -> u16 {
    let [low, high, ..] = word.to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[inline]
fn domid(word: u32) -> DomId {
    let [.., low, high] = word.to_le_bytes();
    DomId(u16::from_le_bytes([low, high]))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const GREF: GrantRef = GrantRef(8);
    const USER: DomId = DomId(3);

    fn table() -> Table {
        let memory = memfd_create("table", MemfdFlags::CLOEXEC).expect("there is memory");
        let len = u64::try_from(TABLE_BYTES).expect("it is small");
        ftruncate(&memory, len).expect("there is memory");
        Table::map(memory).expect("it can be mapped")
    }

    fn entry(table: &Table) -> GrantEntryV1 {
        let at = first_word(GREF).expect("a table has more entries");
        let word = table.words.load(at, Ordering::Relaxed);
        let frame = table.words.load(at + 1, Ordering::Relaxed);
        GrantEntryV1 { flags: flags(word), domid: domid(word).0, frame }
    }

    #[test]
    fn a_use_marks_the_entry_and_ends() {
        let table = table();
        table.permit(GREF, USER, 77, Access::ReadWrite);
        let permitted = GrantEntryV1 { flags: GTF_PERMIT_ACCESS, domid: 3, frame: 77 };
        assert_eq!(entry(&table), permitted);
        let begun = table.begin_use(GREF, USER, Access::ReadWrite).expect("it is permitted");
        let flags = GTF_PERMIT_ACCESS | GTF_READING | GTF_WRITING;
        assert_eq!((begun.frame, entry(&table).flags), (77, flags));
        assert_eq!(table.revoke(GREF), Err(StillInUse { gref: GREF }));
        table.end_use(GREF, begun);
        assert_eq!(entry(&table), permitted);
        assert_eq!(table.revoke(GREF), Ok(()));
        assert_eq!(entry(&table).flags, 0);
    }

    #[test]
    fn nested_uses_keep_the_marks_of_the_outer_use() {
        let table = table();
        table.permit(GREF, USER, 77, Access::ReadWrite);
        let outer = table.begin_use(GREF, USER, Access::ReadOnly).expect("it is permitted");
        let inner = table.begin_use(GREF, USER, Access::ReadWrite).expect("it is permitted");
        table.end_use(GREF, inner);
        assert_eq!(entry(&table).flags, GTF_PERMIT_ACCESS | GTF_READING);
        table.end_use(GREF, outer);
        assert_eq!(entry(&table).flags, GTF_PERMIT_ACCESS);
    }

    #[test]
    fn marks_are_cleared_for_one_user_only() {
        let table = table();
        let theirs = GrantRef(ENTRIES - 1);
        table.permit(GREF, USER, 1, Access::ReadWrite);
        table.permit(theirs, DomId(4), 2, Access::ReadOnly);
        table.begin_use(GREF, USER, Access::ReadWrite).expect("it is permitted");
        table.begin_use(theirs, DomId(4), Access::ReadOnly).expect("it is permitted");
        table.clear_all_marks_of(USER);
        assert_eq!(table.revoke(GREF), Ok(()));
        assert_eq!(table.revoke(theirs), Err(StillInUse { gref: theirs }));
        table.clear_all_marks_of(DomId(4));
        assert_eq!(table.revoke(theirs), Ok(()));
    }

    #[test]
    fn no_use_begins_after_a_grant_is_revoked() {
        const ROUNDS: u32 = 200_000;
        let (table, is_over) = (table(), AtomicBool::new(false));
        // Odd while granted. The owner increments it before it permits, and after it has revoked.
        let phase = std::sync::atomic::AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(begun) = table.begin_use(GREF, USER, Access::ReadOnly) else { continue };
                    let now = phase.load(Ordering::Acquire);
                    assert_eq!((now % 2, begun.frame), (1, now), "the frame of this very grant");
                    table.end_use(GREF, begun);
                }
            });
            for _ in 0..ROUNDS {
                let granted = phase.fetch_add(1, Ordering::Release) + 1;
                table.permit(GREF, USER, granted, Access::ReadOnly);
                while table.revoke(GREF).is_err() {
                    std::hint::spin_loop();
                }
                phase.fetch_add(1, Ordering::Release);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
