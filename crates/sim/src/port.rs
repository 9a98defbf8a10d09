//! A queue as the engines of a world see it: the real one of a vif of either kind, or one of a
//! device, with the source of its events.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringway_datapath::{
    Budget, Frame, FrameBatch, FramePool, FrameQueue, PeerProgress, Pending, PortQueue,
    QueueCounters, QueueTraits, Result, Wakers, Woken, queue_of_variants,
};
use ringway_loopback::LoopbackEvent;
use ringway_netback::{MulticastControl, VifQueue};
use ringway_virtback::QueuePair;
use ringway_wire::EvtchnPort;

use crate::canary::Canary;
use crate::device::{DeviceEvent, DeviceQueue};
use crate::ledger::{Ledger, Owner};
use crate::traffic::Share;
use crate::witness::{ShownRings, WatchedMemory};

/// A queue. The thread of an engine would wait for the descriptors of its events; here the world
/// queries the machine for pending [`events`](Port::events), the device for its own, and the
/// descriptors of a virtio guest.
pub(crate) struct Port {
    queue: Queue<Vif>,
    pub(crate) events: Vec<EvtchnPort>,
    /// Its owner, and where it counts; `None` for a hostile guest.
    owner: Option<(Owner, Ledger)>,
    pub(crate) counters: Arc<QueueCounters>,
    /// Working memory of one call.
    leaving: Vec<Option<Share>>,
    canary: Option<Canary>,
    /// What the guest's orders change.
    multicast: Multicast,
    calls: u64,
    /// The rings of an honest guest.
    _rings: Option<ShownRings>,
}

/// What the orders of a guest of Xen change.
pub(crate) type Multicast = Option<Arc<MulticastControl>>;

type Vif = VifQueue<WatchedMemory, LoopbackEvent>;

enum Queue<V> {
    Vif(Box<V>),
    Pair(Box<QueuePair>),
    Device(DeviceQueue),
}

queue_of_variants!(Queue<V> { Vif, Pair, Device });

impl Port {
    pub(crate) fn of_vif(
        (queue, multicast): (Vif, Multicast),
        counters: Arc<QueueCounters>,
        events: Vec<EvtchnPort>,
        owner: Option<(Owner, Ledger)>,
        canary: Option<Canary>,
        rings: Option<ShownRings>,
    ) -> Port {
        let queue = Queue::Vif(Box::new(queue));
        Port { _rings: rings, events, multicast, ..Port::new(queue, counters, owner, canary) }
    }

    pub(crate) fn of_pair(
        queue: QueuePair,
        counters: &Arc<QueueCounters>,
        owner: Option<(Owner, Ledger)>,
        canary: Option<Canary>,
    ) -> Port {
        Port::new(Queue::Pair(Box::new(queue)), Arc::clone(counters), owner, canary)
    }

    fn new(
        queue: Queue<Vif>,
        counters: Arc<QueueCounters>,
        owner: Option<(Owner, Ledger)>,
        canary: Option<Canary>,
    ) -> Port {
        Port {
            queue,
            events: Vec::new(),
            owner,
            counters,
            leaving: Vec::new(),
            canary,
            multicast: None,
            calls: 0,
            _rings: None,
        }
    }

    /// The guest or the device that it belongs to; `None` for a hostile guest.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.owner.as_ref().map(|(owner, _)| *owner)
    }

    pub(crate) fn device_event(&self) -> Option<DeviceEvent> {
        match &self.queue {
            Queue::Vif(_) | Queue::Pair(_) => None,
            Queue::Device(queue) => Some(queue.event()),
        }
    }
}

impl From<DeviceQueue> for Port {
    fn from(queue: DeviceQueue) -> Port {
        let (counters, owner) = (Arc::clone(&queue.counters), queue.owner.clone());
        let canary = queue.canary;
        Port::new(Queue::Device(queue), counters, Some(owner), canary)
    }
}

impl PortQueue for Port {
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        let before = into.len();
        let taken = self.queue.ingress(budget, pool, into);
        if let Some((owner, ledger)) = &self.owner {
            into[before..].iter().for_each(|frame| ledger.enter(*owner, frame));
        }
        self.calls += 1;
        match self.canary {
            Some(Canary::SwappedFrames) if into.len() > before + 1 && self.calls % 4 == 0 => {
                into.swap(before, before + 1);
            }
            Some(Canary::UncountedDrop) if into.len() > before && self.calls % 8 == 0 => {
                into.pop().into_iter().for_each(|frame| pool.recycle(frame));
            }
            Some(Canary::DoubledFrame) if into.len() > before && self.calls % 8 == 0 => {
                let copy = copy_of(&into[before], pool);
                copy.into_iter().for_each(|copy| drop(into.try_push(copy)));
            }
            Some(Canary::LeakedBuffer) if into.len() > before && self.calls % 8 == 0 => {
                let copy = pool.take(into[before].len());
                copy.into_iter().for_each(std::mem::forget);
            }
            Some(Canary::UnnotedOrders) => {
                self.multicast.iter().for_each(|it| it.changes.note(|| ()));
            }
            Some(Canary::EarlyResponse) => {
                if let Queue::Vif(queue) = &mut self.queue {
                    queue.settle(pool)?;
                }
            }
            _ => {}
        }
        taken
    }

    fn settle(&mut self, pool: &mut FramePool) -> Result {
        self.queue.settle(pool)
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        if self.canary == Some(Canary::ChangedByte) {
            let last = from.front_mut().and_then(|frame| frame.bytes_mut().last_mut());
            last.into_iter().for_each(|byte| *byte ^= 1);
        }
        let before = from.len();
        self.leaving.clear();
        if self.owner.is_some() {
            // A call takes no more than a ring has slots for, or drops all that there is.
            self.leaving.extend(from.iter().map(|frame| Share::of(frame.bytes())));
        }
        let sent = self.queue.egress(from, pool);
        if let Some((owner, ledger)) = &self.owner {
            let count = before - from.len();
            self.leaving.drain(..).take(count).flatten().for_each(|it| ledger.leave(*owner, it));
        }
        sent
    }

    fn arm(&mut self) -> Result<Pending> {
        self.queue.arm()
    }

    fn woken(&mut self, by: Woken) -> Result {
        self.queue.woken(by)
    }

    fn describe(&self) -> QueueTraits {
        self.queue.describe()
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        None
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        let progress = self.queue.peer_progress()?;
        match self.canary {
            Some(Canary::HastyBucket) => Some(PeerProgress::new(progress.mark(), 1, 1)),
            _ => Some(progress),
        }
    }
}

impl Wakers for Port {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.queue.wakers(visit);
    }
}

fn copy_of(frame: &Frame, pool: &mut FramePool) -> Option<Frame> {
    let mut copy = pool.take(frame.len())?;
    copy.bytes_mut().copy_from_slice(frame.bytes());
    copy.offload = frame.offload;
    Some(copy)
}
