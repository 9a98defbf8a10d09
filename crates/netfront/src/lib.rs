//! The frontend side of a vif: [`VifQueue`] is one of its queues, as a [`PortQueue`].
//!
//! Each queue owns 512 buffer pages, granted once when it is made and reused for its whole life
//! (with the 2 rings 514 grants, as Linux has it), so that no grant is touched per packet. The
//! backend is not trusted either: its responses are read once, by value, and checked against what
//! is outstanding.
//!
//! It is for programs that bring their own TCP/IP as well: no thread, no clock, no XenStore and no
//! process is needed here, only an implementation of the hypervisor port. What writes
//! [`VifQueue::config`] to XenStore is the handshake of `ringway-xenbus`.
//!
//! # Example
//!
//! A frame from a guest to its backend, in a machine within this process:
//!
//! ```
//! use std::sync::Arc;
//!
//! use ringway_datapath::{
//!     Budget, FrameBatch, FramePool, FrameQueue, OffloadCaps, PoolBudget, PortQueue,
//!     QueueCounters,
//! };
//! use ringway_hypervisor::{Access, EventChannel, ForeignMemory, Hypervisor, QueueEvents};
//! use ringway_loopback::{Limits, Loopback};
//! use ringway_netback::{FrontendFeatures, QueueParts};
//! use ringway_wire::DomId;
//!
//! let (host, guest) = (DomId(0), DomId(7));
//! let machine = Loopback::new();
//! let here = machine.create_domain(guest, Limits::default())?;
//! let there = machine.create_domain(host, Limits::default())?;
//!
//! let event = here.alloc_unbound(host)?;
//! let other_end = there.bind_interdomain(guest, event.port())?;
//! let counters = Arc::new(QueueCounters::default());
//! let events = QueueEvents::Single(event);
//! let mut front = ringway_netfront::VifQueue::new(here.grants()?, host, events, counters)?;
//!
//! // The handshake brings these to the backend.
//! let refs = front.config();
//! let mut memory = there.memory()?;
//! let mut map = |gref| memory.map(guest, gref, Access::ReadWrite);
//! let (tx_ring, rx_ring) = (map(refs.tx_ring_ref)?, map(refs.rx_ring_ref)?);
//! let mut back = ringway_netback::VifQueue::attach(QueueParts {
//!     peer: guest,
//!     memory: there.memory()?,
//!     tx_ring,
//!     rx_ring,
//!     events: QueueEvents::Single(other_end),
//!     features: FrontendFeatures { caps: OffloadCaps::NONE, rx_notify: true },
//!     counters: Arc::default(),
//! })?;
//!
//! let mut pool = FramePool::new(PoolBudget::new(1 << 20));
//! let mut frame = pool.take(60).expect("the budget has room");
//! frame.bytes_mut().fill(0xab);
//! let mut leaving = FrameQueue::from([frame]);
//! front.egress(&mut leaving, &mut pool)?;
//!
//! let mut arrived = FrameBatch::new();
//! back.ingress(Budget::BATCH, &mut pool, &mut arrived)?;
//! assert_eq!(arrived[0].bytes(), [0xab; 60]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffers;
mod egress;
mod fault;
mod ingress;
mod lent;
mod sending;
mod slabs;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, Interest, OffloadCaps, Pending, PortDown, PortQueue,
    Probe, QueueCounters, QueueTraits, Wakers, Woken,
};
use ringway_hypervisor::{Access, Direction, EventChannel, GrantTable, QueueEvents, StillInUse};
use ringway_ring::{FrontRing, Notify, Rx, Tx, Waiting};
use ringway_wire::DomId;
use ringway_wire::netif::{RX_RING_SLOTS, RxResponse, TX_RING_SLOTS, TxResponse};
use ringway_xenbus::{EventPorts, QueueConfig};

pub use fault::ResponseFault;
pub use slabs::Slabs;

use buffers::Buffers;
use lent::Lent;
use sending::Sending;

/// One queue of a vif: rings, buffers and events, owned by one worker.
pub struct VifQueue<G: GrantTable, E> {
    grants: G,
    tx: FrontRing<Tx>,
    rx: FrontRing<Rx>,
    config: QueueConfig,
    events: QueueEvents<E>,
    /// Work that the backend accepts undone.
    caps: OffloadCaps,
    counters: Arc<QueueCounters>,
    rings: Buffers,
    tx_buffers: Buffers,
    rx_buffers: Buffers,
    /// Tx buffers that no request refers to.
    tx_free: Box<ArrayVec<u16, TX_RING_SLOTS>>,
    /// Whether a request with the buffer's number as id is outstanding.
    tx_outstanding: Box<[bool; TX_RING_SLOTS]>,
    /// Responses that must come before the next frame can leave; 0 if none waits.
    tx_responses_wanted: u32,
    /// See [`limit_unanswered`](VifQueue::limit_unanswered): buffers that are left unused, and
    /// responses that are worth a wake-up.
    tx_reserve: usize,
    tx_responses_per_wake: u32,
    /// Slabs that frames to be sent may be in; none if all bytes are copied.
    sending: Option<Sending>,
    /// Pages that frames refer to; none if all bytes are copied.
    lent: Option<Lent>,
    /// Working memory of one call, kept so that no call allocates.
    tx_responses: Box<[TxResponse; TX_RING_SLOTS]>,
    /// The same for rx.
    rx_responses: Box<[RxResponse; ingress::WINDOW]>,
}

impl<G: GrantTable, E: EventChannel> VifQueue<G, E> {
    /// Makes the rings, grants every buffer to `backend` and posts all receive buffers.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when pages or grants run out; nothing stays granted then.
    pub fn new(
        mut grants: G,
        backend: DomId,
        events: QueueEvents<E>,
        counters: Arc<QueueCounters>,
    ) -> io::Result<VifQueue<G, E>> {
        let runs = [
            (2, Access::ReadWrite),
            (TX_RING_SLOTS, Access::ReadOnly),
            (RX_RING_SLOTS, Access::ReadWrite),
        ];
        let mut granted = Vec::new();
        for (pages, access) in runs {
            match Buffers::grant(&mut grants, backend, pages, access) {
                Ok(buffers) => granted.push(buffers),
                Err(error) => {
                    for buffers in granted {
                        // These grants were never published, so ending them cannot fail.
                        let _ = buffers.end(&mut grants);
                    }
                    return Err(error);
                }
            }
        }
        let [rings, tx_buffers, rx_buffers]: [Buffers; 3] =
            granted.try_into().expect("three runs were asked for, and each was granted");
        let ports = match &events {
            QueueEvents::Split { tx, rx } => EventPorts::Split { tx: tx.port(), rx: rx.port() },
            QueueEvents::Single(both) => EventPorts::Single(both.port()),
        };
        let mut queue = VifQueue {
            grants,
            tx: FrontRing::new(rings.page(0)),
            rx: FrontRing::new(rings.page(1)),
            config: QueueConfig {
                tx_ring_ref: rings.gref(0),
                rx_ring_ref: rings.gref(1),
                events: ports,
            },
            events,
            caps: OffloadCaps::NONE,
            counters,
            rings,
            tx_buffers,
            rx_buffers,
            tx_free: Box::new(buffer_numbers()),
            tx_outstanding: Box::new([false; TX_RING_SLOTS]),
            tx_responses_wanted: 0,
            tx_reserve: 0,
            tx_responses_per_wake: egress::responses_per_wake(TX_RING_SLOTS),
            sending: None,
            lent: None,
            tx_responses: Box::new([TxResponse::default(); TX_RING_SLOTS]),
            rx_responses: Box::new([RxResponse::default(); ingress::WINDOW]),
        };
        queue.post_buffers(RX_RING_SLOTS);
        // The event channel has no other end yet; the backend polls the ring when it attaches.
        let _ = queue.rx.publish_requests();
        Ok(queue)
    }

    /// What to write to XenStore.
    pub fn config(&self) -> QueueConfig {
        self.config
    }

    /// Says what the backend can take, once its keys are known.
    pub fn set_caps(&mut self, caps: OffloadCaps) {
        self.caps = caps.and(OffloadCaps::NETIF);
    }

    /// Lets nothing leave while `pages` or more of what left before are unanswered; a frame takes
    /// one for each 4096 bytes. So the guest waits for its backend, as one does that sends from
    /// where its frames are and frees them when they are completed. Without this limit frames leave
    /// as long as there is a buffer to copy them to.
    pub fn limit_unanswered(&mut self, pages: u16) {
        let pages = usize::from(pages).clamp(1, TX_RING_SLOTS);
        self.tx_reserve = TX_RING_SLOTS - pages;
        self.tx_responses_per_wake = egress::responses_per_wake(pages);
    }

    /// Leaves the end of a long frame that is received in the pages that it came in, from the next
    /// frame on, as its [body](ringway_datapath::Body): for those who send it on from there. A page
    /// is posted again when the frame is gone.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn lend_pages(&mut self) -> io::Result<()> {
        self.lent = Some(Lent::new(&self.rx_buffers)?);
        Ok(())
    }

    /// Sends frames whose end is in these slabs from there, from the next frame on.
    pub fn send_from(&mut self, slabs: &Slabs) {
        self.sending = Some(Sending::new(slabs.shared()));
    }

    /// Ends every grant and frees the pages.
    ///
    /// # Errors
    /// [`StillInUse`] if the backend has not let go of a page, or a frame refers to one: such pages
    /// are never used again.
    pub fn close(mut self) -> Result<(), StillInUse> {
        let rings = self.rings.end(&mut self.grants);
        let tx = self.tx_buffers.end(&mut self.grants);
        let rx = match &self.lent {
            Some(lent) if lent.is_any_held() => Err(StillInUse { gref: self.rx_buffers.gref(0) }),
            _ => self.rx_buffers.end(&mut self.grants),
        };
        rings.and(tx).and(rx)
    }

    fn notify(&self, direction: Direction, notify: Notify) -> Result<(), PortDown> {
        match notify {
            Notify::Peer => {
                self.counters.add_event_sent();
                Ok(self.events.notify(direction)?)
            }
            Notify::NoOne => Ok(()),
        }
    }
}

fn buffer_numbers() -> ArrayVec<u16, TX_RING_SLOTS> {
    (0..TX_RING_SLOTS).map(|n| u16::try_from(n).expect("a ring is small")).collect()
}

impl<G: GrantTable, E: EventChannel> PortQueue for VifQueue<G, E> {
    fn ingress(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), PortDown> {
        self.take_packets(budget, pool, into)
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result<(), PortDown> {
        self.give_packets(from, pool)
    }

    fn arm(&mut self) -> Result<Pending, PortDown> {
        self.post_returned()?;
        let returned = match &self.lent {
            None => Pending::Nothing,
            Some(lent) => lent.arm(usize::from(self.rx.next_slot())),
        };
        let rx = self.rx.arm(1);
        let tx = match self.tx_responses_wanted {
            0 => Waiting::TooFew,
            responses => self.tx.arm(responses),
        };
        let is_idle = [tx, rx] == [Waiting::TooFew; 2] && returned == Pending::Nothing;
        Ok(if is_idle { Pending::Nothing } else { Pending::Work })
    }

    fn woken(&mut self, by: Woken) -> Result<(), PortDown> {
        let of_peer = match by {
            Woken::By(index) => self.events.ack_one(index)?,
            Woken::Unknown => Some(self.events.ack()?),
        };
        if of_peer == Some(true) {
            self.counters.add_event_received();
        }
        if let (None, _) | (_, Woken::Unknown) = (of_peer, by) {
            if let Some(lent) = &self.lent {
                lent.woken();
            }
        }
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        let takes_bodies = self.sending.is_some();
        QueueTraits { caps: self.caps, probe: Probe::Memory, retry: None, takes_bodies }
    }
}

impl<G: GrantTable, E: EventChannel> Wakers for VifQueue<G, E> {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>, Interest)) {
        self.events.visit(&mut |fd| visit(fd, Interest::Readable));
        if let Some(lent) = &self.lent {
            visit(lent.waker(), Interest::Readable);
        }
    }
}
