//! Checked access to the buffers in guest memory, for one user.

use std::cell::Cell;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{GuestMemory, OutsideMemory};
use crate::SharedPages;
use crate::prefetch::{CACHE_LINE, Intent, prefetch};

/// One user's view of a table: it remembers the region of the last access.
#[derive(Debug)]
pub struct GuestView {
    memory: Arc<GuestMemory>,
    /// The regions of the table, side by side, so that an access follows no pointers.
    places: Box<[Place]>,
    last: Cell<usize>,
}

/// A view's entry for a region.
#[derive(Debug)]
struct Place {
    guest_address: u64,
    pages: SharedPages,
}

impl Place {
    /// Where a range of the guest's addresses begins in the region; `None` if it is not all inside.
    #[inline]
    fn offset_of(&self, address: u64, len: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.guest_address);
        let size = self.pages.len() as u64;
        (offset < size && len as u64 <= size - offset).then_some(offset as usize)
    }
}

/// The region of a view's last access, for a loop over many buffers: most of them are in the same
/// region, which is looked up once.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a>(&'a Place);

impl Window<'_> {
    /// [`GuestView::copy_to_both`], if all of the bytes are in the region: whether they are.
    #[inline(always)]
    pub fn copy_to_both<T: FromBytes>(self, address: u64, first: &mut T, then: &mut [u8]) -> bool {
        let offset = self.0.offset_of(address, size_of::<T>() + then.len());
        if let Some(offset) = offset {
            self.0.pages.copy_to_both(offset, first, then);
        }
        offset.is_some()
    }

    /// [`GuestView::copy_from_both`], if all of the bytes are in the region: whether they are.
    #[inline(always)]
    pub fn copy_from_both<T: IntoBytes>(self, address: u64, first: &T, then: &[u8]) -> bool {
        let offset = self.0.offset_of(address, size_of::<T>() + then.len());
        if let Some(offset) = offset {
            self.0.pages.copy_from_both(offset, first, then);
        }
        offset.is_some()
    }

    /// Prefetches the first bytes of a buffer that is about to be copied, if they are in the
    /// region. Only a hint: the peer chooses the address, and addresses outside the region are
    /// ignored.
    #[inline]
    pub fn prefetch(self, address: u64, len: u32, intent: Intent) {
        // A header and a short frame take two lines. Nothing is read, so it does no harm that a
        // buffer without bytes counts as a long one.
        let rest = (len as usize).wrapping_sub(1).min(CACHE_LINE);
        if let Some(offset) = self.0.offset_of(address, rest + 1) {
            let first = self.0.pages.at(offset, rest + 1);
            prefetch(first, intent);
            prefetch(first.wrapping_add(rest), intent);
        }
    }
}

impl GuestView {
    /// A view of a table.
    pub fn new(memory: Arc<GuestMemory>) -> GuestView {
        let places = memory.regions.iter().map(|region| Place {
            guest_address: region.guest_address,
            pages: region.memory.pages().clone(),
        });
        let places = places.collect();
        GuestView { memory, places, last: Cell::new(0) }
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

    /// The region of the last access; `None` if the table has no regions.
    #[inline]
    pub fn window(&self) -> Option<Window<'_>> {
        self.places.get(self.last.get()).map(Window)
    }

    /// Whether all of these bytes are in the table.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    #[inline]
    pub fn check(&self, address: u64, len: usize) -> Result<(), OutsideMemory> {
        self.visit(address, len, |_, _, _| {})
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
        Some((&place.pages, place.offset_of(address, len)?))
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
            let count = left.min(region.pages.len() as u64 - offset);
            piece(&region.pages, offset as usize, count as usize);
            left -= count;
            // No region wraps around.
            at += count;
        }
        Ok(())
    }
}
