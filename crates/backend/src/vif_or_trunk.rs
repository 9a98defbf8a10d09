//! The kinds of ring that a backend serves, as one type, so that workers call them directly.

use std::os::fd::BorrowedFd;

use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, Interest, Pending, PortQueue, QueueDown,
    QueueTraits, Wakers, Woken,
};
use ringway_trunk::{TrunkEvent, TrunkGrants};
use ringway_virtback::QueuePair;

/// A queue of a trunk, at the tenant's end.
pub(crate) type TrunkQueue = ringway_netfront::VifQueue<TrunkGrants, TrunkEvent>;

/// A queue of which this process is the backend or the frontend, or a virtio pair.
pub(crate) enum VifOrTrunk<V> {
    /// A queue of a vif, or of a trunk in the switch process.
    Vif(V),
    /// A queue of a trunk, in a tenant's process.
    Trunk(Box<TrunkQueue>),
    /// A pair of a virtio device.
    Virtio(Box<QueuePair>),
}

impl<V: PortQueue> PortQueue for VifOrTrunk<V> {
    #[inline]
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), QueueDown> {
        match self {
            VifOrTrunk::Vif(vif) => vif.ingress(budget, pool, into),
            VifOrTrunk::Trunk(trunk) => trunk.ingress(budget, pool, into),
            VifOrTrunk::Virtio(pair) => pair.ingress(budget, pool, into),
        }
    }

    #[inline]
    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), QueueDown> {
        match self {
            VifOrTrunk::Vif(vif) => vif.egress(from, pool),
            VifOrTrunk::Trunk(trunk) => trunk.egress(from, pool),
            VifOrTrunk::Virtio(pair) => pair.egress(from, pool),
        }
    }

    #[inline]
    fn arm(&mut self) -> Result<Pending, QueueDown> {
        match self {
            VifOrTrunk::Vif(vif) => vif.arm(),
            VifOrTrunk::Trunk(trunk) => trunk.arm(),
            VifOrTrunk::Virtio(pair) => pair.arm(),
        }
    }

    fn woken(&mut self, by: Woken) -> Result<(), QueueDown> {
        match self {
            VifOrTrunk::Vif(vif) => vif.woken(by),
            VifOrTrunk::Trunk(trunk) => trunk.woken(by),
            VifOrTrunk::Virtio(pair) => pair.woken(by),
        }
    }

    fn describe(&self) -> QueueTraits {
        match self {
            VifOrTrunk::Vif(vif) => vif.describe(),
            VifOrTrunk::Trunk(trunk) => trunk.describe(),
            VifOrTrunk::Virtio(pair) => pair.describe(),
        }
    }
}

impl<V: Wakers> Wakers for VifOrTrunk<V> {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest)) {
        match self {
            VifOrTrunk::Vif(vif) => vif.wakers(visit),
            VifOrTrunk::Trunk(trunk) => trunk.wakers(visit),
            VifOrTrunk::Virtio(pair) => pair.wakers(visit),
        }
    }
}
