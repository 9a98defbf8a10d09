//! The frontend side of a vif: [`VifQueue`] is one of its queues, as a [`PortQueue`].
//!
//! Each queue owns 512 buffer pages, granted once at its creation and reused for its whole life
//! (with the 2 rings, 514 grants, as in Linux), so that no packet changes a grant. Frames are
//! copied into and out of them, except the ends of long ones (`slabs.rs`). The stock frontends
//! grant and revoke a page for each packet, which touches the grant table twice and needs the
//! backend's cooperation to be safe (XSA-396). Beside the current packet a page contains only older
//! ones that the backend has already seen (XSA-403): pages are zeroed at first, and no queue
//! outlives its backend. The backend is not trusted either: its responses are read once, by value,
//! and checked against the outstanding requests.
//!
//! It also suits programs with their own TCP/IP: it needs no thread, clock, XenStore or process,
//! only an implementation of the hypervisor port. The handshake of `ringway-xenbus` writes
//! [`VifQueue::config`] to XenStore.
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
//! let (memory, events) = (there.memory()?, QueueEvents::Single(other_end));
//! let features = FrontendFeatures { caps: OffloadCaps::NONE, rx_notify: true };
//! let parts = QueueParts::new(guest, memory, [tx_ring, rx_ring], events, features);
//! let mut back = ringway_netback::VifQueue::attach(parts)?;
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
mod control;
mod egress;
mod fault;
mod in_place;
mod ingress;
mod sending;
mod setup;
mod slabs;
mod staging;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use ringway_datapath::{
    Budget, Ends, FrameBatch, FramePool, FrameQueue, MacAddr, OffloadCaps, PeerProgress, Pending,
    PortQueue, QueueCounters, QueueTraits, Result, Wakers, Woken,
};
use ringway_hypervisor::{Access, Direction, EventChannel, GrantTable, QueueEvents, StillInUse};
use ringway_ring::{FrontRing, Notify, Rx, Tx, Waiting};
use ringway_wire::DomId;
use ringway_wire::netif::{RX_RING_SLOTS, RxResponse, TX_RING_SLOTS, TxResponse};
use ringway_xenbus::{ControlConfig, EventPorts, QueueConfig};

pub use control::{Progress, Refusal};
pub use egress::GroupOrder;
pub use fault::ResponseFault;
pub use setup::{HashWish, WishRefused};
pub use slabs::Slabs;
pub use staging::{QueuePages, StagedCount};

use buffers::Buffers;
use control::ControlRing;
use in_place::InPlace;
use sending::Sending;

/// The pages of a queue and of a control ring, in the runs in which they are granted: for guests
/// that keep room for a queue.
pub const QUEUE_RUNS: [usize; 5] = [RING_PAGES, TX_RING_SLOTS, RX_RING_SLOTS, 1, 1];
const RING_PAGES: usize = 2;

/// One queue of a vif: rings, buffers and events, owned by one worker.
pub struct VifQueue<G: GrantTable, E> {
    grants: G,
    tx: FrontRing<Tx>,
    rx: FrontRing<Rx>,
    config: QueueConfig,
    events: QueueEvents<E>,
    /// Work that may be left to the backend.
    caps: OffloadCaps,
    counters: Arc<QueueCounters>,
    rings: Buffers,
    tx_buffers: Buffers,
    rx_buffers: Buffers,
    /// Tx buffers that no request refers to.
    tx_free: Box<ArrayVec<u16, TX_RING_SLOTS>>,
    /// Whether a request with the buffer's number as id is outstanding.
    tx_outstanding: Box<[bool; TX_RING_SLOTS]>,
    /// Responses that must come before the next frame can leave; 0 if no frame waits.
    tx_responses_wanted: u32,
    /// Responses that must come before a frame could leave that would be taken in if there were
    /// room for it; 0 if there is no such frame.
    tx_responses_awaited: u32,
    /// Responses that waiting frames wanted were taken in since the last `egress`.
    must_try_again: bool,
    /// See [`limit_unanswered`](VifQueue::limit_unanswered): buffers that stay unused, and
    /// responses per wake-up.
    tx_reserve: usize,
    tx_responses_per_wake: u32,
    /// Slabs that may contain frames to send; `None` if all bytes are copied.
    sending: Option<Sending>,
    /// The vif's control ring, if this queue owns it.
    control: Option<ControlRing<E>>,
    /// Pages that frames refer to; `None` if all bytes are copied.
    in_place: Option<InPlace>,
    /// Working memory of one call, kept so that calls do not allocate.
    tx_responses: Box<[TxResponse; TX_RING_SLOTS]>,
    /// Working memory of one call for responses of the rx ring.
    rx_responses: Box<[RxResponse; ingress::WINDOW]>,
}

impl<G: GrantTable, E: EventChannel> VifQueue<G, E> {
    /// Makes the rings, grants every buffer to `backend` and posts all receive buffers.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when pages or grants run out; then nothing stays granted.
    pub fn new(
        mut grants: G,
        backend: DomId,
        events: QueueEvents<E>,
        counters: Arc<QueueCounters>,
    ) -> io::Result<VifQueue<G, E>> {
        let [rings, tx_buffers, rx_buffers] = Buffers::grant_each(
            &mut grants,
            backend,
            [
                (RING_PAGES, Access::ReadWrite),
                (TX_RING_SLOTS, Access::ReadOnly),
                (RX_RING_SLOTS, Access::ReadWrite),
            ],
        )?;
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
            tx_responses_awaited: 0,
            must_try_again: false,
            tx_reserve: 0,
            tx_responses_per_wake: egress::responses_per_wake(TX_RING_SLOTS),
            sending: None,
            control: None,
            in_place: None,
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

    /// Sets what the backend accepts, once its keys are known.
    pub fn set_caps(&mut self, caps: OffloadCaps) {
        self.caps = caps.and(OffloadCaps::NETIF);
    }

    /// Lets no frame leave while `pages` or more pages of earlier frames are outstanding; a frame
    /// takes one for each 4096 bytes. So the guest waits for its backend, like a guest that sends
    /// frames in place and frees them on completion. Without this limit, frames leave as long as
    /// there is a buffer to copy them to.
    pub fn limit_unanswered(&mut self, pages: u16) {
        let pages = usize::from(pages).clamp(1, TX_RING_SLOTS);
        self.tx_reserve = TX_RING_SLOTS - pages;
        self.tx_responses_per_wake = egress::responses_per_wake(pages);
    }

    /// From the next frame on, leaves the end of a long received frame in the pages that it came
    /// in, as its [end](ringway_datapath::End), for receivers that can send from there. A page is
    /// posted again when the frame is gone.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn receive_in_place(&mut self) -> io::Result<()> {
        self.in_place = Some(InPlace::new(&self.rx_buffers)?);
        Ok(())
    }

    /// From the next frame on, sends frames whose end is in these slabs without copying that end.
    pub fn send_from(&mut self, slabs: &Slabs) {
        self.sending = Some(Sending::new(slabs.shared()));
    }

    /// Makes a control ring for the vif, by which [`wish`](VifQueue::wish) reaches `backend`. Only
    /// one of the vif's queues may have it, and only if the backend offers it.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when pages or grants run out.
    pub fn add_control(&mut self, backend: DomId, event: E) -> io::Result<ControlConfig> {
        let control = ControlRing::new(&mut self.grants, backend, event)?;
        let config = control.config();
        self.control = Some(control);
        Ok(config)
    }

    /// Begins to have the backend hash and steer like this; without a control ring, nothing
    /// happens. The backend must be connected.
    ///
    /// # Errors
    /// [`QueueDown`](ringway_datapath::QueueDown) when the queue can no longer be used.
    pub fn wish(&mut self, wish: HashWish) -> Result {
        self.control.as_mut().map_or(Ok(()), |control| control.wish(wish))
    }

    /// The pages of this queue that a backend may keep mapped, with the slabs that it
    /// [sends from](VifQueue::send_from).
    pub fn pages(&self) -> QueuePages {
        let mut pages = QueuePages::default();
        pages.add_readable(self.tx_buffers.grefs());
        pages.add_writable(self.rx_buffers.grefs());
        if let Some(sending) = &self.sending {
            pages.add_readable(sending.grefs());
        }
        pages
    }

    /// Begins to have the backend keep the [pages](VifQueue::pages) of the vif's queues mapped, as
    /// many as it will, so that it copies them without the hypervisor; without a control ring,
    /// nothing happens. `queues` has those of each queue, in order. The backend must be connected,
    /// and this is for once in a connection.
    ///
    /// # Errors
    /// [`QueueDown`](ringway_datapath::QueueDown) when the queue can no longer be used.
    pub fn stage(&mut self, queues: Vec<QueuePages>) -> Result {
        self.control.as_mut().map_or(Ok(()), |control| control.stage(queues))
    }

    /// How many of these pages the backend keeps mapped; kept up to date where this queue runs.
    pub fn staged(&self) -> StagedCount {
        self.control.as_ref().map_or_else(StagedCount::default, ControlRing::staged)
    }

    /// Orders the frames of these multicast addresses, or no more of them: a vif gets only what it
    /// orders if its frontend requests that when it connects. Returns how many of the first there
    /// was room for in the ring; for 64 on a new connection there is.
    ///
    /// As after [`egress`](PortQueue::egress), the queue sends its next event once it is armed.
    ///
    /// # Errors
    /// [`QueueDown`](ringway_datapath::QueueDown) when the queue can no longer be used.
    pub fn order_groups(&mut self, order: GroupOrder, groups: &[MacAddr]) -> Result<usize> {
        self.push_orders(order, groups)
    }

    /// How far the backend has got with the last wish.
    pub fn progress(&self) -> Progress {
        self.control.as_ref().map_or(Progress::Done, ControlRing::progress)
    }

    /// Whether the backend has refused the last wish; kept up to date where this queue runs.
    pub fn refusal(&self) -> Refusal {
        self.control.as_ref().map_or_else(Refusal::default, ControlRing::refusal)
    }

    /// Whether received frames refer to pages, which [`close`](VifQueue::close) then cannot free.
    pub fn has_lent_pages(&self) -> bool {
        self.first_lent().is_some()
    }

    fn first_lent(&self) -> Option<usize> {
        self.in_place.as_ref().and_then(InPlace::first_held)
    }

    /// Ends every grant and frees the pages.
    ///
    /// # Errors
    /// [`StillInUse`] if the backend still uses a page, or a frame refers to one: such pages are
    /// never used again.
    pub fn close(mut self) -> Result<(), StillInUse> {
        let lent = self.first_lent();
        let rings = self.rings.end(&mut self.grants);
        let tx = self.tx_buffers.end(&mut self.grants);
        let rx = match lent {
            Some(slot) => Err(StillInUse { gref: self.rx_buffers.gref(slot) }),
            None => self.rx_buffers.end(&mut self.grants),
        };
        let control = self.control.map_or(Ok(()), |control| control.end(&mut self.grants));
        rings.and(tx).and(rx).and(control)
    }

    fn notify(&self, direction: Direction, notify: Notify) -> Result {
        match notify {
            Notify::Peer => {
                self.counters.add_event_sent();
                Ok(self.events.notify(direction)?)
            }
            Notify::None => Ok(()),
        }
    }
}

fn buffer_numbers() -> ArrayVec<u16, TX_RING_SLOTS> {
    (0..TX_RING_SLOTS).map(|n| u16::try_from(n).expect("a ring is small")).collect()
}

impl<G: GrantTable, E: EventChannel> PortQueue for VifQueue<G, E> {
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        self.settle(pool)?;
        self.take_packets(budget, pool, into)
    }

    fn settle(&mut self, _: &mut FramePool) -> Result {
        if let Some(control) = &mut self.control {
            control.advance()?;
        }
        self.post_returned()
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        self.give_packets(from, pool)
    }

    fn arm(&mut self) -> Result<Pending> {
        self.post_returned()?;
        let returned = match &self.in_place {
            None => Pending::Nothing,
            Some(in_place) => in_place.arm(usize::from(self.rx.next_slot())),
        };
        let rx = self.rx.arm(1);
        // Frames that wait go first.
        let responses = match self.tx_responses_wanted {
            0 => std::mem::take(&mut self.tx_responses_awaited),
            responses => responses,
        };
        let tx = match responses {
            _ if std::mem::take(&mut self.must_try_again) => Waiting::Enough,
            0 => Waiting::TooFew,
            responses => self.tx.arm(responses),
        };
        let control = self.control.as_mut().map_or(Waiting::TooFew, ControlRing::arm);
        let is_idle = [tx, rx, control] == [Waiting::TooFew; 3] && returned == Pending::Nothing;
        Ok(if is_idle { Pending::Nothing } else { Pending::Work })
    }

    fn woken(&mut self, by: Woken) -> Result {
        let of_peer = match by {
            Woken::By(index) => self.events.ack_one(index)?,
            Woken::Unknown => Some(self.events.ack()?),
        };
        let mut is_event = of_peer == Some(true);
        if let (None, _) | (_, Woken::Unknown) = (of_peer, by) {
            if let Some(in_place) = &self.in_place {
                in_place.woken();
            }
            if let Some(control) = &mut self.control {
                is_event |= control.event().ack()?;
                control.advance()?;
            }
        }
        if is_event {
            self.counters.add_event_received();
        }
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        let takes = if self.sending.is_some() { Ends::OWN } else { Ends::NONE };
        QueueTraits { takes, ..QueueTraits::in_memory(self.caps) }
    }

    fn room_for(&mut self, len: usize) -> Option<usize> {
        let mut room = self.room_in_ring(len);
        // A fault of the ring is reported when frames leave.
        if room == 0 && self.tx.pending().ok()? >= self.tx_responses_awaited {
            self.reap().ok()?;
            room = self.room_in_ring(len);
        }
        self.tx_responses_awaited = if room == 0 { self.tx_responses_per_wake } else { 0 };
        Some(room)
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        None
    }
}

impl<G: GrantTable, E: EventChannel> Wakers for VifQueue<G, E> {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.events.visit(visit);
        if let Some(in_place) = &self.in_place {
            visit(in_place.waker());
        }
        self.control.iter().filter_map(|control| control.event().waker()).for_each(visit);
    }
}
