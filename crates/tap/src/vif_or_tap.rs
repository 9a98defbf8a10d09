//! The two kinds of queue that a process serves, as one type, so that workers call them directly.

use std::os::fd::BorrowedFd;

use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, Interest, Pending, PortQueue, QueueDown,
    QueueTraits, Wakers, Woken,
};

use crate::TapQueue;

/// A queue of a vif, or of a TAP device.
pub enum VifOrTap<V> {
    /// A queue of a vif, at either end.
    Vif(V),
    /// A queue of a TAP device.
    Tap(TapQueue),
}

impl<V: PortQueue> PortQueue for VifOrTap<V> {
    #[inline]
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), QueueDown> {
        match self {
            VifOrTap::Vif(vif) => vif.ingress(budget, pool, into),
            VifOrTap::Tap(tap) => tap.ingress(budget, pool, into),
        }
    }

    #[inline]
    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), QueueDown> {
        match self {
            VifOrTap::Vif(vif) => vif.egress(from, pool),
            VifOrTap::Tap(tap) => tap.egress(from, pool),
        }
    }

    #[inline]
    fn arm(&mut self) -> Result<Pending, QueueDown> {
        match self {
            VifOrTap::Vif(vif) => vif.arm(),
            VifOrTap::Tap(tap) => tap.arm(),
        }
    }

    fn woken(&mut self, by: Woken) -> Result<(), QueueDown> {
        match self {
            VifOrTap::Vif(vif) => vif.woken(by),
            VifOrTap::Tap(tap) => tap.woken(by),
        }
    }

    fn describe(&self) -> QueueTraits {
        match self {
            VifOrTap::Vif(vif) => vif.describe(),
            VifOrTap::Tap(tap) => tap.describe(),
        }
    }
}

impl<V: Wakers> Wakers for VifOrTap<V> {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest)) {
        match self {
            VifOrTap::Vif(vif) => vif.wakers(visit),
            VifOrTap::Tap(tap) => tap.wakers(visit),
        }
    }
}
