//! The driver's half of a queue of either layout.

use ringway_sys::SharedPages;

use crate::{
    Access, Buffer, Format, Notify, PackedDriver, QueueAreas, QueueMemory, QueueOptions,
    SplitDriver, Used, UsedFault, Waiting,
};

/// Makes chains available and takes them back once they are used.
#[derive(Debug)]
pub enum DriverHalf<M = SharedPages> {
    /// Of a split queue.
    Split(SplitDriver<M>),
    /// Of a packed queue.
    Packed(PackedDriver<M>),
}

macro_rules! either {
    ($half:expr, $one:ident => $call:expr) => {
        match $half {
            DriverHalf::Split($one) => $call,
            DriverHalf::Packed($one) => $call,
        }
    };
}

impl<M: QueueMemory> DriverHalf<M> {
    /// Creates a queue in zeroed areas.
    pub fn new(areas: QueueAreas<M>, options: QueueOptions, access: Access) -> DriverHalf<M> {
        match options.format {
            Format::Split => DriverHalf::Split(SplitDriver::new(areas, options, access, 0)),
            Format::Packed => DriverHalf::Packed(PackedDriver::new(areas, options, access)),
        }
    }

    /// Free descriptors.
    #[inline]
    pub fn free(&self) -> usize {
        either!(self, half => half.free())
    }

    /// Makes a chain of buffers, and returns the number by which the device returns it.
    ///
    /// # Panics
    /// If there are no buffers, or more than there are free descriptors.
    #[inline]
    pub fn push(&mut self, buffers: &[Buffer]) -> u16 {
        either!(self, half => half.push(buffers))
    }

    /// Makes a chain of an indirect table that the caller has written in the queue's own layout.
    /// The table's buffers have `room` bytes.
    ///
    /// # Panics
    /// If no descriptor is free.
    pub fn push_table(&mut self, table: Buffer, room: u64) -> u16 {
        either!(self, half => half.push_table(table, room))
    }

    /// Makes the chains visible to the device.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        either!(self, half => half.publish())
    }

    /// Reads the device's progress: once per batch.
    ///
    /// # Errors
    /// [`UsedFault::RanAhead`].
    #[inline]
    pub fn poll(&mut self) -> Result<(), UsedFault> {
        either!(self, half => half.poll())
    }

    /// Takes back the next of the chains that the last poll found.
    ///
    /// # Errors
    /// [`UsedFault`].
    #[inline]
    pub fn take(&mut self) -> Result<Option<Used>, UsedFault> {
        either!(self, half => half.take())
    }

    /// Requests a call when a chain is used, and polls once more.
    pub fn arm(&mut self) -> Waiting {
        either!(self, half => half.arm())
    }
}
