//! A front-end's memory that records what is in flight, with a part for each ring.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringway_sys::guest_memory::{MappingShare, Purpose, SharedFile};
use ringway_vhost::Area;
use ringway_virtback::InflightPlace;
use ringway_virtio::Format;
use ringway_wire::vhost_user::{inflight_packed, inflight_split};

/// The most bytes of an area: those of 256 of the longest rings.
const AREA_LEN_MAX: u64 = 256 << 20;

/// A mapped area.
pub(crate) struct InflightArea {
    file: SharedFile,
    rings: u16,
    /// Descriptors of each ring.
    size: u16,
    /// Pairs that have been served with this area.
    begun: BTreeSet<u16>,
}

impl InflightArea {
    /// Maps the area; `None` if it has no ring.
    pub(crate) fn map(
        share: &Arc<MappingShare>,
        area: Area,
    ) -> Result<Option<InflightArea>, String> {
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
    pub(crate) fn is_served(&mut self, pair: u16) {
        self.begun.insert(pair);
    }

    /// Notes that a pair starts. Until it has been served, the area determines where its packed
    /// rings continue, because another process may have served them; later the front-end does,
    /// because it may have restarted them elsewhere. A split ring keeps this in its own memory.
    pub(crate) fn starts(&self, format: Format, pair: u16) {
        if !self.begun.contains(&pair) || format == Format::Split {
            return;
        }
        let parts = [2 * pair, 2 * pair + 1].map(|ring| self.part(format, ring, 0));
        for part in parts.into_iter().flatten() {
            part.pages.store_u16(inflight_packed::VERSION, 0, Ordering::Release);
        }
    }

    /// The part of the ring with this number and size.
    pub(crate) fn part(&self, format: Format, ring: u16, size: u16) -> Option<InflightPlace> {
        let len = match format {
            Format::Split => inflight_split::len(usize::from(self.size)),
            Format::Packed => inflight_packed::len(usize::from(self.size)),
        };
        let start = usize::from(ring) * len;
        let end = start + len;
        let whole = self.file.pages();
        let has_room = ring < self.rings && size <= self.size && end <= whole.len();
        let pages = has_room.then(|| whole.slice(start..end))?;
        Some(InflightPlace { pages, descriptors: self.size, area: self.file.clone() })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn an_area_determines_once_where_packed_rings_continue() {
        let part_len = u64::try_from(inflight_packed::len(256)).expect("short");
        let file = memfd_create("area", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, 4 * part_len).expect("there is memory");
        let area = Area { rings: 4, size: 256, len: 4 * part_len, offset: 0, file };
        let share = MappingShare::new().expect("the first");
        let mut noted =
            InflightArea::map(&share, area).expect("it is sound").expect("it has rings");
        let parts =
            [0, 1, 2, 3].map(|ring| noted.part(Format::Packed, ring, 256).expect("it has room"));
        let set = || {
            let pages = parts.iter().map(|part| &part.pages);
            pages.for_each(|it| it.store_u16(inflight_packed::VERSION, 1, Ordering::Relaxed));
        };
        let version =
            |part: &InflightPlace| part.pages.load_u16(inflight_packed::VERSION, Ordering::Relaxed);
        set();
        // The front-end enables them after it has passed them, which starts them once more.
        for _ in 0..2 {
            noted.starts(Format::Packed, 1);
            assert_eq!(parts.each_ref().map(version), [1, 1, 1, 1]);
        }
        noted.is_served(1);
        noted.starts(Format::Packed, 1);
        assert_eq!(parts.each_ref().map(version), [1, 1, 0, 0]);
        set();
        noted.starts(Format::Split, 1);
        assert_eq!(parts.each_ref().map(version), [1, 1, 1, 1]);
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
        let refused = area(3 * part_len).err().expect("the file is shorter");
        assert!(refused.starts_with("the inflight area (SET_INFLIGHT_FD), "), "{refused}");
        let noted = area(2 * part_len).expect("it is sound").expect("it has rings");
        let part = noted.part(Format::Split, 1, 256).expect("it has room");
        assert!(!part.area.is_lost());
        ftruncate(&file, 0).expect("it is not sealed");
        part.pages.store_u16(inflight_split::VERSION, 1, Ordering::Relaxed);
        assert!(part.area.is_lost());
    }
}
