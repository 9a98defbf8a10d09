//! The backend's end of a queue, for a guest that writes anything into both ring pages, posts any
//! requests and withdraws grants. Each request gets one response in its order, no copy crosses a
//! page, no frame holds bytes that the guest did not send, and everything is released at the end.
//!
//! The queue may leave the ends of long packets in the guest's pages. Within the step such frames
//! are completed, or leave by the same queue, and none of their requests has a response before.

#![no_main]

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use libfuzzer_sys::fuzz_target;
use ringway_datapath::{
    Budget, FrameBatch, FrameQueue, Gso, GsoKind, OffloadCaps, PortQueue, QueueCounters, QueueDown,
    Woken,
};
use ringway_fuzz::machine::{GUEST, HOST, Machine, StalePool, check_fresh, end_pages, scribble};
use ringway_fuzz::{Input, frames};
use ringway_hypervisor::{Access, GrantTable};
use ringway_loopback::{FaultPoint, LoopbackEvent, LoopbackMemory};
use ringway_netback::{
    Changes, FrontendFeatures, Headroom, MulticastControl, QueueParts, VifQueue,
};
use ringway_ring::{FrontRing, Rx, Tx};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, ExtraInfo, HEADROOM_MAX, NETIF_RSP_ERROR, NETIF_RSP_NULL, NETIF_RSP_OKAY,
    NETRXF_EXTRA_INFO, NETTXF_EXTRA_INFO, NETTXF_MORE_DATA, RxRequest, RxResponse, TX_SLOT_LEN,
    TxRequest, TxResponse,
};
use ringway_wire::{GrantRef, PAGE_SIZE};
use zerocopy::{FromBytes, IntoBytes};

/// The most steps of one input.
const STEPS_MAX: usize = 128;
/// Slots of a ring.
const SLOTS: usize = 256;
/// Pages that the guest grants for data, every third one read-only.
const PAGES: usize = 6;
/// The most frames that wait with ends in the guest's pages.
const LENT_MAX: usize = 16;
/// Larger than any grant reference.
const GREF_ABSENT: u32 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let machine = Machine::new();
    let mut pool = StalePool::new();
    let Some(mut guest) = Guest::new(&machine, &mut input) else { return };
    let mut waiting = FrameQueue::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let stepped = guest.step(&mut input, &mut pool, &mut waiting);
        assert_eq!(machine.loopback.copies_out_of_page(HOST), 0, "a copy beyond its page");
        match stepped {
            Ok(()) => {}
            Err(QueueDown::Peer(_)) => break,
            Err(QueueDown::Host(error)) => {
                assert!(guest.may_host_fail, "the host did nothing wrong: {error}");
                break;
            }
        }
    }
    waiting.drain(..).for_each(|frame| pool.recycle(frame));
    drop(guest);
    assert_eq!(machine.loopback.holdings_of(HOST).mappings, 0, "a page is still mapped");
    pool.check_and_drop();
});

/// Completes what is in the guest's pages, and drops frames whose ends cannot be read.
fn complete(waiting: &mut FrameQueue, pool: &mut StalePool) {
    for _ in 0..waiting.len() {
        let Some(mut frame) = waiting.pop_front() else { break };
        match pool.pool.complete(&mut frame) {
            Ok(()) => {
                check_fresh(&frame);
                waiting.push_back(frame);
            }
            Err(_) => pool.recycle(frame),
        }
    }
}

struct Guest<'m> {
    machine: &'m Machine,
    back: VifQueue<LoopbackMemory, LoopbackEvent>,
    changes: Arc<Changes>,
    headroom: Arc<Headroom>,
    tx: FrontRing<Tx>,
    rx: FrontRing<Rx>,
    ring_pages: [SharedPages; 2],
    grefs: Vec<GrantRef>,
    /// Whether the ends of long packets stay in the guest's pages.
    is_lending: bool,
    counters: Arc<QueueCounters>,
    /// The slot of the next tx response.
    next_answer: usize,
    /// The requests without a response, as long as everything in the rings was pushed in order.
    expected: Option<Expected>,
    /// A hypervisor call was made to fail.
    may_host_fail: bool,
}

/// Requests without a response.
#[derive(Default)]
struct Expected {
    tx: VecDeque<TxRequest>,
    /// Ids.
    rx: VecDeque<u16>,
}

impl<'m> Guest<'m> {
    /// A guest and the queue that serves it; `None` if its rings are refused, which the input may
    /// cause.
    fn new(machine: &'m Machine, input: &mut Input<'_>) -> Option<Guest<'m>> {
        let mut grants = machine.grants();
        let rings = grants.share(HOST, 2, Access::ReadWrite).expect("a new guest has memory");
        let ring_pages =
            [0, 1].map(|page| rings.pages.slice(page * PAGE_SIZE..(page + 1) * PAGE_SIZE));
        let start = if input.flag() { u32::MAX - u32::from(input.u8()) } else { 0 };
        let tx = FrontRing::starting_at(ring_pages[0].clone(), start);
        let rx = FrontRing::starting_at(ring_pages[1].clone(), start);
        let is_attacked = input.u8() % 16 == 0;
        if is_attacked {
            ring_pages[0].copy_from(0, &input.array::<64>());
            ring_pages[1].copy_from(0, &input.array::<64>());
        }
        let grefs = (0..PAGES).map(|page| {
            let access = if page % 3 == 2 { Access::ReadOnly } else { Access::ReadWrite };
            let granted = grants.share(HOST, 1, access).expect("a new guest has memory");
            granted.pages.copy_from(0, &[0xa0 | page as u8; PAGE_SIZE]);
            granted.grefs[0]
        });
        let grefs = grefs.collect();
        let (_, events) = machine.channels();
        let bits = input.u8();
        let caps = if bits & 1 != 0 { OffloadCaps::ALL } else { OffloadCaps::NONE };
        let is_lending = bits & 4 != 0;
        let counters = Arc::new(QueueCounters::default());
        let changes = Arc::new(Changes::new(Waker::noop().clone()));
        let multicast = MulticastControl { filter: Arc::default(), changes: Arc::clone(&changes) };
        let headroom: Arc<Headroom> = Arc::default();
        let mapped = [0, 1].map(|ring| machine.map(rings.grefs[ring]));
        let features = FrontendFeatures { caps, rx_notify: bits & 2 != 0 };
        let back = VifQueue::attach(QueueParts {
            multicast: Some(Arc::new(multicast)),
            headroom: Arc::clone(&headroom),
            counters: Arc::clone(&counters),
            ..QueueParts::new(GUEST, machine.memory(), mapped, events, features)
        });
        assert!(back.is_ok() || is_attacked, "new rings are sound");
        let expected = (!is_attacked).then(Expected::default);
        let mut back = back.ok()?;
        if is_lending {
            back.lend_pages(machine.memory());
        }
        Some(Guest {
            machine,
            back,
            changes,
            headroom,
            tx,
            rx,
            ring_pages,
            grefs,
            is_lending,
            counters,
            next_answer: start as usize % SLOTS,
            expected,
            may_host_fail: false,
        })
    }

    fn step(
        &mut self,
        input: &mut Input<'_>,
        pool: &mut StalePool,
        waiting: &mut FrameQueue,
    ) -> Result<(), QueueDown> {
        match input.u8() % 16 {
            3..=4 if self.is_lending => self.send_long(input),
            0..=4 => self.send(input),
            5..=6 => self.post(input),
            7..=10 => self.ingress(input, pool, waiting)?,
            11..=12 => {
                pool.fill(waiting, input);
                self.back.egress(waiting, &mut pool.pool)?;
            }
            13 => {
                self.back.arm()?;
                self.back.woken(Woken::Unknown)?;
                self.changes.note(|| ());
            }
            14 => self.disturb(input),
            _ => self.scribble(input),
        }
        self.take_responses();
        Ok(())
    }

    /// Pushes the requests of a packet that is long enough to be lent, from any pages.
    fn send_long(&mut self, input: &mut Input<'_>) {
        let pages = 3 + input.below(14);
        // It begins with a short slot, as Linux's segments do, or with a page.
        let first = if input.flag() { 60 + input.below(1000) } else { PAGE_SIZE };
        let has_extra = input.u8() < 64;
        if self.tx.free() < 2 + pages {
            return;
        }
        let rest = (PAGE_SIZE * (pages - 1) + input.below(PAGE_SIZE)).min(65_535 - first);
        let (mut left, mut is_first) = (first + rest, true);
        while left > 0 {
            let len = if is_first { first } else { left.min(PAGE_SIZE) };
            let more = if len < left { NETTXF_MORE_DATA } else { 0 };
            let extra = if is_first && has_extra { NETTXF_EXTRA_INFO } else { 0 };
            let size = if is_first { first + rest } else { len };
            self.push(TxRequest {
                gref: self.gref(input),
                offset: (input.u16() as usize % (PAGE_SIZE - len + 1)) as u16,
                flags: more | extra,
                id: input.u16(),
                size: size as u16,
            });
            if is_first && has_extra {
                let gso = Gso { kind: GsoKind::TcpV4, size: 1448 };
                let extra = gso.to_extra().expect("TCP has an extra");
                let mut slot = [0; TX_SLOT_LEN];
                slot[..size_of_val(&extra)].copy_from_slice(extra.as_bytes());
                self.push(TxRequest::read_from_bytes(&slot).expect("it has the length of a slot"));
            }
            (left, is_first) = (left - len, false);
        }
        let _ = self.tx.publish_requests();
    }

    fn push(&mut self, request: TxRequest) {
        if let Some(expected) = &mut self.expected {
            expected.tx.push_back(request);
        }
        self.tx.push_request(request);
    }

    /// Pushes tx requests, mostly almost valid, and publishes them.
    fn send(&mut self, input: &mut Input<'_>) {
        let room = self.tx.free();
        for _ in 0..input.below(24).min(room) {
            let request = TxRequest {
                gref: self.gref(input),
                offset: if input.u8() < 16 { input.u16() } else { input.u16() % 2048 },
                flags: if input.u8() < 16 { input.u16() } else { u16::from(input.u8() % 16) },
                id: input.u16(),
                size: if input.u8() < 16 { input.u16() } else { input.u16() % 3000 },
            };
            self.push(request);
        }
        let _ = self.tx.publish_requests();
    }

    /// Posts pages to receive into.
    fn post(&mut self, input: &mut Input<'_>) {
        let room = self.rx.free();
        for _ in 0..input.below(24).min(room) {
            let request = RxRequest { id: input.u16(), pad: input.u16(), gref: self.gref(input) };
            if let Some(expected) = &mut self.expected {
                expected.rx.push_back(request.id);
            }
            self.rx.push_request(request);
        }
        let _ = self.rx.publish_requests();
    }

    /// A grant of a data page, or an invalid one. Never one of the rings: a guest that has frames
    /// copied over its own indices cannot expect responses.
    fn gref(&self, input: &mut Input<'_>) -> u32 {
        if input.u8() < 16 { input.u32() | GREF_ABSENT } else { input.choose(&self.grefs).0 }
    }

    fn ingress(
        &mut self,
        input: &mut Input<'_>,
        pool: &mut StalePool,
        waiting: &mut FrameQueue,
    ) -> Result<(), QueueDown> {
        let budget = match input.u8() % 4 {
            0 => Budget { frames: input.below(8), bytes: usize::from(input.u16()) },
            _ => Budget::BATCH,
        };
        let mut batch = FrameBatch::new();
        let outcome = self.back.ingress(budget, &mut pool.pool, &mut batch);
        assert!(batch.len() <= budget.frames, "more frames than were asked for");
        for frame in batch {
            assert!((frames::ETHERNET_LEN..=65_535).contains(&frame.len()));
            check_fresh(&frame);
            if frame.is_lent() && waiting.len() < LENT_MAX {
                waiting.push_back(frame);
            } else {
                pool.recycle(frame);
            }
        }
        self.take_responses();
        self.check_lent(waiting);
        let left = match outcome.is_ok() && input.flag() {
            true => self.back.egress(waiting, &mut pool.pool),
            false => Ok(()),
        };
        complete(waiting, pool);
        outcome.and(left)?;
        self.back.settle(&mut pool.pool)?;
        pool.pool.end_loans();
        assert_eq!(self.counters.totals().tx_unanswered, 0, "a response waits for no frame");
        Ok(())
    }

    /// No request for a page that a frame refers to has a response.
    fn check_lent(&self, waiting: &FrameQueue) {
        let Some(expected) = &self.expected else { return };
        for slot in waiting.iter().filter(|frame| frame.is_lent()).flat_map(end_pages) {
            let ahead = (slot + SLOTS - self.next_answer) % SLOTS;
            assert!(
                ahead < expected.tx.len(),
                "slot {slot} has a response, and a frame refers to it"
            );
        }
    }

    /// Withdraws a grant, makes a hypervisor call fail, or has the guest ask for other headroom.
    fn disturb(&mut self, input: &mut Input<'_>) {
        let point = match input.u8() % 4 {
            0 => FaultPoint::Copy,
            1 => FaultPoint::CopyCall,
            2 => return self.headroom.set(input.choose(&[0, 1, 256, HEADROOM_MAX, u16::MAX])),
            _ => return self.machine.loopback.revoke(GUEST, input.choose(&self.grefs)),
        };
        self.may_host_fail |= point == FaultPoint::CopyCall;
        self.machine.loopback.fail_next(GUEST, point);
    }

    /// Writes anything anywhere into a ring page. From then on the meaning of responses is unknown.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let page = input.choose(&[0, 1]);
        scribble(&self.ring_pages[page], input);
        self.expected = None;
    }

    /// Compares responses with their requests.
    fn take_responses(&mut self) {
        let Some(Expected { tx: tx_requests, rx: rx_ids }) = &mut self.expected else { return };
        let mut responses = [TxResponse::default(); SLOTS];
        let count = self.tx.peek_responses(&mut responses).expect("the backend is honest");
        self.tx.consume(count);
        for response in &responses[..count] {
            let id = tx_requests.pop_front().map(|request| match response.status {
                // The slot of an extra has no id. The extra's kind and flags stay in place.
                NETIF_RSP_NULL => u16::try_from(request.gref & 0xFFFF).expect("16 bits"),
                _ => request.id,
            });
            assert_eq!(Some(response.id), id, "tx responses in order");
            self.next_answer = (self.next_answer + 1) % SLOTS;
            let is_known =
                [NETIF_RSP_OKAY, NETIF_RSP_ERROR, NETIF_RSP_NULL].contains(&response.status);
            assert!(is_known, "{response:?}");
        }
        let mut responses = [RxResponse::default(); SLOTS];
        let count = self.rx.peek_responses(&mut responses).expect("the backend is honest");
        self.rx.consume(count);
        let mut is_extra = false;
        for response in &responses[..count] {
            let id = rx_ids.pop_front();
            if !is_extra {
                assert_eq!(Some(response.id), id, "rx responses in order");
                assert!(
                    usize::try_from(response.status).is_ok_and(|len| len <= PAGE_SIZE)
                        || response.status == NETIF_RSP_ERROR,
                    "{response:?}"
                );
            }
            is_extra = match is_extra {
                false => response.flags & NETRXF_EXTRA_INFO != 0,
                true => {
                    let extra = ExtraInfo::read_from_bytes(response.as_bytes());
                    extra.expect("both have 8 bytes").flags & EXTRA_FLAG_MORE != 0
                }
            };
        }
    }
}
