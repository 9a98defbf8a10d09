//! Guests on one bridge of the host: senders to such a guest wait for it, as on the switch.
//!
//! Frames between two guests on a bridge pass through the host's kernel: one engine writes them to
//! the sender's device, and the same or another engine reads them from the receiver's. The kernel
//! does not hold senders: a device with a full queue drops frames of all senders alike. So the
//! engine that reads from a device reports when it has fallen behind ([`BridgeBackpressure`]), and
//! this holds senders to the receiver's address as a full queue would. The bridge's rules may send
//! such a frame elsewhere; then its sender waited without need, but no longer than its allowance
//! lasts.

use std::collections::HashMap;
use std::sync::Arc;

use ringway_datapath::MacAddr;
use ringway_switch::PortId;

use crate::gauge::{Backlog, Gauge, HIGH};
use crate::sync::{AtomicU64, Ordering};

/// Where a vif's device is in the host's network.
#[derive(Debug, Clone)]
pub struct BridgePort {
    /// The bridge's name.
    pub bridge: Arc<str>,
    /// The address of the guest behind the device.
    pub address: MacAddr,
}

/// Back-pressure of a device on a bridge: whether its queues have fallen behind.
#[derive(Debug, Default)]
pub struct BridgeBackpressure {
    gauge: Arc<Gauge>,
    /// The queues that have fallen behind: a bit for each, by its number modulo 64.
    behind: AtomicU64,
}

impl BridgeBackpressure {
    /// The gauge that holds senders.
    pub(crate) fn gauge(&self) -> &Arc<Gauge> {
        &self.gauge
    }

    fn raise(&self, queue: u16) {
        self.behind.fetch_or(bit(queue), Ordering::Relaxed);
        // Raise it each time: another queue may have lowered it after reading the bits without this
        // one.
        self.gauge.raise();
    }

    /// True if senders may sleep and must be nudged.
    fn lower(&self, queue: u16) -> bool {
        let before = self.behind.fetch_and(!bit(queue), Ordering::Relaxed);
        before == bit(queue) && self.gauge.lower()
    }
}

fn bit(queue: u16) -> u64 {
    1 << (queue % 64)
}

/// What one queue of a device on a bridge reports.
#[derive(Debug)]
pub(crate) struct BridgeQueue {
    arrivals: Arc<BridgeBackpressure>,
    queue: u16,
    /// What came in since the device was last found empty.
    since_empty: Backlog,
    is_behind: bool,
}

impl BridgeQueue {
    pub(crate) fn new(arrivals: Arc<BridgeBackpressure>, queue: u16) -> BridgeQueue {
        BridgeQueue { arrivals, queue, since_empty: Backlog::default(), is_behind: false }
    }

    /// Reports a batch that came in, with its cost; `is_all` if the device had no more. True if
    /// senders may sleep and must be nudged.
    pub(crate) fn report_batch(&mut self, batch: Backlog, cost: u64, is_all: bool) -> bool {
        self.arrivals.gauge.add_sent_shared(cost);
        if is_all {
            self.since_empty = Backlog::default();
            return self.clear_behind();
        }
        self.since_empty.frames += batch.frames;
        self.since_empty.bytes += batch.bytes;
        if self.since_empty.reaches(HIGH) {
            self.set_behind();
        }
        false
    }

    /// Reports that the queue has fallen behind.
    pub(crate) fn set_behind(&mut self) {
        self.is_behind = true;
        self.arrivals.raise(self.queue);
    }

    /// Reports that nothing waits, or that no sender should wait. True if senders must be nudged.
    pub(crate) fn clear_behind(&mut self) -> bool {
        std::mem::take(&mut self.is_behind) && self.arrivals.lower(self.queue)
    }
}

impl Drop for BridgeQueue {
    /// The queue is removed. The caller nudges all senders.
    fn drop(&mut self) {
        self.clear_behind();
    }
}

/// The devices on one bridge, by the address of the guest behind each.
pub(crate) type Neighbors = HashMap<MacAddr, Arc<BridgeBackpressure>>;

/// All devices on bridges, as the control plane knows them.
#[derive(Debug, Default)]
pub(crate) struct Bridges {
    ports: Vec<(PortId, BridgePort, Arc<BridgeBackpressure>)>,
}

impl Bridges {
    /// Adds a device before its port is attached.
    pub(crate) fn join(&mut self, port: PortId, at: BridgePort) {
        self.leave(port);
        self.ports.push((port, at, Arc::default()));
    }

    pub(crate) fn leave(&mut self, port: PortId) {
        self.ports.retain(|(it, ..)| *it != port);
    }

    pub(crate) fn arrivals(&self, port: PortId) -> Option<Arc<BridgeBackpressure>> {
        let found = self.ports.iter().find(|(it, ..)| *it == port);
        found.map(|(.., arrivals)| Arc::clone(arrivals))
    }

    /// The neighbours of each device, by its port; `None` for a device without neighbours.
    pub(crate) fn neighbors(&self) -> Vec<Option<Arc<Neighbors>>> {
        let mut bridges: HashMap<&str, Neighbors> = HashMap::new();
        for (_, at, arrivals) in &self.ports {
            let neighbors = bridges.entry(&at.bridge).or_default();
            // If two have the same address, take the first: the bridge cannot tell them apart.
            neighbors.entry(at.address).or_insert_with(|| Arc::clone(arrivals));
        }
        bridges.retain(|_, neighbors| neighbors.len() > 1);
        let bridges: HashMap<&str, Arc<Neighbors>> =
            bridges.into_iter().map(|(name, neighbors)| (name, Arc::new(neighbors))).collect();
        let mut by_port = Vec::new();
        for (port, at, _) in &self.ports {
            let index = usize::from(port.0);
            if by_port.len() <= index {
                by_port.resize(index + 1, None);
            }
            by_port[index] = bridges.get(&*at.bridge).cloned();
        }
        by_port
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn senders_wait_until_no_queue_of_a_device_is_behind() {
        let arrivals = Arc::<BridgeBackpressure>::default();
        let mut queues = [0, 1].map(|queue| BridgeQueue::new(Arc::clone(&arrivals), queue));
        queues.iter_mut().for_each(BridgeQueue::set_behind);
        assert!(arrivals.gauge().wait_for_relief());
        assert!(!queues[0].clear_behind(), "the other one is behind");
        assert!(arrivals.gauge().has_pressure());
        assert!(queues[1].clear_behind(), "a sender sleeps");
        assert!(!arrivals.gauge().has_pressure());
        assert!(!queues[1].clear_behind(), "it is not behind any more");
    }

    #[test]
    fn a_queue_is_behind_when_much_has_come_in_since_it_was_empty() {
        let arrivals = Arc::<BridgeBackpressure>::default();
        let mut queue = BridgeQueue::new(Arc::clone(&arrivals), 0);
        let mut is_behind = |frames, bytes, is_all| {
            queue.report_batch(Backlog { frames, bytes }, 3, is_all);
            arrivals.gauge().has_pressure()
        };
        let almost = (HIGH.frames - 1, HIGH.bytes - 1);
        assert!(!is_behind(almost.0, almost.1, false));
        assert!(!is_behind(5, 5, true), "there are no more");
        assert!(!is_behind(almost.0, 0, false));
        assert!(is_behind(1, 0, false));
        assert!(!is_behind(1, 0, true));
        assert!(is_behind(1, HIGH.bytes, false));
        assert_eq!(arrivals.gauge().sent(), 6 * 3);
        drop(queue);
        assert!(!arrivals.gauge().has_pressure(), "it was removed");
    }

    #[test]
    fn devices_on_one_bridge_are_neighbours() {
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let at = |bridge: &str, last| BridgePort { bridge: bridge.into(), address: mac(last) };
        let mut bridges = Bridges::default();
        for (port, bridge, last) in [(1, "br0", 1), (3, "br0", 3), (4, "br1", 4)] {
            bridges.join(PortId(port), at(bridge, last));
        }
        let known = |bridges: &Bridges| -> Vec<Vec<u8>> {
            let of_port = |neighbors: &Option<Arc<Neighbors>>| {
                let mut known: Vec<u8> =
                    neighbors.iter().flat_map(|it| it.keys().map(|mac| mac.0[5])).collect();
                known.sort_unstable();
                known
            };
            bridges.neighbors().iter().map(of_port).collect()
        };
        assert_eq!(known(&bridges), [vec![], vec![1, 3], vec![], vec![1, 3], vec![]]);
        bridges.join(PortId(1), at("br1", 1));
        assert_eq!(known(&bridges)[3..], [vec![], vec![1, 4]], "it has moved");
        // The bridge cannot tell these two apart.
        bridges.join(PortId(5), at("br1", 4));
        let of_address = bridges.neighbors()[1].as_ref().and_then(|it| it.get(&mac(4)).cloned());
        let first = bridges.arrivals(PortId(4)).expect("it is on a bridge");
        assert!(of_address.is_some_and(|it| Arc::ptr_eq(&it, &first)));
        bridges.leave(PortId(4));
        assert!(bridges.arrivals(PortId(4)).is_none() && bridges.arrivals(PortId(1)).is_some());
    }
}
