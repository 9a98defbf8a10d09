//! The backend's end of a queue, for a guest that writes anything into both ring pages, posts any
//! requests and withdraws grants. Each request gets one response in its order, no copy crosses a
//! page, no frame holds bytes that the guest did not send, and everything is released at the end.

#![no_main]

use std::collections::VecDeque;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ringway_datapath::{
    Budget, FrameBatch, FrameQueue, OffloadCaps, PortQueue, QueueCounters, QueueDown, Woken,
};
use ringway_fuzz::machine::{GUEST, HOST, Machine, StalePool, check_fresh, scribble};
use ringway_fuzz::{Input, frames};
use ringway_hypervisor::{Access, GrantTable};
use ringway_loopback::{FaultPoint, LoopbackEvent, LoopbackMemory};
use ringway_netback::{FrontendFeatures, QueueParts, VifQueue};
use ringway_ring::{FrontRing, Rx, Tx};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    NETIF_RSP_ERROR, NETIF_RSP_NULL, NETIF_RSP_OKAY, RxRequest, RxResponse, TxRequest, TxResponse,
};
use ringway_wire::{GrantRef, PAGE_SIZE};

/// The most steps of one input.
const STEPS_MAX: usize = 128;
/// Slots of a ring.
const SLOTS: usize = 256;
/// Pages that the guest grants for data, every third one read-only.
const PAGES: usize = 6;
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
    drop(guest);
    assert_eq!(machine.loopback.holdings_of(HOST).mappings, 0, "a page is still mapped");
    waiting.drain(..).for_each(|frame| pool.recycle(frame));
    pool.check_and_drop();
});

struct Guest<'m> {
    machine: &'m Machine,
    back: VifQueue<LoopbackMemory, LoopbackEvent>,
    tx: FrontRing<Tx>,
    rx: FrontRing<Rx>,
    ring_pages: [SharedPages; 2],
    grefs: Vec<GrantRef>,
    /// Ids of the requests without a response, as long as everything in the rings was pushed in
    /// order.
    expected: Option<[VecDeque<u16>; 2]>,
    /// A hypervisor call was made to fail.
    may_host_fail: bool,
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
        let parts = QueueParts {
            peer: GUEST,
            memory: machine.memory(),
            tx_ring: machine.map(rings.grefs[0]),
            rx_ring: machine.map(rings.grefs[1]),
            events,
            features: FrontendFeatures { caps, rx_notify: bits & 2 != 0 },
            counters: Arc::new(QueueCounters::default()),
        };
        let back = VifQueue::attach(parts);
        assert!(back.is_ok() || is_attacked, "new rings are sound");
        let expected = (!is_attacked).then(Default::default);
        let back = back.ok()?;
        Some(Guest { machine, back, tx, rx, ring_pages, grefs, expected, may_host_fail: false })
    }

    fn step(
        &mut self,
        input: &mut Input<'_>,
        pool: &mut StalePool,
        waiting: &mut FrameQueue,
    ) -> Result<(), QueueDown> {
        match input.u8() % 16 {
            0..=4 => self.send(input),
            5..=6 => self.post(input),
            7..=10 => self.ingress(input, pool)?,
            11..=12 => {
                pool.fill(waiting, input);
                self.back.egress(waiting, &mut pool.pool)?;
            }
            13 => {
                self.back.arm()?;
                self.back.woken(Woken::Unknown)?;
            }
            14 => self.disturb(input),
            _ => self.scribble(input),
        }
        self.take_responses();
        Ok(())
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
            if let Some([tx, _]) = &mut self.expected {
                tx.push_back(request.id);
            }
            self.tx.push_request(request);
        }
        let _ = self.tx.publish_requests();
    }

    /// Posts pages to receive into.
    fn post(&mut self, input: &mut Input<'_>) {
        let room = self.rx.free();
        for _ in 0..input.below(24).min(room) {
            let request = RxRequest { id: input.u16(), pad: input.u16(), gref: self.gref(input) };
            if let Some([_, rx]) = &mut self.expected {
                rx.push_back(request.id);
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

    fn ingress(&mut self, input: &mut Input<'_>, pool: &mut StalePool) -> Result<(), QueueDown> {
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
            pool.recycle(frame);
        }
        outcome
    }

    /// Withdraws a grant, or makes a hypervisor call fail.
    fn disturb(&mut self, input: &mut Input<'_>) {
        let point = match input.u8() % 4 {
            0 => FaultPoint::Copy,
            1 => FaultPoint::CopyCall,
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
        let Some([tx_ids, rx_ids]) = &mut self.expected else { return };
        let mut responses = [TxResponse::default(); SLOTS];
        let count = self.tx.peek_responses(&mut responses).expect("the backend is honest");
        self.tx.consume(count);
        for response in &responses[..count] {
            assert_eq!(Some(response.id), tx_ids.pop_front(), "tx responses in order");
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
            is_extra = !is_extra && response.flags & ringway_wire::netif::NETRXF_EXTRA_INFO != 0;
        }
    }
}
