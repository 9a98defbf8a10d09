//! Granted pages in use for a copy.

use ringway_hypervisor::{Access, GrantStatus};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::peers::Peer;
use crate::table::Use;

/// Pages of a peer with consecutive grants, which are one piece of the peer's memory. Each is
/// marked as used until [`end`](Span::end).
pub(crate) struct Span<'peer> {
    peer: &'peer Peer,
    user: DomId,
    access: Access,
    first: GrantRef,
    /// The mark on each of the pages.
    begun: Use,
    pages: u32,
    /// Where the first page starts in the peer's memory, in bytes.
    start: usize,
}

impl Span<'_> {
    /// Begins to use one page.
    ///
    /// # Errors
    /// Why the peer's table does not allow it, or `BadPage` for a frame that the peer does not
    /// have.
    #[inline(always)]
    pub(crate) fn begin(
        peer: &Peer,
        gref: GrantRef,
        user: DomId,
        access: Access,
    ) -> Result<Span<'_>, GrantStatus> {
        let (begun, start) = peer.begin_use(gref, user, access)?;
        Ok(Span { peer, user, access, first: gref, begun, pages: 1, start })
    }

    /// Where this offset in the first page is in the peer's memory.
    #[inline]
    pub(crate) fn at(&self, offset: u16) -> usize {
        self.start + usize::from(offset)
    }

    /// Whether this offset in the page of this grant is `end` bytes behind the start of the first
    /// page; uses that page, too, if it is the next one and its mark is like those of the others.
    /// If it must be refused, its own copy says why.
    pub(crate) fn reaches(&mut self, end: usize, gref: GrantRef, offset: u16) -> bool {
        let Ok(page) = u32::try_from(end / PAGE_SIZE) else { return false };
        let is_next = self.first.0.checked_add(page) == Some(gref.0);
        if !is_next || usize::from(offset) != end % PAGE_SIZE {
            return false;
        }
        if page < self.pages {
            return true;
        }
        let Ok((begun, start)) = self.peer.begin_use(gref, self.user, self.access) else {
            return false;
        };
        if begun.marked != self.begun.marked || start != self.start + end {
            self.peer.table.end_use(gref, begun);
            return false;
        }
        self.pages += 1;
        true
    }

    /// Ends the use of all its pages.
    #[inline]
    pub(crate) fn end(self) {
        for page in 0..self.pages {
            self.peer.table.end_use(GrantRef(self.first.0 + page), self.begun);
        }
    }
}
