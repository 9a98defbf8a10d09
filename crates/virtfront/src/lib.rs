//! The driver side of virtio-net: [`QueuePair`] is one of its pairs of queues, as a [`PortQueue`].
//!
//! Its queues and buffers are in memory that is shared with the device for its whole life: frames
//! are copied into it and out of it. The device is not trusted either: used entries are read once,
//! by value, and checked against the outstanding chains.

mod egress;
mod fault;
mod ingress;
mod memory;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_datapath::{
    Budget, FrameBatch, FrameForm, FramePool, FrameQueue, PeerProgress, Pending, PortQueue,
    QueueCounters, QueueDown, QueueTraits, Result, Wakers, Woken,
};
use ringway_sys::eventfd::EventFd;
use ringway_virtio::{Access, Buffer, DriverHalf, Notify, QueueOptions, QueuePlace, Waiting};
use ringway_wire::virtio::Features;

pub use fault::FrontFault;
pub use memory::{FrontMemory, MemoryShape};

use memory::{BUFFER_LEN, PairMemory};

/// One pair of queues of a device: owned by one worker.
#[derive(Debug)]
pub struct QueuePair {
    memory: PairMemory,
    form: FrameForm,
    counters: Arc<QueueCounters>,
    tx: Ring,
    rx: Ring,
    /// Tx buffers that no chain uses.
    tx_free: Vec<u16>,
    /// The first buffer of the chain with this number, and how many it has.
    tx_chains: Box<[(u16, u16)]>,
    /// The buffer after this one in the same chain.
    tx_links: Box<[u16]>,
    /// A frame is waiting for buffers that the device has.
    is_tx_short: bool,
    /// Buffers per rx chain.
    rx_buffers_per_chain: u16,
    /// For each chain number, the position of its buffers, in chains.
    rx_places: Box<[u16]>,
    /// Chains of a received frame that is not copied yet: position and bytes. Only complete frames
    /// are held from one call to the next, when the pool had no buffer.
    held: Vec<(u16, u32)>,
    /// Working memory of one call, kept so that no call allocates.
    chain: Vec<Buffer>,
}

#[derive(Debug)]
struct Ring {
    half: DriverHalf,
    /// The descriptor with which we notify the device.
    kick: EventFd,
    /// The descriptor with which it notifies us.
    call: EventFd,
}

/// The device's end of one queue.
#[derive(Debug)]
pub struct QueueOffer {
    /// The addresses of its areas, relative to [`FrontMemory::region`].
    pub place: QueuePlace,
    /// By which the device is woken.
    pub kick: OwnedFd,
    /// By which the device wakes us.
    pub call: OwnedFd,
}

impl QueuePair {
    /// Creates both queues of pair `number`, and makes all rx buffers available.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    ///
    /// # Panics
    /// If the memory has another shape, or no such pair.
    pub fn new(
        memory: &FrontMemory,
        number: usize,
        features: Features,
        counters: Arc<QueueCounters>,
    ) -> io::Result<QueuePair> {
        let shape = memory.shape();
        let options = QueueOptions::of(features);
        assert_eq!(options.format, shape.format, "memory is made for the layout of its queues");
        let memory = memory.pair(number);
        let form = FrameForm::of_driver(features);
        let size = shape.size;
        let count = usize::from(size);
        let per_chain = match form.is_mergeable {
            true => 1,
            false => (form.header_len + shape.frame_len_max).div_ceil(BUFFER_LEN),
        };
        let ring = |areas, access| -> io::Result<Ring> {
            let half = DriverHalf::new(areas, options, access);
            Ok(Ring { half, kick: EventFd::new()?, call: EventFd::new()? })
        };
        let mut pair = QueuePair {
            form,
            counters,
            tx: ring(memory.tx.clone(), Access::Readable)?,
            rx: ring(memory.rx.clone(), Access::Writable)?,
            tx_free: (0..size).collect(),
            tx_chains: vec![(0, 0); count].into(),
            tx_links: vec![0; count].into(),
            is_tx_short: false,
            rx_buffers_per_chain: u16::try_from(per_chain).unwrap_or(u16::MAX),
            rx_places: vec![0; count].into(),
            held: Vec::with_capacity(count),
            chain: Vec::with_capacity(count),
            memory,
        };
        for place in 0..size / pair.rx_buffers_per_chain {
            pair.post(place);
        }
        // The device polls the queue when it attaches.
        let _ = pair.rx.half.publish();
        Ok(pair)
    }

    /// What to pass to the device for the tx queue and the rx queue.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn offers(&self) -> io::Result<[QueueOffer; 2]> {
        let offer = |ring: &Ring, place| -> io::Result<QueueOffer> {
            Ok(QueueOffer { place, kick: ring.kick.share()?, call: ring.call.share()? })
        };
        Ok([offer(&self.tx, self.memory.tx_place)?, offer(&self.rx, self.memory.rx_place)?])
    }

    fn notify(&self, ring: &Ring, notify: Notify) -> Result {
        match notify {
            Notify::None => Ok(()),
            Notify::Peer => {
                self.counters.add_event_sent();
                Ok(ring.kick.signal()?)
            }
        }
    }
}

impl PortQueue for QueuePair {
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        let taken = self.copy_frames(budget, pool, into);
        let notify = self.rx.half.publish();
        self.notify(&self.rx, notify)?;
        taken.map_err(QueueDown::peer)
    }

    fn settle(&mut self, _: &mut FramePool) -> Result {
        Ok(())
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        self.give_frames(from, pool)
    }

    fn arm(&mut self) -> Result<Pending> {
        let rx = self.rx.half.arm();
        let tx = if self.is_tx_short { self.tx.half.arm() } else { Waiting::Idle };
        let is_idle = [tx, rx] == [Waiting::Idle; 2] && self.held.is_empty();
        Ok(if is_idle { Pending::Nothing } else { Pending::Work })
    }

    fn woken(&mut self, by: Woken) -> Result {
        for (index, ring) in [&self.tx, &self.rx].into_iter().enumerate() {
            let is_meant = by == Woken::Unknown || by == Woken::By(index);
            if is_meant && ring.call.clear()? {
                self.counters.add_event_received();
            }
        }
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits::in_memory(self.form.caps)
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        None
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        None
    }
}

impl Wakers for QueuePair {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        for ring in [&self.tx, &self.rx] {
            visit(ring.call.as_fd());
        }
    }
}
