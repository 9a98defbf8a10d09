//! The two kinds of port that a process serves, as one type, so that workers call them directly.

use std::os::fd::BorrowedFd;

use ringway_datapath::{
    FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending, Port, PortDown, Probe,
};

use crate::TapQueue;

/// A queue of a vif, or of a TAP device.
pub enum VifOrTap<V> {
    /// A queue of a vif, seen from either end.
    Vif(V),
    /// A queue of a TAP device.
    Tap(TapQueue),
}

impl<V: Port> Port for VifOrTap<V> {
    #[inline]
    fn ingress(&mut self, pool: &mut FramePool, into: &mut FrameBatch) -> Result<(), PortDown> {
        match self {
            VifOrTap::Vif(vif) => vif.ingress(pool, into),
            VifOrTap::Tap(tap) => tap.ingress(pool, into),
        }
    }

    fn limit_ingress(&mut self, bytes_max: usize) {
        match self {
            VifOrTap::Vif(vif) => vif.limit_ingress(bytes_max),
            VifOrTap::Tap(tap) => tap.limit_ingress(bytes_max),
        }
    }

    #[inline]
    fn settle(&mut self) -> Result<(), PortDown> {
        match self {
            VifOrTap::Vif(vif) => vif.settle(),
            VifOrTap::Tap(tap) => tap.settle(),
        }
    }

    #[inline]
    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
        match self {
            VifOrTap::Vif(vif) => vif.egress(from, pool),
            VifOrTap::Tap(tap) => tap.egress(from, pool),
        }
    }

    #[inline]
    fn arm(&mut self) -> Result<Pending, PortDown> {
        match self {
            VifOrTap::Vif(vif) => vif.arm(),
            VifOrTap::Tap(tap) => tap.arm(),
        }
    }

    fn offload_caps(&self) -> OffloadCaps {
        match self {
            VifOrTap::Vif(vif) => vif.offload_caps(),
            VifOrTap::Tap(tap) => tap.offload_caps(),
        }
    }

    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        match self {
            VifOrTap::Vif(vif) => vif.wakers(visit),
            VifOrTap::Tap(tap) => tap.wakers(visit),
        }
    }

    fn awaits_room(&self) -> bool {
        match self {
            VifOrTap::Vif(vif) => vif.awaits_room(),
            VifOrTap::Tap(tap) => tap.awaits_room(),
        }
    }

    #[inline]
    fn probe(&self) -> Probe {
        match self {
            VifOrTap::Vif(vif) => vif.probe(),
            VifOrTap::Tap(tap) => tap.probe(),
        }
    }

    fn woken(&mut self) -> Result<(), PortDown> {
        match self {
            VifOrTap::Vif(vif) => vif.woken(),
            VifOrTap::Tap(tap) => tap.woken(),
        }
    }
}
