//! The ports of a guest, as one type, so that workers call them directly.

use std::os::fd::BorrowedFd;

use ringway_datapath::{
    FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending, Port, PortDown, Probe,
};
use ringway_hypervisor::{EventChannel, GrantTable};
use ringway_netfront::VifQueue;
use ringway_tap::TapQueue;

/// A queue of a vif, or of a TAP device.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are vif queues")]
pub(crate) enum FrontendPort<G: GrantTable, E> {
    Vif(VifQueue<G, E>),
    Tap(TapQueue),
}

impl<G: GrantTable, E: EventChannel> Port for FrontendPort<G, E> {
    #[inline]
    fn ingress(&mut self, pool: &mut FramePool, into: &mut FrameBatch) -> Result<(), PortDown> {
        match self {
            FrontendPort::Vif(vif) => vif.ingress(pool, into),
            FrontendPort::Tap(tap) => tap.ingress(pool, into),
        }
    }

    #[inline]
    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
        match self {
            FrontendPort::Vif(vif) => vif.egress(from, pool),
            FrontendPort::Tap(tap) => tap.egress(from, pool),
        }
    }

    #[inline]
    fn arm(&mut self) -> Result<Pending, PortDown> {
        match self {
            FrontendPort::Vif(vif) => vif.arm(),
            FrontendPort::Tap(tap) => tap.arm(),
        }
    }

    fn offload_caps(&self) -> OffloadCaps {
        match self {
            FrontendPort::Vif(vif) => vif.offload_caps(),
            FrontendPort::Tap(tap) => tap.offload_caps(),
        }
    }

    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        match self {
            FrontendPort::Vif(vif) => vif.wakers(visit),
            FrontendPort::Tap(tap) => tap.wakers(visit),
        }
    }

    #[inline]
    fn probe(&self) -> Probe {
        match self {
            FrontendPort::Vif(vif) => vif.probe(),
            FrontendPort::Tap(tap) => tap.probe(),
        }
    }

    fn woken(&mut self) -> Result<(), PortDown> {
        match self {
            FrontendPort::Vif(vif) => vif.woken(),
            FrontendPort::Tap(tap) => tap.woken(),
        }
    }
}
