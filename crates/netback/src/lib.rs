//! The backend side of a vif: [`VifQueue`] is one of its queues, as a [`PortQueue`].
//!
//! It serves an untrusted guest through three things only: the two ring pages, grant copies and
//! event channels. It never names a hypervisor implementation, keeps no reference into shared
//! memory, and maps no buffer but those that a guest asks it to keep mapped (`staging.rs`). Read
//! `ingress.rs` for the path of a packet that the guest transmits, `egress.rs` for one that it
//! receives, and `lending.rs` for the ends of long packets, which go from one guest's pages to
//! another's.

mod changes;
mod control;
mod egress;
mod fault;
mod ingress;
mod interrupted;
mod lending;
mod mapper;
mod message_page;
mod multicast;
mod parse;
mod runs;
mod staging;
mod stopwatch;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use ringway_datapath::{
    BATCH, Budget, Ends, Frame, FrameBatch, FramePool, FrameQueue, OffloadCaps, PeerProgress,
    Pending, PortQueue, QueueCounters, QueueDown, QueueTraits, Result, Wakers, Woken,
};
use ringway_hypervisor::{
    Direction, EventChannel, ForeignMemory, ForeignPage, GrantCopy, PageCopy, QueueEvents,
};
use ringway_ring::{BackRing, Notify, Rx, Tx, Waiting};
use ringway_wire::DomId;
use ringway_wire::netif::{RX_RING_SLOTS, RxRequest, TxRequest, slots_max};

pub use changes::Changes;
pub use control::{ControlParts, ControlRole, Publish};
pub use egress::Headroom;
pub use fault::TxFault;
pub use multicast::MulticastControl;
pub use staging::{PageBudget, STAGED_PAGES_MAX, StagedPages, Staging};

use changes::ChangeNumber;
use control::{ControlRing, Served};
pub use interrupted::Interrupted;
use lending::Lending;
use staging::{Sources, StagedMemory};
use stopwatch::Stopwatch;

/// What the frontend accepts (its `feature-*` keys).
#[derive(Debug, Clone, Copy)]
pub struct FrontendFeatures {
    /// Work that may be left to it in frames that it receives.
    pub caps: OffloadCaps,
    /// `feature-rx-notify`: it sends an event when it posts pages after there were too few. A
    /// frontend that does not, such as Mini-OS, is retried after a while.
    pub rx_notify: bool,
}

/// How often frames are offered again to a guest that sends no event when it posts pages: short
/// compared with the time that a burst may wait, and long compared with the cost of a wake-up.
const RETRY: Duration = Duration::from_millis(5);

/// The parts of a queue, once both sides have negotiated.
pub struct QueueParts<M, E> {
    /// The guest.
    pub peer: DomId,
    /// This worker's handle on foreign memory.
    pub memory: M,
    /// The mapped tx ring.
    pub tx_ring: ForeignPage,
    /// The mapped rx ring.
    pub rx_ring: ForeignPage,
    /// The event channels.
    pub events: QueueEvents<E>,
    /// What the frontend accepts.
    pub features: FrontendFeatures,
    /// What the guest's orders of multicast frames change; `None` if it may order none.
    pub multicast: Option<Arc<MulticastControl>>,
    /// The bytes that are left free before each frame for the guest.
    pub headroom: Arc<Headroom>,
    /// The queue's counters.
    pub counters: Arc<QueueCounters>,
}

impl<M, E> QueueParts<M, E> {
    /// The parts of a queue of a guest that orders no multicast frames and asks for no headroom.
    pub fn new(
        peer: DomId,
        memory: M,
        [tx_ring, rx_ring]: [ForeignPage; 2],
        events: QueueEvents<E>,
        features: FrontendFeatures,
    ) -> QueueParts<M, E> {
        let (multicast, headroom, counters) = (None, Arc::default(), Arc::default());
        QueueParts {
            peer,
            memory,
            tx_ring,
            rx_ring,
            events,
            features,
            multicast,
            headroom,
            counters,
        }
    }
}

/// One queue of a vif: a tx ring, an rx ring and their events, owned by one worker.
pub struct VifQueue<M, E> {
    peer: DomId,
    memory: StagedMemory<M>,
    tx: BackRing<Tx>,
    rx: BackRing<Rx>,
    events: QueueEvents<E>,
    features: FrontendFeatures,
    counters: Arc<QueueCounters>,
    interrupted: Interrupted,
    /// For long packets that stay in the guest's pages; `None` if all are copied.
    lending: Option<Lending<StagedMemory<M>>>,
    multicast: Option<Arc<MulticastControl>>,
    headroom: Arc<Headroom>,
    /// The orders that the working memory holds, which have their responses once they are noted.
    unnoted: Option<ChangeNumber>,
    /// The vif's control ring, if this queue serves it.
    control: Option<ControlRing<E>>,
    /// Whether the frontend may enable hashing, and then takes the extra that says by which hash
    /// a frame was steered.
    takes_hashes: bool,
    stopwatch: Stopwatch,
    /// Pages that the guest must post before the next frame can leave; 0 if none waits.
    rx_pages_wanted: u32,
    /// Pages that the guest must post before a frame could leave that would be taken in if there
    /// were room for it; 0 if there is no such frame.
    rx_pages_awaited: u32,
    scratch: Box<Scratch>,
    // Dropped last, so that the rings stop using the pages before their grants end.
    _ring_pages: [ForeignPage; 2],
}

/// Working memory of one call, kept so that calls do not allocate. Between calls it has nothing but
/// orders that are to be noted.
struct Scratch {
    tx_requests: [TxRequest; ingress::WINDOW],
    rx_requests: [RxRequest; RX_RING_SLOTS],
    copies: ArrayVec<GrantCopy, RX_RING_SLOTS>,
    page_copies: ArrayVec<PageCopy, { egress::PAGE_COPIES_MAX }>,
    /// Pages that these copies are from and that stay mapped.
    sources: Sources,
    packets: ArrayVec<runs::TxPacket, { ingress::WINDOW }>,
    leaving: ArrayVec<Frame, BATCH>,
}

impl<M: ForeignMemory + 'static, E: EventChannel> VifQueue<M, E> {
    /// Takes over the queue's rings at their shared indices, and kicks the guest on both, because
    /// events may have been lost while no backend served them.
    ///
    /// # Errors
    /// [`QueueDown::Peer`] if the indices are invalid.
    pub fn attach(parts: QueueParts<M, E>) -> Result<VifQueue<M, E>> {
        let QueueParts { peer, memory, events, features, counters, .. } = parts;
        let QueueParts { multicast, headroom, tx_ring, rx_ring, .. } = parts;
        let mut tx = BackRing::attach(tx_ring.pages().clone()).map_err(QueueDown::peer)?;
        let mut rx = BackRing::attach(rx_ring.pages().clone()).map_err(QueueDown::peer)?;
        let interrupted = Interrupted {
            tx_slots: interrupted::publish_tx(&mut tx).map_err(QueueDown::peer)?,
            rx_slots: interrupted::publish_rx(&mut rx).map_err(QueueDown::peer)?,
        };
        let stopwatch = Stopwatch::of(tx.consumer());
        let queue = VifQueue {
            peer,
            memory: StagedMemory::new(memory),
            tx,
            rx,
            events,
            features,
            counters,
            interrupted,
            lending: None,
            multicast,
            headroom,
            unnoted: None,
            control: None,
            takes_hashes: false,
            stopwatch,
            rx_pages_wanted: 0,
            rx_pages_awaited: 0,
            scratch: Box::new(Scratch {
                tx_requests: [TxRequest::default(); ingress::WINDOW],
                rx_requests: [RxRequest::default(); RX_RING_SLOTS],
                copies: ArrayVec::new(),
                page_copies: ArrayVec::new(),
                sources: Sources::new(),
                packets: ArrayVec::new(),
                leaving: ArrayVec::new(),
            }),
            _ring_pages: [tx_ring, rx_ring],
        };
        queue.kick(Direction::Tx)?;
        queue.kick(Direction::Rx)?;
        Ok(queue)
    }

    /// What an earlier backend left unfinished in the rings.
    pub fn interrupted(&self) -> Interrupted {
        self.interrupted
    }

    /// Leaves the ends of long packets in the guest's pages from now on, until they are copied into
    /// the pages of another guest, or into their frames' buffers with `memory`: another handle like
    /// the queue's own.
    ///
    /// No frame may refer to these pages when the queue is [settled](PortQueue::settle), dropped or
    /// moved to another thread: see [`Frame::is_lent`].
    pub fn lend_pages(&mut self, memory: M)
    where
        M: Send,
    {
        let memory = StagedMemory::new(memory);
        let lending = Lending::new(self.peer, memory, Arc::clone(&self.counters));
        self.memory.staged().iter().for_each(|pages| lending.stage(pages));
        self.lending = Some(lending);
    }

    /// Joins the vif's control ring.
    ///
    /// # Errors
    /// [`QueueDown::Peer`] if its indices are invalid.
    pub fn join_control(&mut self, role: ControlRole<E>) -> Result {
        self.takes_hashes = !matches!(role, ControlRole::Absent);
        let staged = match &role {
            ControlRole::Absent => None,
            ControlRole::ServedByAnother(staged) => staged.as_ref(),
            ControlRole::Serves(parts) => parts.staging.as_ref().and_then(|it| it.queues.first()),
        };
        if let Some(pages) = staged {
            self.memory.stage(pages);
            self.lending.iter().for_each(|lending| lending.stage(pages));
        }
        if let ControlRole::Serves(parts) = role {
            self.control = Some(ControlRing::attach(parts)?);
        }
        Ok(())
    }

    fn serve_control(&mut self) -> Result<Served> {
        match &mut self.control {
            None => Ok(Served::Nothing),
            Some(control) => control.serve(self.peer, &mut self.memory),
        }
    }

    /// Whether there are orders that are to be noted before anything else is taken in. The control
    /// plane has the queue polled again.
    fn awaits_note(&self) -> bool {
        let orders = self.multicast.as_ref().zip(self.unnoted);
        orders.is_some_and(|(multicast, batch)| !multicast.changes.is_noted(batch))
    }

    fn notify(&self, direction: Direction, notify: Notify) -> Result {
        match notify {
            Notify::Peer => self.kick(direction),
            Notify::None => Ok(()),
        }
    }

    fn kick(&self, direction: Direction) -> Result {
        self.counters.add_event_sent();
        Ok(self.events.notify(direction)?)
    }
}

impl<M: ForeignMemory + 'static, E: EventChannel> PortQueue for VifQueue<M, E> {
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        match self.serve_control()? {
            Served::Message => self.settle(pool),
            Served::Nothing if self.unnoted.is_some() => self.answer_orders(pool),
            Served::Nothing => self.take_packets(budget, pool, into),
        }
    }

    fn settle(&mut self, pool: &mut FramePool) -> Result {
        self.settle_responses(pool)
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        self.give_packets(from, pool)
    }

    fn arm(&mut self) -> Result<Pending> {
        let tx = match self.unnoted {
            None => self.tx.arm(1),
            Some(_) if self.awaits_note() => Waiting::TooFew,
            Some(_) => Waiting::Enough,
        };
        // Frames that wait go first.
        let pages = match self.rx_pages_wanted {
            0 => std::mem::take(&mut self.rx_pages_awaited),
            pages => pages,
        };
        let rx = match pages {
            0 => Waiting::TooFew,
            pages => self.rx.arm(pages),
        };
        let control = self.control.as_mut().map_or(Waiting::TooFew, ControlRing::arm);
        let is_idle = [tx, rx, control] == [Waiting::TooFew; 3];
        Ok(if is_idle { Pending::Nothing } else { Pending::Work })
    }

    fn woken(&mut self, by: Woken) -> Result {
        let of_rings = match by {
            Woken::By(index) => self.events.ack_one(index)?,
            Woken::Unknown => Some(self.events.ack()?),
        };
        let mut is_event = of_rings == Some(true);
        if let (None, _) | (_, Woken::Unknown) = (of_rings, by) {
            if let Some(control) = &self.control {
                is_event |= control.event().ack()?;
                // Frames of the guest may have to wait, but its messages concern what it receives.
                self.serve_control()?;
            }
        }
        if is_event {
            self.counters.add_event_received();
        }
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        let retry = (!self.features.rx_notify).then_some(RETRY);
        let caps = self.features.caps.and(OffloadCaps::NETIF);
        QueueTraits { retry, takes: Ends::GRANTED, ..QueueTraits::in_memory(caps) }
    }

    fn room_for(&mut self, len: usize) -> Option<usize> {
        // A fault of the ring is reported when frames leave.
        let posted = self.rx.pending().ok()?;
        let extra = usize::from(self.takes_hashes) + self.headroom.slots_max();
        let slots = slots_max(len) + extra;
        let slots = u32::try_from(slots).ok()?;
        self.rx_pages_awaited = if posted < slots { slots } else { 0 };
        usize::try_from(posted / slots).ok()
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        let posted = u16::try_from(self.rx.pending().ok()?).ok()?;
        let filled = u16::try_from(self.rx.producer() & u32::from(u16::MAX)).ok()?;
        Some(PeerProgress::new(filled, posted, u16::try_from(RX_RING_SLOTS).ok()?))
    }
}

impl<M: ForeignMemory + 'static, E: EventChannel> Wakers for VifQueue<M, E> {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.events.visit(visit);
        self.control.iter().filter_map(|control| control.event().waker()).for_each(visit);
    }
}
