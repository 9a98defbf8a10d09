//! One queue of a hostile guest: ring pages that it writes freely, and pages to transmit from and
//! to receive into.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ringway_hypervisor::{Access, GrantedPages};
use ringway_ring::{FrontRing, Rx, Tx};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    ExtraInfo, RX_RING_SLOTS, RX_SLOT_LEN, RxRequest, RxResponse, TX_RING_SLOTS, TX_SLOT_LEN,
    TxRequest,
};
use ringway_wire::ring::{REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS};
use ringway_wire::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use zerocopy::{Immutable, IntoBytes};

use crate::machine::{Event, Machine};

/// A queue without checks: everything that a caller produces goes into the ring.
#[derive(Debug)]
pub struct Queue {
    /// The page of the tx ring.
    pub tx: SharedPages,
    /// The page of the rx ring.
    pub rx: SharedPages,
    rings: GrantedPages,
    /// Pages for frames, each granted for reading and writing.
    pub buffers: GrantedPages,
    /// The event channel of both directions.
    pub event: Event,
    /// The tx producer, to be written to the ring next.
    pub tx_produced: u32,
    /// The rx producer, to be written to the ring next.
    pub rx_produced: u32,
    rx_taken: u32,
    /// For each rx slot, the buffer of the posted request.
    rx_pages: Vec<usize>,
}

/// A received part of a frame.
#[derive(Debug, Clone)]
pub struct Received {
    /// The response.
    pub response: RxResponse,
    /// The first bytes, if the response reports any.
    pub head: [u8; 64],
}

impl Queue {
    /// Creates rings as an honest guest would.
    ///
    /// # Errors
    /// If pages, grants or ports run out.
    pub fn new(machine: &Machine, peer: DomId, buffers: usize) -> std::io::Result<Queue> {
        let rings = machine.share(peer, 2, Access::ReadWrite)?;
        let buffers = machine.share(peer, buffers, Access::ReadWrite)?;
        let page = |number| rings.pages.slice(number * PAGE_SIZE..(number + 1) * PAGE_SIZE);
        let (tx, rx) = (page(0), page(1));
        drop((FrontRing::<Tx>::new(tx.clone()), FrontRing::<Rx>::new(rx.clone())));
        Ok(Queue {
            tx,
            rx,
            rings,
            buffers,
            event: machine.alloc_unbound(peer)?,
            tx_produced: 0,
            rx_produced: 0,
            rx_taken: 0,
            rx_pages: vec![0; RX_RING_SLOTS],
        })
    }

    /// The grants of the ring pages, tx first.
    pub fn ring_refs(&self) -> [GrantRef; 2] {
        [self.rings.grefs[0], self.rings.grefs[1]]
    }

    /// The port for both directions.
    pub fn port(&self) -> EvtchnPort {
        self.event.port()
    }

    /// The grant of a buffer; numbers beyond the last buffer wrap around.
    pub fn gref(&self, buffer: usize) -> u32 {
        self.buffers.grefs[buffer % self.buffers.grefs.len()].0
    }

    /// Releases everything.
    pub fn close(self, machine: &Machine) {
        machine.end(self.rings);
        machine.end(self.buffers);
    }

    /// Puts bytes into buffers, one after another, from `first` on.
    pub fn fill(&self, first: usize, bytes: &[u8]) {
        for (buffer, page) in (first..).zip(bytes.chunks(PAGE_SIZE)) {
            self.buffers.pages.copy_from(buffer * PAGE_SIZE, page);
        }
    }

    /// Writes any value into the next tx slot.
    pub fn push_tx<T: IntoBytes + Immutable>(&mut self, slot: T) {
        let index = usize::try_from(self.tx_produced).unwrap_or(0) % TX_RING_SLOTS;
        self.tx.write(SLOTS + index * TX_SLOT_LEN, slot);
        self.tx_produced = self.tx_produced.wrapping_add(1);
    }

    /// A request for part of a buffer.
    pub fn request(&self, buffer: usize, offset: u16, size: u16, flags: u16) -> TxRequest {
        let id = u16::try_from(self.tx_produced % 256).unwrap_or(0);
        TxRequest { gref: self.gref(buffer), offset, flags, id, size }
    }

    /// Publishes all pushed requests, and sends an event.
    pub fn publish_tx(&self) {
        self.tx.store(REQ_PROD, self.tx_produced, Ordering::Release);
        self.event.notify();
    }

    /// Free tx slots, as an honest guest counts them.
    pub fn tx_room(&self) -> usize {
        let responses = self.tx.load(RSP_PROD, Ordering::Acquire);
        let used = usize::try_from(self.tx_produced.wrapping_sub(responses)).unwrap_or(usize::MAX);
        TX_RING_SLOTS.saturating_sub(used)
    }

    /// Waits for this many free slots; false if there are too few in time.
    pub fn wait_for_room(&self, slots: usize, until: Instant) -> bool {
        loop {
            if self.tx_room() >= slots {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            // Half a ring at once: a guest that wakes up for each response wastes its CPU.
            let wanted =
                self.tx_produced.wrapping_sub(u32::try_from(TX_RING_SLOTS / 2).unwrap_or(0));
            self.tx.store(RSP_EVENT, wanted, Ordering::SeqCst);
            self.event.ack();
            if self.tx_room() < slots {
                self.rest();
            }
        }
    }

    /// Waits for an event, for two milliseconds at most.
    pub fn rest(&self) {
        self.event.rest();
    }

    /// Pushes a request to receive into a buffer.
    pub fn post(&mut self, buffer: usize) {
        let gref = self.gref(buffer);
        let index = usize::try_from(self.rx_produced).unwrap_or(0) % RX_RING_SLOTS;
        self.rx_pages[index] = buffer % self.buffers.grefs.len();
        let id = u16::try_from(index).unwrap_or(0);
        self.push_rx(RxRequest { id, pad: 0, gref });
    }

    /// Writes any request into the next rx slot.
    pub fn push_rx(&mut self, request: RxRequest) {
        let index = usize::try_from(self.rx_produced).unwrap_or(0) % RX_RING_SLOTS;
        self.rx.write(SLOTS + index * RX_SLOT_LEN, request);
        self.rx_produced = self.rx_produced.wrapping_add(1);
    }

    /// Publishes all posted pages.
    pub fn publish_rx(&self) {
        self.rx.store(REQ_PROD, self.rx_produced, Ordering::Release);
        self.event.notify();
    }

    /// Takes received parts, without posting the pages again.
    pub fn take_rx(&mut self) -> Vec<Received> {
        let responses = self.rx.load(RSP_PROD, Ordering::Acquire);
        let mut received = Vec::new();
        while self.rx_taken != responses && received.len() < RX_RING_SLOTS {
            let index = usize::try_from(self.rx_taken).unwrap_or(0) % RX_RING_SLOTS;
            let response: RxResponse = self.rx.read(SLOTS + index * RX_SLOT_LEN);
            let mut head = [0; 64];
            let at = self.rx_pages[index] * PAGE_SIZE;
            let offset = usize::from(response.offset).min(PAGE_SIZE - head.len());
            self.buffers.pages.copy_to(at + offset, &mut head);
            received.push(Received { response, head });
            self.rx_taken = self.rx_taken.wrapping_add(1);
        }
        received
    }
}

/// A frame in buffers, as slots that can be sent repeatedly.
#[derive(Debug, Clone)]
pub struct Prepared {
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Request(TxRequest),
    Extra(ExtraInfo),
}

impl Prepared {
    /// Puts a frame into buffers from `first` on, one page per 4096 bytes.
    pub fn new(
        queue: &Queue,
        first: usize,
        frame: &[u8],
        flags: u16,
        extra: Option<ExtraInfo>,
    ) -> Prepared {
        use ringway_wire::netif::{NETTXF_EXTRA_INFO, NETTXF_MORE_DATA};
        queue.fill(first, frame);
        let total = u16::try_from(frame.len()).unwrap_or(u16::MAX);
        let pages = frame.len().div_ceil(PAGE_SIZE);
        let mut slots = Vec::new();
        for (page, chunk) in frame.chunks(PAGE_SIZE).enumerate() {
            let own = u16::try_from(chunk.len()).unwrap_or(0);
            let mut flags = if page == 0 { flags } else { 0 };
            if page == 0 && extra.is_some() {
                flags |= NETTXF_EXTRA_INFO;
            }
            if page + 1 < pages {
                flags |= NETTXF_MORE_DATA;
            }
            let size = if page == 0 { total } else { own };
            slots.push(Slot::Request(queue.request(first + page, 0, size, flags)));
            if let (0, Some(extra)) = (page, extra) {
                slots.push(Slot::Extra(extra));
            }
        }
        Prepared { slots }
    }

    /// The number of slots that it takes.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Pushes it again, without publishing.
    pub fn push(&self, queue: &mut Queue) {
        for slot in &self.slots {
            match *slot {
                Slot::Request(request) => queue.push_tx(request),
                Slot::Extra(extra) => queue.push_tx(extra),
            }
        }
    }
}
