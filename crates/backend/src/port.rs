//! The ports of a backend, as one type, so that workers call them directly.

use std::os::fd::BorrowedFd;

use ringway_datapath::{
    FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending, Port, PortDown, Probe,
};
use ringway_hypervisor::{EventChannel, ForeignMemory};
use ringway_netback::VifQueue;
use ringway_tap::TapQueue;

/// A queue of a vif, or of a TAP device.
pub(crate) enum BackendPort<M, E> {
    Vif(VifQueue<M, E>),
    Tap(TapQueue),
}

impl<M: ForeignMemory, E: EventChannel> Port for BackendPort<M, E> {
    #[inline]
    fn ingress(&mut self, pool: &mut FramePool, into: &mut FrameBatch) -> Result<(), PortDown> {
        match self {
            BackendPort::Vif(vif) => vif.ingress(pool, into),
            BackendPort::Tap(tap) => tap.ingress(pool, into),
        }
    }

    #[inline]
    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
        match self {
            BackendPort::Vif(vif) => vif.egress(from, pool),
            BackendPort::Tap(tap) => tap.egress(from, pool),
        }
    }

    #[inline]
    fn arm(&mut self) -> Result<Pending, PortDown> {
        match self {
            BackendPort::Vif(vif) => vif.arm(),
            BackendPort::Tap(tap) => tap.arm(),
        }
    }

    fn offload_caps(&self) -> OffloadCaps {
        match self {
            BackendPort::Vif(vif) => vif.offload_caps(),
            BackendPort::Tap(tap) => tap.offload_caps(),
        }
    }

    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        match self {
            BackendPort::Vif(vif) => vif.wakers(visit),
            BackendPort::Tap(tap) => tap.wakers(visit),
        }
    }

    #[inline]
    fn probe(&self) -> Probe {
        match self {
            BackendPort::Vif(vif) => vif.probe(),
            BackendPort::Tap(tap) => tap.probe(),
        }
    }

    fn woken(&mut self) -> Result<(), PortDown> {
        match self {
            BackendPort::Vif(vif) => vif.woken(),
            BackendPort::Tap(tap) => tap.woken(),
        }
    }
}
