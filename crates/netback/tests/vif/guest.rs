//! A guest that puts into its rings whatever a test wants, and a queue that serves it.

use std::error::Error;
use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{
    Budget, DropReason, Frame, FrameBatch, FramePool, FrameQueue, MulticastFilter, Offload,
    OffloadCaps, PoolBudget, PortQueue, QueueCounters, QueueDown,
};
use ringway_hypervisor::{Access, GrantTable, GrantedPages, QueueEvents};
use ringway_loopback::{FaultPoint, Limits, LoopbackEvent, LoopbackMemory};
use ringway_netback::{
    Changes, FrontendFeatures, Headroom, MulticastControl, QueueParts, VifQueue,
};
use ringway_ring::{FrontRing, Notify, Rx, Tx};
use ringway_sys::SharedPages;
use ringway_wire::netif::{NETTXF_MORE_DATA, RxRequest, RxResponse, TxRequest, TxResponse};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};
use zerocopy::{Immutable, IntoBytes};

use crate::frames;
use crate::machine::{GUEST, HOST, Machine};

/// A second guest.
const OTHER_GUEST: DomId = DomId(8);

/// Both sides of one queue.
pub(crate) struct Bench {
    pub(crate) machine: Machine,
    pub(crate) tx: FrontRing<Tx>,
    pub(crate) rx: FrontRing<Rx>,
    /// The ring pages, for guests that write where they should not.
    pub(crate) tx_page: SharedPages,
    pub(crate) rx_page: SharedPages,
    pub(crate) events: QueueEvents<LoopbackEvent>,
    pub(crate) back: VifQueue<LoopbackMemory, LoopbackEvent>,
    pub(crate) pool: FramePool,
    pub(crate) counters: Arc<QueueCounters>,
    /// The multicast frames that the guest wants.
    pub(crate) filter: Arc<MulticastFilter>,
    /// Whether it may order any.
    pub(crate) may_order: bool,
    /// What it changes.
    pub(crate) changes: Arc<Changes>,
    /// The bytes that it wants to be free before each frame.
    pub(crate) headroom: Arc<Headroom>,
    rings: GrantedPages,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench::starting_at(0, OffloadCaps::ALL)
    }

    /// A queue whose ring indices begin at `start`.
    pub(crate) fn starting_at(start: u32, caps: OffloadCaps) -> Bench {
        Bench::with(start, FrontendFeatures { caps, rx_notify: true })
    }

    /// A queue whose ring indices begin at `start`, for a frontend with these features.
    pub(crate) fn with(start: u32, features: FrontendFeatures) -> Bench {
        Bench::on(Machine::new(), start, features)
    }

    /// A second guest on the same machine.
    pub(crate) fn beside(&self) -> Bench {
        let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
        let guest = self.machine.loopback.create_domain(OTHER_GUEST, Limits::default());
        let guest = guest.expect("it is new");
        let machine = Machine { guest_id: OTHER_GUEST, guest, ..self.machine.clone() };
        Bench::on(machine, 0, features)
    }

    fn on(machine: Machine, start: u32, features: FrontendFeatures) -> Bench {
        let rings = machine.grants().share(HOST, 2, Access::ReadWrite);
        let rings = rings.expect("a new guest has memory");
        let [tx_page, rx_page] =
            [0, 1].map(|page| rings.pages.slice(page * PAGE_SIZE..(page + 1) * PAGE_SIZE));
        let tx = FrontRing::starting_at(tx_page.clone(), start);
        let rx = FrontRing::starting_at(rx_page.clone(), start);
        let (events, back_events) = machine.channels();
        let counters = Arc::new(QueueCounters::default());
        let filter = Arc::new(MulticastFilter::default());
        let changes = Arc::new(Changes::new(Waker::noop().clone()));
        let orders = Some(orders(&filter, &changes));
        let headroom = Arc::new(Headroom::default());
        let chosen = (orders, &headroom);
        let back = attach(&machine, &rings.grefs, back_events, features, chosen, &counters);
        let back = back.expect("new rings are sound");
        let pool = FramePool::new(PoolBudget::new(64 << 20));
        Bench {
            machine,
            tx,
            rx,
            tx_page,
            rx_page,
            events,
            back,
            pool,
            counters,
            filter,
            may_order: true,
            changes,
            headroom,
            rings,
        }
    }

    /// Replaces the backend by another one, as a restart does.
    pub(crate) fn attach_again(&mut self) -> Result<(), QueueDown> {
        let (events, back_events) = self.machine.channels();
        self.events = events;
        let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
        let rings = &self.rings.grefs;
        let orders = self.may_order.then(|| orders(&self.filter, &self.changes));
        let chosen = (orders, &self.headroom);
        self.back = attach(&self.machine, rings, back_events, features, chosen, &self.counters)?;
        Ok(())
    }

    /// A page that holds `bytes` from `offset` on, granted.
    pub(crate) fn page(&mut self, offset: usize, bytes: &[u8], access: Access) -> GrantRef {
        let granted = self.machine.grants().share(HOST, 1, access);
        let granted = granted.expect("a test needs few pages");
        granted.pages.copy_from(offset, bytes);
        granted.grefs[0]
    }

    /// Requests for a packet of which each slot has its own page, in as many slots as given.
    pub(crate) fn packet(&mut self, id: u16, slots: &[&[u8]]) -> Vec<TxRequest> {
        let total: usize = slots.iter().map(|slot| slot.len()).sum();
        let mut requests = Vec::new();
        for (index, bytes) in slots.iter().enumerate() {
            let size = if index == 0 { total } else { bytes.len() };
            requests.push(TxRequest {
                gref: self.page(0, bytes, Access::ReadOnly).0,
                offset: 0,
                flags: if index + 1 < slots.len() { NETTXF_MORE_DATA } else { 0 },
                id: id.wrapping_add(index.try_into().expect("a packet has few slots")),
                size: size.try_into().expect("a packet is at most 64 KiB"),
            });
        }
        requests
    }

    /// Pushes one slot of any kind.
    pub(crate) fn push(&mut self, slot: impl IntoBytes + Immutable) {
        self.tx.push_request(slot);
    }

    /// Pushes and publishes requests. If an event is due, it is not sent, because the test polls.
    pub(crate) fn send(&mut self, requests: &[TxRequest]) -> Notify {
        for request in requests {
            self.tx.push_request(*request);
        }
        self.tx.publish_requests()
    }

    /// One ingress call.
    pub(crate) fn ingress(&mut self) -> Result<FrameBatch, QueueDown> {
        self.ingress_within(Budget::BATCH)
    }

    /// The control plane notes what the guest has ordered. Returns the text.
    pub(crate) fn note_orders(&self) -> String {
        let mut noted = String::new();
        self.changes.note(|| noted = self.filter.to_string());
        noted
    }

    /// All frames that the queue took in are gone.
    pub(crate) fn settle(&mut self) -> Result<(), QueueDown> {
        self.back.settle(&mut self.pool)
    }

    /// One ingress call with this budget.
    pub(crate) fn ingress_within(&mut self, budget: Budget) -> Result<FrameBatch, QueueDown> {
        let mut frames = FrameBatch::new();
        self.back.ingress(budget, &mut self.pool, &mut frames)?;
        Ok(frames)
    }

    /// One ingress call that ends in a fault of the guest. Also returns the frames taken before the
    /// fault.
    #[track_caller]
    pub(crate) fn ingress_fault<F: Error + Copy + 'static>(&mut self) -> (F, FrameBatch) {
        let mut frames = FrameBatch::new();
        match self.back.ingress(Budget::BATCH, &mut self.pool, &mut frames) {
            Err(down) => (fault_of(&down), frames),
            Ok(()) => panic!("no fault"),
        }
    }

    /// The responses that arrived since the last call.
    pub(crate) fn tx_responses(&mut self) -> Vec<TxResponse> {
        let mut responses = [TxResponse::default(); 256];
        let count = self.tx.peek_responses(&mut responses).expect("our backend is honest");
        self.tx.consume(count);
        responses[..count].to_vec()
    }

    /// Id and status of those responses.
    pub(crate) fn tx_statuses(&mut self) -> Vec<(u16, i16)> {
        self.tx_responses().iter().map(|response| (response.id, response.status)).collect()
    }

    /// Posts `count` empty pages with consecutive ids and returns their grants.
    pub(crate) fn post(&mut self, first_id: u16, count: u16) -> Vec<GrantRef> {
        let ids = (0..count).map(|n| first_id.wrapping_add(n));
        let pages: Vec<_> = ids.map(|id| (id, self.page(0, &[], Access::ReadWrite))).collect();
        self.post_grants(&pages)
    }

    /// Posts pages that are granted already.
    pub(crate) fn post_grants(&mut self, pages: &[(u16, GrantRef)]) -> Vec<GrantRef> {
        for (id, gref) in pages {
            self.rx.push_request(RxRequest { id: *id, pad: 0, gref: gref.0 });
        }
        let _ = self.rx.publish_requests();
        pages.iter().map(|(_, gref)| *gref).collect()
    }

    /// Sends frames to the guest; returns those that wait.
    pub(crate) fn egress(&mut self, frames: Vec<Frame>) -> FrameQueue {
        let mut queue = FrameQueue::from(frames);
        self.back.egress(&mut queue, &mut self.pool).expect("the guest did nothing wrong");
        queue
    }

    /// What the guest received since the last call, slot by slot.
    pub(crate) fn rx_responses(&mut self) -> Vec<RxResponse> {
        let mut responses = [RxResponse::default(); 256];
        let count = self.rx.peek_responses(&mut responses).expect("our backend is honest");
        self.rx.consume(count);
        responses[..count].to_vec()
    }

    /// Bytes of a granted page.
    pub(crate) fn read_page(&mut self, gref: GrantRef, len: usize) -> Vec<u8> {
        let page = self.machine.map(gref, Access::ReadOnly);
        let mut bytes = vec![0; len];
        page.pages().copy_to(0, &mut bytes);
        bytes
    }

    /// A frame with these bytes.
    pub(crate) fn frame(&mut self, bytes: &[u8], offload: Offload) -> Frame {
        frames::frame(&mut self.pool, bytes, offload)
    }

    /// Batches of copies so far.
    pub(crate) fn copy_calls(&self) -> u64 {
        self.machine.loopback.passages(GUEST, FaultPoint::CopyCall)
    }

    /// Makes the next batch of copies fail as a whole.
    pub(crate) fn fail_next_copy_call(&self) {
        self.machine.loopback.fail_next(GUEST, FaultPoint::CopyCall);
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        frames::dropped(&self.counters, reason)
    }
}

/// The guest's fault that ended its queue.
#[track_caller]
pub(crate) fn fault_of<F: Error + Copy + 'static>(down: &QueueDown) -> F {
    match down {
        QueueDown::Peer(fault) => *fault.downcast_ref().expect("a fault of another kind"),
        QueueDown::Host(error) => panic!("the guest did nothing wrong: {error}"),
    }
}

impl Drop for Bench {
    /// On Xen such a copy would fail all others of its call.
    fn drop(&mut self) {
        let is_failing = std::thread::panicking();
        assert!(is_failing || self.machine.loopback.copies_out_of_page(HOST) == 0);
    }
}

fn orders(filter: &Arc<MulticastFilter>, changes: &Arc<Changes>) -> Arc<MulticastControl> {
    Arc::new(MulticastControl { filter: Arc::clone(filter), changes: Arc::clone(changes) })
}

fn attach(
    machine: &Machine,
    rings: &[GrantRef],
    events: QueueEvents<LoopbackEvent>,
    features: FrontendFeatures,
    (multicast, headroom): (Option<Arc<MulticastControl>>, &Arc<Headroom>),
    counters: &Arc<QueueCounters>,
) -> Result<VifQueue<LoopbackMemory, LoopbackEvent>, QueueDown> {
    let rings = machine.map_rings([rings[0], rings[1]]);
    let (headroom, counters) = (Arc::clone(headroom), Arc::clone(counters));
    let parts = QueueParts::new(machine.guest_id, machine.memory(), rings, events, features);
    VifQueue::attach(QueueParts { multicast, headroom, counters, ..parts })
}
