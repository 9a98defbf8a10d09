//! The device's half of a queue of either layout.

use ringway_sys::SharedPages;
use ringway_sys::guest_memory::GuestView;

use crate::{
    Access, Buffers, Chain, Format, Notify, NotifyWhen, PackedDevice, PackedPosition, QueueAreas,
    QueueMemory, QueueOptions, Result, Singles, SplitDevice, SplitPosition, Waiting,
};

/// Takes chains and uses each one once, in order.
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

/// A position of the device to return to.
#[derive(Debug, Clone, Copy)]
pub enum DevicePosition {
    /// In a split queue.
    Split(SplitPosition),
    /// In a packed queue.
    Packed(PackedPosition),
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
    /// Attaches to a queue at a base, in the format of `VHOST_USER_SET_VRING_BASE`. For a packed
    /// queue only the lower half counts: the position of the next available descriptor is also that
    /// of the next used one.
    ///
    /// # Errors
    /// [`QueueFault::RanAhead`](crate::QueueFault::RanAhead) if the base is not in the queue.
    pub fn attach(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        base: u32,
    ) -> Result<DeviceHalf<M>> {
        let base = u16::try_from(base & u32::from(u16::MAX)).expect("16 bits are left");
        Ok(match options.format {
            Format::Split => DeviceHalf::Split(SplitDevice::attach(areas, options, access, base)),
            Format::Packed => {
                DeviceHalf::Packed(PackedDevice::attach(areas, options, access, base)?)
            }
        })
    }

    /// As [`attach`](DeviceHalf::attach), with the queue's part of an inflight area for
    /// `descriptors` descriptors: chains in flight are taken first. For a packed queue the area
    /// also records the position to continue from; the base counts only if nothing was recorded.
    ///
    /// # Errors
    /// As [`attach`](DeviceHalf::attach), and
    /// [`QueueFault::Inflight`](crate::QueueFault::Inflight).
    pub fn attach_with_inflight(
        areas: QueueAreas<M>,
        options: QueueOptions,
        access: Access,
        base: u32,
        (noted, descriptors): (M, u16),
    ) -> Result<DeviceHalf<M>> {
        let mut half = DeviceHalf::attach(areas, options, access, base)?;
        either!(&mut half, half => half.attach_with_inflight(noted, descriptors)?);
        Ok(half)
    }

    /// The base for a successor, in the format of `VHOST_USER_GET_VRING_BASE`.
    pub fn base(&self) -> u32 {
        match self {
            DeviceHalf::Split(half) => u32::from(half.base()),
            DeviceHalf::Packed(half) => {
                let base = u32::from(half.base());
                base << 16 | base
            }
        }
    }

    /// Reads the driver's progress: once per batch.
    ///
    /// # Errors
    /// [`QueueFault::RanAhead`](crate::QueueFault::RanAhead).
    #[inline]
    pub fn poll(&mut self) -> Result<()> {
        either!(self, half => half.poll())
    }

    /// Takes the next of the chains that the last poll found.
    ///
    /// # Errors
    /// [`QueueFault`](crate::QueueFault).
    #[inline]
    pub fn take(&mut self, guest: &GuestView, buffers: &mut Buffers) -> Result<Option<Chain>> {
        either!(self, half => half.take(guest, buffers))
    }

    /// Reads ahead what the last poll found, for [`singles`](DeviceHalf::singles).
    ///
    /// # Errors
    /// [`QueueFault`](crate::QueueFault).
    #[inline]
    pub fn read_ahead(&mut self, guest: &GuestView) -> Result<()> {
        match self {
            DeviceHalf::Split(half) => half.read_ahead(guest),
            DeviceHalf::Packed(_) => Ok(()),
        }
    }

    /// The buffers of the next chains, as far as they were read ahead: see
    /// [`SplitDevice::singles`]. Packed queues have none.
    #[inline]
    pub fn singles(&self) -> Singles<'_> {
        match self {
            DeviceHalf::Split(half) => half.singles(),
            DeviceHalf::Packed(_) => Singles::none(),
        }
    }

    /// Takes and uses the first chains of [`singles`](DeviceHalf::singles): one for each item of
    /// `written`, which is how many bytes were written into it.
    ///
    /// # Panics
    /// If there are fewer chains, which is an error of the caller.
    #[inline]
    pub fn use_singles(&mut self, written: impl ExactSizeIterator<Item = u32>) {
        match self {
            DeviceHalf::Split(half) => half.use_singles(written),
            DeviceHalf::Packed(_) => {
                assert!(written.len() == 0, "a chain is used that was not shown");
            }
        }
    }

    /// The position of the next chain to take.
    #[inline]
    pub fn position(&self) -> DevicePosition {
        match self {
            DeviceHalf::Split(half) => DevicePosition::Split(half.position()),
            DeviceHalf::Packed(half) => DevicePosition::Packed(half.position()),
        }
    }

    /// Returns the chains taken since that position; none of them may have been used.
    ///
    /// # Panics
    /// If the position belongs to a queue of another layout.
    #[inline]
    pub fn rewind(&mut self, position: DevicePosition) {
        match (self, position) {
            (DeviceHalf::Split(half), DevicePosition::Split(position)) => half.rewind(position),
            (DeviceHalf::Packed(half), DevicePosition::Packed(position)) => half.rewind(position),
            _ => panic!("a position of another queue"),
        }
    }

    /// Uses the oldest chain that was taken and not used, with `written` bytes written.
    ///
    /// # Panics
    /// If there is no such chain, which is an error of the caller.
    #[inline]
    pub fn push_used(&mut self, chain: Chain, written: u32) {
        either!(self, half => half.push_used(chain, written));
    }

    /// Makes the used chains visible to the driver.
    #[inline]
    pub fn publish(&mut self) -> Notify {
        either!(self, half => half.publish())
    }

    /// How many chains were used, from any number on and wrapping, and how many are available now.
    /// `None` for a packed queue, which shows only whether the next one is, and if the driver's
    /// index is invalid.
    pub fn progress(&self) -> Option<(u16, u16)> {
        match self {
            DeviceHalf::Split(half) => half.progress(),
            DeviceHalf::Packed(_) => None,
        }
    }

    /// Whether the driver has never made a chain available.
    pub fn is_blank(&self) -> bool {
        either!(self, half => half.is_blank())
    }

    /// Requests a kick, and polls once more.
    pub fn arm(&mut self, when: NotifyWhen) -> Waiting {
        either!(self, half => half.arm(when))
    }
}
