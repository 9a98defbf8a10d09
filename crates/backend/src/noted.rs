//! Memory of a front-end in which it is noted what is under way, with a part for each ring.

use std::sync::Arc;

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::{MappingShare, map_shared};
use ringway_vhost::Area;
use ringway_virtback::InflightPlace;
use ringway_wire::vhost_user::inflight_split;

/// Bytes of an area at most: those of 256 of the longest rings.
const AREA_LEN_MAX: u64 = 256 << 20;

/// An area that is mapped.
pub(crate) struct Noted {
    pages: SharedPages,
    rings: u16,
    /// Descriptors of each ring.
    size: u16,
}

impl Noted {
    /// Maps it; none where it has no ring.
    pub(crate) fn map(share: &Arc<MappingShare>, area: Area) -> Result<Option<Noted>, String> {
        let Area { rings, size, len, offset, file } = area;
        if len > AREA_LEN_MAX {
            return Err(format!(
                "an area of what is under way of {len} bytes, expected at most {AREA_LEN_MAX}"
            ));
        }
        if len == 0 {
            return Ok(None);
        }
        let pages = map_shared(share, file, offset, len).map_err(|error| error.to_string())?;
        if !pages.is_aligned_to(8) {
            return Err(format!(
                "an area of what is under way at {offset:#x} of its file, expected a multiple of 8"
            ));
        }
        Ok(Some(Noted { pages, rings, size }))
    }

    /// The part of a split ring with this number and so many entries.
    pub(crate) fn part(&self, ring: u16, size: u16) -> Option<InflightPlace> {
        let len = inflight_split::len(usize::from(self.size));
        let start = usize::from(ring) * len;
        let end = start + len;
        let has_room = ring < self.rings && size <= self.size && end <= self.pages.len();
        let pages = has_room.then(|| self.pages.slice(start..end))?;
        Some(InflightPlace { pages, descriptors: self.size })
    }
}
