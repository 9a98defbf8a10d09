//! Checked access to the buffers in guest memory, for one user.

use std::cell::Cell;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{GuestMemory, OutsideMemory};
use crate::SharedPages;
use crate::guard::lost_count;
use crate::prefetch::{CACHE_LINE, Intent, prefetch};

/// One user's view of a table: it remembers the region of the last access.
#[derive(Debug)]
pub struct GuestView {
    memory: Arc<GuestMemory>,
    /// The regions of the table, side by side, so that an access follows no pointers.
    places: Box<[Place]>,
    last: Cell<usize>,
    /// The process's count of lost mappings when this table was last found complete.
    lost_seen: Cell<u32>,
}

/// A view's entry for a region.
#[derive(Debug)]
struct Place {
    guest_address: u64,
    len: u64,
    pages: SharedPages,
}

impl GuestView {
    /// A view of a table.
    pub fn new(memory: Arc<GuestMemory>) -> GuestView {
        // One less, so that the first check reads the table itself.
        let lost_seen = Cell::new(lost_count().wrapping_sub(1));
        let places = memory.regions.iter().map(|region| Place {
            guest_address: region.guest_address,
            len: region.len,
            pages: region.pages.clone(),
        });
        let places = places.collect();
        GuestView { memory, places, last: Cell::new(0), lost_seen }
    }

    /// The table.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Copies bytes out of guest memory.
    ///
    /// # Errors
    /// [`OutsideMemory`]; some bytes may have been copied.
    #[inline]
    pub fn copy_to(&self, address: u64, to: &mut [u8]) -> Result<(), OutsideMemory> {
        let mut rest = to;
        self.visit(address, rest.len(), |pages, offset, len| {
            let (piece, others) = std::mem::take(&mut rest).split_at_mut(len);
            pages.copy_to(offset, piece);
            rest = others;
        })
    }

    /// Copies bytes into guest memory.
    ///
    /// # Errors
    /// [`OutsideMemory`]; some bytes may have been copied.
    #[inline]
    pub fn copy_from(&self, address: u64, from: &[u8]) -> Result<(), OutsideMemory> {
        let mut rest = from;
        self.visit(address, from.len(), |pages, offset, len| {
            let (piece, others) = rest.split_at(len);
            pages.copy_from(offset, piece);
            rest = others;
        })
    }

    /// [`copy_to`](GuestView::copy_to) for a value and the bytes after it: a header and its frame.
    ///
    /// # Errors
    /// [`OutsideMemory`]; some bytes may have been copied.
    // Left to choose, the compiler does not inline it into two callers, which costs 10 % more
    // instructions for a frame.
    #[inline(always)]
    pub fn copy_to_both<T: FromBytes + IntoBytes>(
        &self,
        address: u64,
        first: &mut T,
        then: &mut [u8],
    ) -> Result<(), OutsideMemory> {
        if let Some((pages, offset)) = self.in_last(address, size_of::<T>() + then.len()) {
            pages.copy_to_both(offset, first, then);
            return Ok(());
        }
        self.copy_to(address, first.as_mut_bytes())?;
        self.copy_to(address.wrapping_add(size_of::<T>() as u64), then)
    }

    /// [`copy_from`](GuestView::copy_from) for a value and the bytes after it.
    ///
    /// # Errors
    /// [`OutsideMemory`]; some bytes may have been copied.
    // As above.
    #[inline(always)]
    pub fn copy_from_both<T: IntoBytes + Immutable>(
        &self,
        address: u64,
        first: &T,
        then: &[u8],
    ) -> Result<(), OutsideMemory> {
        if let Some((pages, offset)) = self.in_last(address, size_of::<T>() + then.len()) {
            pages.copy_from_both(offset, first, then);
            return Ok(());
        }
        self.copy_from(address, first.as_bytes())?;
        self.copy_from(address.wrapping_add(size_of::<T>() as u64), then)
    }

    /// Copies bytes of other memory, or of the same, into guest memory. Inside of `from` they are
    /// `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`OutsideMemory`]; some bytes may have been copied.
    ///
    /// # Panics
    /// If they are not all inside of `from`.
    #[inline]
    pub fn copy_across(
        &self,
        address: u64,
        from: &SharedPages,
        offset: usize,
        len: usize,
    ) -> Result<(), OutsideMemory> {
        let mut offset = offset;
        self.visit(address, len, |pages, to, len| {
            from.copy_across(offset, pages, to, len);
            offset += len;
        })
    }

    /// The memory of every region, in the order of the guest's addresses.
    pub fn regions(&self) -> impl Iterator<Item = &SharedPages> {
        self.places.iter().map(|place| &place.pages)
    }

    /// The number of the region of the last access, from 0 in the order of
    /// [`regions`](GuestView::regions), and an address's offset in it; `None` if the range is not
    /// all in it.
    #[inline]
    pub fn locate(&self, address: u64, len: usize) -> Option<(usize, usize)> {
        let (_, offset) = self.in_last(address, len)?;
        Some((self.last.get(), offset))
    }

    /// Prefetches the first bytes of a buffer that is about to be copied, if they are in the region
    /// of the last access. Only a hint: the peer chooses the address, and addresses outside the
    /// table are ignored.
    #[inline]
    pub fn prefetch(&self, address: u64, len: u32, intent: Intent) {
        let Some(rest) = len.checked_sub(1) else { return };
        // A header and a short frame take two lines.
        let rest = u64::from(rest).min(CACHE_LINE as u64);
        if let Some((pages, offset)) = self.in_last(address, rest as usize + 1) {
            let first = pages.at(offset, rest as usize + 1);
            prefetch(first, intent);
            prefetch(first.wrapping_add(rest as usize), intent);
        }
    }

    /// Whether all of these bytes are in the table.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    #[inline]
    pub fn check(&self, address: u64, len: usize) -> Result<(), OutsideMemory> {
        self.visit(address, len, |_, _, _| {})
    }

    /// Whether a file was truncated below its region. Costs one load as long as no peer's file was.
    #[inline]
    pub fn is_lost(&self) -> bool {
        let lost = lost_count();
        if lost == self.lost_seen.get() {
            return false;
        }
        let is_lost = self.memory.is_lost();
        if !is_lost {
            self.lost_seen.set(lost);
        }
        is_lost
    }

    /// Calls `visit` for each piece of a range: one per region; the regions must be contiguous.
    #[inline]
    fn visit(
        &self,
        address: u64,
        len: usize,
        mut piece: impl FnMut(&SharedPages, usize, usize),
    ) -> Result<(), OutsideMemory> {
        if let Some((pages, offset)) = self.in_last(address, len) {
            piece(pages, offset, len);
            return Ok(());
        }
        self.visit_slowly(address, len, piece)
    }

    /// The location of a range, if it is in the region of the last access.
    #[inline]
    fn in_last(&self, address: u64, len: usize) -> Option<(&SharedPages, usize)> {
        let place = self.places.get(self.last.get())?;
        let offset = address.wrapping_sub(place.guest_address);
        let is_inside = offset < place.len && len as u64 <= place.len - offset;
        is_inside.then_some((&place.pages, offset as usize))
    }

    #[inline(never)]
    fn visit_slowly(
        &self,
        address: u64,
        len: usize,
        mut piece: impl FnMut(&SharedPages, usize, usize),
    ) -> Result<(), OutsideMemory> {
        let outside = OutsideMemory { address, len: len as u64 };
        let (mut at, mut left) = (address, len as u64);
        // Each iteration goes to the next region, so there are at most as many as regions.
        while left > 0 {
            let index = self.memory.find(at).ok_or(outside)?;
            self.last.set(index);
            let region = &self.places[index];
            let offset = at - region.guest_address;
            let count = left.min(region.len - offset);
            piece(&region.pages, offset as usize, count as usize);
            left -= count;
            // No region wraps around.
            at += count;
        }
        Ok(())
    }
}
