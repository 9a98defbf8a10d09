//! Where the three areas of a queue are.

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::{GuestMemory, OutsideMemory};
use ringway_wire::virtio::{self, QUEUE_SIZE_MAX, avail, event, used};

/// How a queue is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Descriptors, what is available and what is used are three areas (section 2.7).
    Split,
    /// All of it is one ring of descriptors (section 2.8).
    Packed,
}

/// Where a front-end says that a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePlace {
    /// Entries.
    pub size: u16,
    /// The front-end's address of the descriptors.
    pub descriptors: u64,
    /// That of what the driver writes: the available ring, or the driver's event suppression.
    pub driver: u64,
    /// That of what the device writes: the used ring, or the device's event suppression.
    pub device: u64,
}

/// The areas of a queue in our memory.
#[derive(Debug, Clone)]
pub struct QueueAreas<M = SharedPages> {
    /// Entries.
    pub size: u16,
    /// The descriptors.
    pub descriptors: M,
    /// What the driver writes.
    pub driver: M,
    /// What the device writes.
    pub device: M,
}

/// Why a queue cannot be where its front-end says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// A size that no queue has.
    #[error(
        "a queue of {size} entries: expected 1 to {QUEUE_SIZE_MAX}, a power of two where split"
    )]
    BadSize {
        /// Entries.
        size: u16,
    },
    /// An area that does not begin where its entries can be read.
    #[error("the {area} area at {address:#x} is not aligned to {alignment} bytes")]
    Misaligned {
        /// Which area.
        area: &'static str,
        /// The front-end's address.
        address: u64,
        /// What is expected.
        alignment: usize,
    },
    /// An area that is not in one region of memory.
    #[error("the {area} area: {outside}")]
    Outside {
        /// Which area.
        area: &'static str,
        /// What is outside.
        outside: OutsideMemory,
    },
}

impl QueueAreas {
    /// Finds the areas of a queue.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn find(
        memory: &GuestMemory,
        format: Format,
        place: QueuePlace,
    ) -> Result<QueueAreas, PlaceError> {
        let size = place.size;
        check_size(format, size)?;
        let lens = area_lens(format, size);
        let find = |area, address, len, alignment| {
            let len = u64::try_from(len).unwrap_or(u64::MAX);
            let found = memory.pages_of_user(address, len);
            let pages = found.map_err(|outside| PlaceError::Outside { area, outside })?;
            // A front-end may announce its regions so that its address says nothing of ours.
            match pages.is_aligned_to(alignment) {
                true => Ok(pages),
                false => Err(PlaceError::Misaligned { area, address, alignment }),
            }
        };
        let aligned = if format == Format::Split { [16, 2, 4] } else { [16, 4, 4] };
        Ok(QueueAreas {
            size,
            descriptors: find("descriptor", place.descriptors, lens[0], aligned[0])?,
            driver: find("driver", place.driver, lens[1], aligned[1])?,
            device: find("device", place.device, lens[2], aligned[2])?,
        })
    }
}

/// Bytes of the descriptors, of what the driver writes, and of what the device writes.
pub fn area_lens(format: Format, size: u16) -> [usize; 3] {
    let size = usize::from(size);
    match format {
        Format::Split => [size * size_of::<virtio::Desc>(), avail::len(size), used::len(size)],
        Format::Packed => [size * size_of::<virtio::PackedDesc>(), event::LEN, event::LEN],
    }
}

fn check_size(format: Format, size: u16) -> Result<(), PlaceError> {
    let is_possible = match format {
        Format::Split => size.is_power_of_two(),
        Format::Packed => (1..=QUEUE_SIZE_MAX).contains(&size),
    };
    if is_possible { Ok(()) } else { Err(PlaceError::BadSize { size }) }
}
