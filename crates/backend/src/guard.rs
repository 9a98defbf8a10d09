//! Which Ethernet addresses may be used behind a trunk.
//!
//! The switch process drops frames from any other: a tenant's process checks its guests itself, and
//! this holds when it does not any more.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ringway_control::Allowed;
use ringway_datapath::headers::macs;
use ringway_datapath::{
    Budget, DropReason, FrameBatch, FramePool, FrameQueue, Interest, MacAddr, Pending, PortDown,
    PortQueue, QueueCounters, QueueTraits, Wakers,
};

/// Addresses that frames of a tenant may come from, for all queues of its trunk.
#[derive(Debug)]
pub(crate) struct Guard(ArcSwap<Sources>);

/// In order; any if there is no list.
#[derive(Debug)]
struct Sources(Option<Box<[MacAddr]>>);

impl Guard {
    pub(crate) fn new(allowed: &Allowed) -> Guard {
        Guard(ArcSwap::from_pointee(Sources::of(allowed)))
    }

    /// From the next frames on.
    pub(crate) fn set(&self, allowed: &Allowed) {
        self.0.store(Arc::new(Sources::of(allowed)));
    }
}

impl Sources {
    fn of(allowed: &Allowed) -> Sources {
        let Allowed::Only(addresses) = allowed else { return Sources(None) };
        let mut addresses: Vec<MacAddr> = addresses.iter().copied().map(MacAddr).collect();
        addresses.sort_unstable();
        Sources(Some(addresses.into()))
    }

    fn has(&self, source: MacAddr) -> bool {
        self.0.as_ref().is_none_or(|allowed| allowed.binary_search(&source).is_ok())
    }
}

/// A queue whose frames come from allowed addresses only.
pub(crate) struct Guarded<Q> {
    pub(crate) queue: Q,
    pub(crate) guard: Arc<Guard>,
    pub(crate) counters: Arc<QueueCounters>,
}

impl<Q> Guarded<Q> {
    /// Takes frames from `start` on out of the batch that come from elsewhere.
    fn filter(&self, start: usize, pool: &mut FramePool, batch: &mut FrameBatch) {
        let sources = self.guard.0.load();
        if sources.0.is_none() {
            return;
        }
        let mut last = None;
        let mut index = start;
        while let Some(frame) = batch.get(index) {
            // A frame without an Ethernet header is the switch's to drop.
            let source = macs(frame.bytes()).map(|(_, source)| source);
            if source == last || source.is_none_or(|source| sources.has(source)) {
                last = source;
                index += 1;
            } else {
                pool.recycle(batch.remove(index));
                self.counters.dropped.count(DropReason::BadSource, 1);
            }
        }
    }
}

impl<Q: PortQueue> PortQueue for Guarded<Q> {
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), PortDown> {
        let start = into.len();
        let taken = self.queue.ingress(budget, pool, into);
        self.filter(start, pool, into);
        taken
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
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

impl<Q: Wakers> Wakers for Guarded<Q> {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest)) {
        self.queue.wakers(visit);
    }
}

#[cfg(test)]
mod tests {
    use ringway_datapath::{OffloadCaps, PoolBudget, Probe};

    use super::*;

    /// Frames that enter, by the last byte of their source; `None` for one that is too short.
    struct Sender(Vec<Option<u8>>);

    impl PortQueue for Sender {
        fn ingress(
            &mut self,
            _: Budget,
            pool: &mut FramePool,
            into: &mut FrameBatch,
        ) -> Result<(), PortDown> {
            for source in self.0.drain(..) {
                let mut frame = pool.take(source.map_or(5, |_| 60)).expect("there is room");
                if let Some(source) = source {
                    frame.bytes_mut()[6..12].copy_from_slice(&address(source));
                }
                into.push(frame);
            }
            Ok(())
        }

        fn egress(&mut self, _: &mut FrameQueue, _: &mut FramePool) -> Result<(), PortDown> {
            Ok(())
        }

        fn arm(&mut self) -> Result<Pending, PortDown> {
            Ok(Pending::Nothing)
        }

        fn woken(&mut self) -> Result<(), PortDown> {
            Ok(())
        }

        fn describe(&self) -> QueueTraits {
            QueueTraits { caps: OffloadCaps::ALL, probe: Probe::Memory, retry: None }
        }
    }

    fn address(last: u8) -> [u8; 6] {
        [0, 0x16, 0x3e, 0, 0, last]
    }

    /// What passes of frames from these sources, and how many do not.
    fn passed(allowed: &Allowed, sources: &[Option<u8>]) -> (Vec<Option<u8>>, u64) {
        let counters = Arc::new(QueueCounters::default());
        let mut trunk = Guarded {
            queue: Sender(sources.to_vec()),
            guard: Arc::new(Guard::new(&Allowed::Only(Vec::new()))),
            counters: Arc::clone(&counters),
        };
        trunk.guard.set(allowed);
        let mut pool = FramePool::new(PoolBudget::new(1 << 20));
        let mut batch = FrameBatch::new();
        batch.push(pool.take(60).expect("there is room"));
        trunk.ingress(Budget::BATCH, &mut pool, &mut batch).expect("it never fails");
        // What was in the batch before is not the tenant's.
        let passed = batch.iter().skip(1).map(|frame| frame.bytes().get(11).copied());
        let dropped = counters.dropped.snapshot().map(|(_, count)| count).sum();
        (passed.collect(), dropped)
    }

    #[test]
    fn frames_from_the_addresses_of_others_do_not_pass() {
        let own = Allowed::Only(vec![address(7), address(3)]);
        let sources = [Some(3), Some(9), Some(9), None, Some(7), Some(3), Some(8)];
        assert_eq!(passed(&own, &sources), (vec![Some(3), None, Some(7), Some(3)], 3));
        assert_eq!(passed(&Allowed::Only(Vec::new()), &sources), (vec![None], 6));
        assert_eq!(passed(&Allowed::Any, &sources), (sources.to_vec(), 0));
    }
}
