//! The driver side of virtio-net: [`QueuePair`] is one of its pairs of queues, as a [`PortQueue`].
//!
//! Its queues and buffers are in memory that it shares with the device for its whole life: frames
//! are copied into it and out of it. The device is not trusted either: what it uses is read once,
//! by value, and checked against what is outstanding.

mod egress;
mod fault;
mod ingress;
mod memory;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_datapath::{
    Budget, FrameBatch, FrameForm, FramePool, FrameQueue, Interest, Pending, PortDown, PortQueue,
    Probe, QueueCounters, QueueTraits, Wakers, Woken,
};
use ringway_sys::bell::Bell;
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
    /// Tx buffers that no chain has.
    tx_free: Vec<u16>,
    /// The first buffer of the chain with this number, and how many it has.
    tx_chains: Box<[(u16, u16)]>,
    /// The buffer after this one in the same chain.
    tx_links: Box<[u16]>,
    /// A frame waits for buffers that the device has.
    is_tx_short: bool,
    /// Buffers of a chain to receive into.
    rx_buffers_per_chain: u16,
    /// The place of the chain with this number, in chains.
    rx_places: Box<[u16]>,
    /// Chains of a frame that is not copied: its place and its bytes. Only complete frames are held
    /// from one call to the next, where the pool had no buffer.
    held: Vec<(u16, u32)>,
    /// Working memory of one call, kept so that no call allocates.
    chain: Vec<Buffer>,
}

#[derive(Debug)]
struct Ring {
    half: DriverHalf,
    /// By which we wake the device.
    kick: Bell,
    /// By which it wakes us.
    call: Bell,
}

/// What the device's end of one queue is made of.
#[derive(Debug)]
pub struct QueueOffer {
    /// Where it is: the addresses are those of [`FrontMemory::region`].
    pub place: QueuePlace,
    /// By which the device is woken.
    pub kick: OwnedFd,
    /// By which the device wakes us.
    pub call: OwnedFd,
}

impl QueuePair {
    /// Makes both queues of pair number `number`, and makes all buffers to receive into available.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    ///
    /// # Panics
    /// If the memory is of another shape or has no such pair.
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
            Ok(Ring { half, kick: Bell::new()?, call: Bell::new()? })
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

    /// What the device gets of the tx queue and of the rx queue.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn offers(&self) -> io::Result<[QueueOffer; 2]> {
        let offer = |ring: &Ring, place| -> io::Result<QueueOffer> {
            Ok(QueueOffer { place, kick: ring.kick.share()?, call: ring.call.share()? })
        };
        Ok([offer(&self.tx, self.memory.tx_place)?, offer(&self.rx, self.memory.rx_place)?])
    }

    fn notify(&self, ring: &Ring, notify: Notify) -> Result<(), PortDown> {
        match notify {
            Notify::No => Ok(()),
            Notify::Peer => {
                self.counters.add_event_sent();
                Ok(ring.kick.ring()?)
            }
        }
    }
}

impl PortQueue for QueuePair {
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), PortDown> {
        self.take_frames(budget, pool, into)
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
        self.give_frames(from, pool)
    }

    fn arm(&mut self) -> Result<Pending, PortDown> {
        let rx = self.rx.half.arm();
        let tx = if self.is_tx_short { self.tx.half.arm() } else { Waiting::Nothing };
        let is_idle = [tx, rx] == [Waiting::Nothing; 2] && self.held.is_empty();
        Ok(if is_idle { Pending::Nothing } else { Pending::Work })
    }

    fn woken(&mut self, by: Woken) -> Result<(), PortDown> {
        for (index, ring) in [&self.tx, &self.rx].into_iter().enumerate() {
            let is_meant = by == Woken::Unknown || by == Woken::By(index);
            if is_meant && ring.call.clear()? {
                self.counters.add_event_received();
            }
        }
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits { caps: self.form.caps, probe: Probe::Memory, retry: None, takes_bodies: false }
    }
}

impl Wakers for QueuePair {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest)) {
        for ring in [&self.tx, &self.rx] {
            visit(ring.call.as_fd(), Interest::Readable);
        }
    }
}
