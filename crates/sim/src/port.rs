//! A queue of a vif as engines of a world have it: the real one, and the ports of its events.

use std::os::fd::BorrowedFd;

use ringway_datapath::{
    Budget, Frame, FrameBatch, FramePool, FrameQueue, Interest, Pending, PortDown, PortQueue,
    QueueTraits, Wakers,
};
use ringway_loopback::{LoopbackEvent, LoopbackMemory};
use ringway_netback::VifQueue;
use ringway_wire::EvtchnPort;

use crate::canary::Canary;

/// A queue of netback. The thread of an engine would wait for the descriptors of its events; here
/// the world asks the machine which of [`events`](Port::events) are pending.
pub(crate) struct Port {
    queue: VifQueue<LoopbackMemory, LoopbackEvent>,
    pub(crate) events: Vec<EvtchnPort>,
    canary: Option<Canary>,
    calls: u64,
}

impl Port {
    pub(crate) fn new(
        queue: VifQueue<LoopbackMemory, LoopbackEvent>,
        events: Vec<EvtchnPort>,
        canary: Option<Canary>,
    ) -> Port {
        Port { queue, events, canary, calls: 0 }
    }
}

impl PortQueue for Port {
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), PortDown> {
        let before = into.len();
        let taken = self.queue.ingress(budget, pool, into);
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
            _ => {}
        }
        taken
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
        if self.canary == Some(Canary::ChangedByte) {
            let last = from.front_mut().and_then(|frame| frame.bytes_mut().last_mut());
            last.into_iter().for_each(|byte| *byte ^= 1);
        }
        self.queue.egress(from, pool)
    }

    fn arm(&mut self) -> Result<Pending, PortDown> {
        self.queue.arm()
    }

    fn woken(&mut self) -> Result<(), PortDown> {
        self.queue.woken()
    }

    fn describe(&self) -> QueueTraits {
        self.queue.describe()
    }
}

impl Wakers for Port {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest)) {
        self.queue.wakers(visit);
    }
}

fn copy_of(frame: &Frame, pool: &mut FramePool) -> Option<Frame> {
    let mut copy = pool.take(frame.len())?;
    copy.bytes_mut().copy_from_slice(frame.bytes());
    copy.offload = frame.offload;
    Some(copy)
}
