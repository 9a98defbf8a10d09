//! A guest's memory with room for a queue.

use std::sync::Arc;

use ringway_sys::guest_memory::{GuestMemory, GuestView, Region};
use ringway_virtio::{Format, QueueAreas, QueueOptions, QueuePlace};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// The front-end's address of guest address 0.
pub(crate) const USER: u64 = 1 << 32;
/// The guest address of the second of two adjacent regions.
pub(crate) const SEAM: u64 = 1 << 20;
/// Bytes of both regions.
pub(crate) const LEN: u64 = 2 << 20;

const PAGE: u64 = 4096;

/// A guest of two adjacent regions that are in reverse order in their file.
pub(crate) struct Ground {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) view: GuestView,
}

impl Ground {
    pub(crate) fn new() -> Ground {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&fd, LEN).expect("there is memory");
        let region = |address, file_offset| Region {
            guest_address: address,
            user_address: USER + address,
            len: LEN / 2,
            file_offset,
            fd: fd.try_clone().expect("a descriptor"),
        };
        let regions = vec![region(0, LEN / 2), region(SEAM, 0)];
        let memory = Arc::new(GuestMemory::map(regions).expect("regions are sound"));
        Ground { view: GuestView::new(Arc::clone(&memory)), memory }
    }

    /// The areas of a queue, each at the start of its own pages.
    pub(crate) fn areas(&self, format: Format, size: u16) -> QueueAreas {
        QueueAreas::find(&self.memory, format, place(size)).expect("the place is sound")
    }
}

pub(crate) fn place(size: u16) -> QueuePlace {
    QueuePlace { size, descriptors: USER, driver: USER + 160 * PAGE, device: USER + 180 * PAGE }
}

/// Options of a layout without any feature.
pub(crate) fn plain(format: Format) -> QueueOptions {
    QueueOptions { format, event_idx: false, indirect: false, in_order: false }
}
