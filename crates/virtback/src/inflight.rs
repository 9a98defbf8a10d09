//! A front-end's memory that records what is in flight, with a part for each ring.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::{MappingShare, Purpose, SharedFile};
use ringway_vhost::Area;
use ringway_virtio::Format;
use ringway_wire::vhost_user::{inflight_packed, inflight_split};

use crate::InflightPlace;

/// The most bytes of an area: those of 256 of the longest rings.
const AREA_LEN_MAX: u64 = 256 << 20;

/// A mapped area.
#[derive(Debug)]
pub struct InflightArea {
    file: SharedFile,
    rings: u16,
    /// Descriptors of each ring.
    size: u16,
    /// Pairs that have been served with this area.
    begun: BTreeSet<u16>,
}

impl InflightArea {
    /// Maps the area; `None` if it has no ring.
    ///
    /// # Errors
    /// Why it cannot be used, as text.
    pub fn map(share: &Arc<MappingShare>, area: Area) -> Result<Option<InflightArea>, String> {
        let Area { rings, size, len, offset, file } = area;
        if len > AREA_LEN_MAX {
            return Err(format!(
                "an inflight area of {len} bytes, expected at most {AREA_LEN_MAX}"
            ));
        }
        if len == 0 {
            return Ok(None);
        }
        let file = SharedFile::map(share, Purpose::InflightArea, file, offset, len);
        let file = file.map_err(|error| error.to_string())?;
        if !file.pages().is_aligned_to(8) {
            return Err(format!(
                "an inflight area at {offset:#x} of its file, expected a multiple of 8"
            ));
        }
        Ok(Some(InflightArea { file, rings, size, begun: BTreeSet::new() }))
    }

    /// Notes that a pair is served from now on.
    pub fn is_served(&mut self, pair: u16) {
        self.begun.insert(pair);
    }

    /// The part of the ring with this number and size, which is to continue at `base`.
    ///
    /// Until its pair has been served, the area determines where a packed ring continues, because
    /// another process may have served it; later `base` does, because the front-end may have
    /// restarted it elsewhere. What is recorded there stays if that is the same place: a front-end
    /// that has only disabled a ring does not know where it continues. A split ring keeps this in
    /// its own memory.
    pub fn open(&self, format: Format, ring: u16, size: u16, base: u32) -> Option<InflightPlace> {
        let len = match format {
            Format::Split => inflight_split::len(usize::from(self.size)),
            Format::Packed => inflight_packed::len(usize::from(self.size)),
        };
        let start = usize::from(ring) * len;
        let end = start + len;
        let whole = self.file.pages();
        let has_room = ring < self.rings && size <= self.size && end <= whole.len();
        let pages = has_room.then(|| whole.slice(start..end))?;
        let was_served = self.begun.contains(&(ring / 2));
        if format == Format::Packed && was_served && packed_base(&pages) != base {
            pages.store_u16(inflight_packed::VERSION, 0, Ordering::Release);
        }
        Some(InflightPlace { pages, descriptors: self.size, area: self.file.clone() })
    }
}

/// Where a packed ring continues, as its part of an area says, in the format of `GET_VRING_BASE`.
fn packed_base(part: &SharedPages) -> u32 {
    let wrap = u32::from(part.read::<u8>(inflight_packed::OLD_USED_WRAP) != 0);
    let index = u32::from(part.load_u16(inflight_packed::OLD_USED_IDX, Ordering::Relaxed));
    let place = wrap << 15 | index;
    place << 16 | place
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn an_area_determines_where_packed_rings_continue_until_they_are_restarted_elsewhere() {
        let part_len = u64::try_from(inflight_packed::len(256)).expect("short");
        let file = memfd_create("area", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, 4 * part_len).expect("there is memory");
        let area = Area { rings: 4, size: 256, len: 4 * part_len, offset: 0, file };
        let share = MappingShare::new().expect("the first");
        let mut noted =
            InflightArea::map(&share, area).expect("it is sound").expect("it has rings");
        // The second pair, at entry 5 of the second round.
        let (here, elsewhere) = (0x0005_0005, 0x8000_8000);
        let open = |noted: &InflightArea, ring, base| {
            let part = noted.open(Format::Packed, ring, 256, base).expect("it has room");
            part.pages.load_u16(inflight_packed::VERSION, Ordering::Relaxed)
        };
        for ring in [2, 3] {
            let part = noted.open(Format::Packed, ring, 256, here).expect("it has room");
            part.pages.store_u16(inflight_packed::OLD_USED_IDX, 5, Ordering::Relaxed);
            part.pages.store_u16(inflight_packed::VERSION, 1, Ordering::Relaxed);
        }
        // An earlier process has served them.
        assert_eq!([2, 3].map(|ring| open(&noted, ring, elsewhere)), [1, 1]);
        noted.is_served(1);
        // This process has, and one that follows while they are disabled finds where they are.
        assert_eq!([2, 3].map(|ring| open(&noted, ring, here)), [1, 1]);
        noted.open(Format::Split, 2, 256, elsewhere).expect("it has room");
        assert_eq!([2, 3].map(|ring| open(&noted, ring, here)), [1, 1]);
        assert_eq!([2, 3].map(|ring| open(&noted, ring, elsewhere)), [0, 0]);
    }

    #[test]
    fn a_part_shows_that_the_area_was_cut_and_refusals_name_it() {
        let part_len = u64::try_from(inflight_split::len(256)).expect("short");
        let file = memfd_create("area", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, 2 * part_len).expect("there is memory");
        let share = MappingShare::new().expect("one more");
        let area = |len| {
            let file = file.try_clone().expect("a descriptor");
            InflightArea::map(&share, Area { rings: 2, size: 256, len, offset: 0, file })
        };
        let refused = area(3 * part_len).expect_err("the file is shorter");
        assert!(refused.starts_with("the inflight area (SET_INFLIGHT_FD), "), "{refused}");
        let noted = area(2 * part_len).expect("it is sound").expect("it has rings");
        let part = noted.open(Format::Split, 1, 256, 0).expect("it has room");
        assert!(!part.area.is_lost());
        ftruncate(&file, 0).expect("it is not sealed");
        part.pages.store_u16(inflight_split::VERSION, 1, Ordering::Relaxed);
        assert!(part.area.is_lost());
    }
}
