//! Guests on one bridge of the host's: those who send to a guest there wait for it, as on the
//! switch.
//!
//! Between two guests on a bridge frames pass the host's kernel: one engine writes them to the
//! sender's device, and another, or the same, reads them from the receiver's. The kernel holds no
//! sender: a device whose queue is full drops what comes, from all senders alike. So the engine
//! that reads from a device reports when it has fallen behind ([`Arrivals`]), and senders are held
//! for that as for a full queue, by the receiver's address. A frame of theirs may go elsewhere all
//! the same, as the bridge's rules say; then its sender waited in vain, no longer than its
//! allowance lasts.

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

/// Back-pressure of a device on a bridge: whether its queues are behind with reading.
#[derive(Debug, Default)]
pub struct Arrivals {
    gauge: Arc<Gauge>,
    /// The queues that are behind, a bit for each, by its number modulo 64.
    behind: AtomicU64,
}

impl Arrivals {
    /// The gauge by which senders are held.
    pub(crate) fn gauge(&self) -> &Arc<Gauge> {
        &self.gauge
    }

    fn raise(&self, queue: u16) {
        self.behind.fetch_or(bit(queue), Ordering::Relaxed);
        // Each time: another queue may have lowered it after it saw the bits without this one.
        self.gauge.raise();
    }

    /// True if senders may sleep, and are to be nudged.
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
pub(crate) struct Arriving {
    arrivals: Arc<Arrivals>,
    queue: u16,
    /// What came in since the device was last found empty.
    since_empty: Backlog,
    is_behind: bool,
}

impl Arriving {
    pub(crate) fn new(arrivals: Arc<Arrivals>, queue: u16) -> Arriving {
        Arriving { arrivals, queue, since_empty: Backlog::default(), is_behind: false }
    }

    /// A batch of so much came in, of work `cost`. `is_all` if the device had no more. True if
    /// senders may sleep, and are to be nudged.
    pub(crate) fn took(&mut self, batch: Backlog, cost: u64, is_all: bool) -> bool {
        self.arrivals.gauge.add_sent_shared(cost);
        if is_all {
            self.since_empty = Backlog::default();
            return self.catch_up();
        }
        self.since_empty.frames += batch.frames;
        self.since_empty.bytes += batch.bytes;
        if self.since_empty.reaches(HIGH) {
            self.fall_behind();
        }
        false
    }

    /// What comes has to wait from now on.
    pub(crate) fn fall_behind(&mut self) {
        self.is_behind = true;
        self.arrivals.raise(self.queue);
    }

    /// Nothing waits, or no sender is to wait for it. True if senders are to be nudged.
    pub(crate) fn catch_up(&mut self) -> bool {
        std::mem::take(&mut self.is_behind) && self.arrivals.lower(self.queue)
    }
}

impl Drop for Arriving {
    /// The queue goes. The caller nudges all senders.
    fn drop(&mut self) {
        self.catch_up();
    }
}

/// The devices on one bridge, by the address of the guest behind each.
pub(crate) type Neighbors = HashMap<MacAddr, Arc<Arrivals>>;

/// All devices on bridges, as the control plane knows them.
#[derive(Debug, Default)]
pub(crate) struct Bridges {
    ports: Vec<(PortId, BridgePort, Arc<Arrivals>)>,
}

impl Bridges {
    /// Adds a device, whose port is not there yet.
    pub(crate) fn join(&mut self, port: PortId, at: BridgePort) {
        self.leave(port);
        self.ports.push((port, at, Arc::default()));
    }

    pub(crate) fn leave(&mut self, port: PortId) {
        self.ports.retain(|(it, ..)| *it != port);
    }

    pub(crate) fn arrivals(&self, port: PortId) -> Option<Arc<Arrivals>> {
        let found = self.ports.iter().find(|(it, ..)| *it == port);
        found.map(|(.., arrivals)| Arc::clone(arrivals))
    }

    /// The neighbours of each device, by its port; nothing for one that has none.
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
