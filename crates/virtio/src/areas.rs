//! The three areas of a queue.

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::{GuestMemory, OutsideMemory};
use ringway_wire::virtio::{self, QUEUE_SIZE_MAX, avail, event, used};

/// How a queue is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Three areas: descriptors, the available ring and the used ring (section 2.7).
    Split,
    /// One ring of descriptors (section 2.8).
    Packed,
}

/// The addresses of a queue as the front-end announces them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePlace {
    /// Entries.
    pub size: u16,
    /// The front-end's address of the descriptors.
    pub descriptors: u64,
    /// The address of the driver's area: the available ring, or the driver's event suppression.
    pub driver: u64,
    /// The address of the device's area: the used ring, or the device's event suppression.
    pub device: u64,
}

/// The areas of a queue, mapped into our memory.
#[derive(Debug, Clone)]
pub struct QueueAreas<M = SharedPages> {
    /// Entries.
    pub size: u16,
    /// The descriptors.
    pub descriptors: M,
    /// The area that the driver writes.
    pub driver: M,
    /// The area that the device writes.
    pub device: M,
}

/// Why a queue cannot be at the announced addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// An invalid size.
    #[error(
        "a queue of {size} entries: expected 1 to {QUEUE_SIZE_MAX}, a power of two where split"
    )]
    BadSize {
        /// Entries.
        size: u16,
    },
    /// The area is not aligned as its entries require.
    #[error("the {area} area at {address:#x} is not aligned to {alignment} bytes")]
    Misaligned {
        /// Which area.
        area: &'static str,
        /// The front-end's address.
        address: u64,
        /// The required alignment, in bytes.
        alignment: usize,
    },
    /// The area is not within one memory region.
    #[error("the {area} area: {outside}")]
    Outside {
        /// Which area.
        area: &'static str,
        /// The part that is outside.
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
            // The front-end chooses the addresses of its regions, so an aligned address says
            // nothing about the alignment of our mapping.
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

/// Bytes of the descriptors, of the driver's area and of the device's area.
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
