//! The device's half of a queue, whatever its layout.

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::GuestView;

use crate::{
    Access, Buffer, Buffers, Chain, Format, Notify, PackedDevice, PackedMark, QueueAreas,
    QueueFault, QueueMemory, QueueOptions, SplitDevice, SplitMark, Waiting, Want,
};

/// Takes chains and uses each once, in order.
///
/// ```text
/// queue.look()?;                                   // how far the driver is, once
/// while let Some(chain) = queue.take(&guest, &mut buffers)? {
///     ... copy ...
///     queue.push_used(chain, written);
/// }
/// if queue.publish() == Notify::Peer { call }
/// ```
#[derive(Debug)]
pub enum DeviceHalf<M = SharedPages> {
    /// Of a split queue.
    Split(SplitDevice<M>),
    /// Of a packed queue.
    Packed(PackedDevice<M>),
}

/// Where a device stands, to go back to.
#[derive(Debug, Clone, Copy)]
pub enum DeviceMark {
    /// In a split queue.
    Split(SplitMark),
    /// In a packed queue.
    Packed(PackedMark),
}

macro_rules! either {
    ($half:expr, $one:ident => $call:expr) => {
        match $half {
            DeviceHalf::Split($one) => $call,
            DeviceHalf::Packed($one) => $call,
        }
    };
}

impl<M: QueueMemory> DeviceHalf<M> {
    /// Takes over a queue at a base, as `VHOST_USER_SET_VRING_BASE` has it. Of a packed queue, the
    /// lower half counts: where it was available to us is where we used it.
    ///
    /// # Errors
    /// [`QueueFault::RanAhead`] if the base is not in the queue.
    pub fn attach(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        base: u32,
    ) -> Result<DeviceHalf<M>, QueueFault> {
        let base = u16::try_from(base & u32::from(u16::MAX)).expect("16 bits are left");
        Ok(match options.format {
            Format::Split => DeviceHalf::Split(SplitDevice::attach(areas, options, access, base)),
            Format::Packed => {
                DeviceHalf::Packed(PackedDevice::attach(areas, options, access, base)?)
            }
        })
    }

    /// The same with the part of the queue in an area that notes what is under way, which is for so
    /// many descriptors: first comes what was under way. Where a packed queue goes on stands in
    /// such an area, and the base counts only where nothing was noted.
    ///
    /// # Errors
    /// As [`attach`](DeviceHalf::attach), and [`QueueFault::Inflight`].
    pub fn resume(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        base: u32,
        (noted, descriptors): (M, u16),
    ) -> Result<DeviceHalf<M>, QueueFault> {
        let mut half = DeviceHalf::attach(areas, options, access, base)?;
        either!(&mut half, half => half.resume(noted, descriptors)?);
        Ok(half)
    }

    /// Where a successor would go on, as `VHOST_USER_GET_VRING_BASE` has it.
    pub fn base(&self) -> u32 {
        match self {
            DeviceHalf::Split(half) => u32::from(half.base()),
            DeviceHalf::Packed(half) => {
                let base = u32::from(half.base());
                base << 16 | base
            }
        }
    }

    /// Reads how far the driver is: once for a batch.
    ///
    /// # Errors
    /// [`QueueFault::RanAhead`].
    #[inline]
    pub fn look(&mut self) -> Result<(), QueueFault> {
        either!(self, half => half.look())
    }

    /// Takes the next chain of those that the last look found.
    ///
    /// # Errors
    /// [`QueueFault`].
    #[inline]
    pub fn take(
        &mut self,
        guest: &GuestView,
        buffers: &mut Buffers,
    ) -> Result<Option<Chain>, QueueFault> {
        either!(self, half => half.take(guest, buffers))
    }

    /// Reads what the last look found, so that [`peek_single`](DeviceHalf::peek_single) knows it.
    ///
    /// # Errors
    /// [`QueueFault`].
    #[inline]
    pub fn read_ahead(&mut self, guest: &GuestView) -> Result<(), QueueFault> {
        match self {
            DeviceHalf::Split(half) => half.read_ahead(guest),
            DeviceHalf::Packed(_) => Ok(()),
        }
    }

    /// The next chain, if it is known, is one buffer, and is the next to be used as well. For all
    /// others, and those of packed queues, there is [`take`](DeviceHalf::take) alone.
    #[inline]
    pub fn peek_single(&self) -> Option<(Chain, Buffer)> {
        match self {
            DeviceHalf::Split(half) => half.peek_single(),
            DeviceHalf::Packed(_) => None,
        }
    }

    /// Takes and uses the chain that [`peek_single`](DeviceHalf::peek_single) has just shown, with
    /// so many bytes written.
    ///
    /// # Panics
    /// If it has shown none: a mistake of ours.
    #[inline]
    pub fn use_single(&mut self, chain: Chain, written: u32) {
        match self {
            DeviceHalf::Split(half) => half.use_single(chain, written),
            DeviceHalf::Packed(_) => panic!("a chain is used that was not shown"),
        }
    }

    /// Where the next chain is taken.
    #[inline]
    pub fn mark(&self) -> DeviceMark {
        match self {
            DeviceHalf::Split(half) => DeviceMark::Split(half.mark()),
            DeviceHalf::Packed(half) => DeviceMark::Packed(half.mark()),
        }
    }

    /// Gives back the chains that were taken since, none of which was used.
    ///
    /// # Panics
    /// If the mark is of a queue of another layout.
    #[inline]
    pub fn go_back(&mut self, mark: DeviceMark) {
        match (self, mark) {
            (DeviceHalf::Split(half), DeviceMark::Split(mark)) => half.go_back(mark),
            (DeviceHalf::Packed(half), DeviceMark::Packed(mark)) => half.go_back(mark),
            _ => panic!("a mark of another queue"),
        }
    }

    /// Uses the oldest chain that was taken and not used, with so many bytes written.
    ///
    /// # Panics
    /// If there is no such chain: a mistake of ours.
    #[inline]
    pub fn push_used(&mut self, chain: Chain, written: u32) {
        either!(self, half => half.push_used(chain, written));
    }

    /// Makes the used chains visible.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        either!(self, half => half.publish())
    }

    /// Asks for a kick, and looks once more.
    pub fn arm(&mut self, want: Want) -> Waiting {
        either!(self, half => half.arm(want))
    }
}
