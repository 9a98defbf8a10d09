//! The frontend's end of a queue, for a backend that writes any responses and anything else into
//! both ring pages. No frame holds bytes that the backend did not write, no buffer is lost, and the
//! grants end once the backend releases them.
//!
//! The queue may send from slabs and leave received frames in their pages. Then no slab is used
//! again before all requests for its pages have a response, and no page is posted while a frame
//! refers to it.

#![no_main]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libfuzzer_sys::fuzz_target;
use ringway_datapath::{
    Budget, Frame, FrameBatch, FrameQueue, MIDDLE_LEN, OffloadCaps, PagePool, PortQueue,
    QueueCounters, QueueDown, Woken,
};
use ringway_fuzz::Input;
use ringway_fuzz::machine::{GUEST, HOST, Machine, StalePool, check_fresh, end_pages, scribble};
use ringway_hypervisor::ForeignPage;
use ringway_loopback::{LoopbackEvent, LoopbackGrants};
use ringway_netfront::{Slabs, VifQueue};
use ringway_ring::{BackRing, Rx, Tx};
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{RxRequest, RxResponse, TxRequest, TxResponse};
use ringway_wire::ring::REQ_PROD;

/// The most steps of one input.
const STEPS_MAX: usize = 128;
/// Slots of a ring.
const SLOTS: usize = 256;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let machine = Machine::new();
    let mut pool = StalePool::new();
    // The last byte, so that the meaning of the others does not depend on it.
    let mode = data.last().copied().unwrap_or(0);
    let mut bench = Bench::new(&machine, mode);
    let mut waiting = FrameQueue::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match bench.step(&mut input, &mut pool, &mut waiting) {
            Ok(()) => {}
            Err(QueueDown::Peer(_)) => break,
            Err(QueueDown::Host(error)) => panic!("the guest did nothing wrong: {error}"),
        }
    }
    let Bench { front, ring_pages, held, slabs, .. } = bench;
    drop(ring_pages);
    waiting.drain(..).chain(held).for_each(|frame| pool.recycle(frame));
    front.close().expect("the backend has released all pages, and no frame refers to one");
    if let Some((slabs, page_pool)) = slabs {
        drop(page_pool);
        slabs.close(&mut machine.grants()).expect("no frame and no queue refers to a slab");
    }
    let holdings = machine.loopback.holdings_of(GUEST);
    assert_eq!((holdings.grants, holdings.pages, holdings.pages_kept), (0, 0, 0));
    pool.check_and_drop();
});

struct Bench {
    front: VifQueue<LoopbackGrants, LoopbackEvent>,
    tx: BackRing<Tx>,
    rx: BackRing<Rx>,
    ring_pages: [ForeignPage; 2],
    /// Ids of the tx requests without a response.
    tx_ids: Vec<u16>,
    /// What the queue sends long frames from, if it does.
    slabs: Option<(Slabs, Box<dyn PagePool>)>,
    /// Received frames that are still in their pages.
    held: FrameQueue,
    /// Pages that were posted before this step, counted from the start.
    posted: u32,
    /// The backend has written over its rings: what its requests say means nothing.
    is_scribbled: bool,
}

impl Bench {
    fn new(machine: &Machine, mode: u8) -> Bench {
        let (front_events, _) = machine.channels();
        let counters = Arc::new(QueueCounters::default());
        let front = VifQueue::new(machine.grants(), HOST, front_events, counters);
        let mut front = front.expect("a new guest has memory");
        front.set_caps(OffloadCaps::ALL);
        let config = front.config();
        let ring_pages = [config.tx_ring_ref, config.rx_ring_ref].map(|gref| machine.map(gref));
        let [tx, rx] = [0, 1].map(|ring| ring_pages[ring].pages().clone());
        let tx = BackRing::attach(tx).expect("a new ring is sound");
        let rx = BackRing::attach(rx).expect("a new ring is sound");
        if mode & 1 != 0 {
            front.receive_in_place().expect("a descriptor is left");
        }
        let slabs = (mode & 2 != 0).then(|| {
            let slabs = Slabs::new(&mut machine.grants(), HOST).expect("a new guest has memory");
            front.send_from(&slabs);
            let page_pool = slabs.page_pool();
            (slabs, page_pool)
        });
        let (tx_ids, held) = (Vec::new(), FrameQueue::new());
        Bench { front, tx, rx, ring_pages, tx_ids, slabs, held, posted: 256, is_scribbled: false }
    }

    fn step(
        &mut self,
        input: &mut Input<'_>,
        pool: &mut StalePool,
        waiting: &mut FrameQueue,
    ) -> Result<(), QueueDown> {
        match input.u8() % 16 {
            0..=4 => self.respond_rx(input),
            5..=6 => self.respond_tx(input),
            7..=8 if !self.held.is_empty() => self.release(input, pool),
            7..=10 => self.ingress(pool)?,
            11..=13 => {
                let before = waiting.len();
                pool.fill(waiting, input);
                waiting.iter_mut().skip(before).for_each(|frame| self.stow(frame));
                self.front.egress(waiting, &mut pool.pool)?;
            }
            14 => {
                self.front.arm()?;
                self.front.woken(Woken::Unknown)?;
            }
            _ => self.scribble(input),
        }
        self.check_posted();
        Ok(())
    }

    /// Responds to posted pages, mostly with the expected ids, and publishes the responses.
    fn respond_rx(&mut self, input: &mut Input<'_>) {
        for _ in 0..input.below(24) {
            let mut request = [RxRequest::default()];
            if !matches!(self.rx.peek_requests(&mut request), Ok((1, _))) {
                break;
            }
            self.rx.consume(1);
            let is_odd = input.u8() < 8;
            self.rx.push_response(RxResponse {
                id: if is_odd { input.u16() } else { request[0].id },
                offset: if input.u8() < 16 { input.u16() } else { 0 },
                flags: if input.u8() < 16 { input.u16() } else { u16::from(input.u8() % 16) },
                status: match input.u8() {
                    0..16 => i16::from_le_bytes(input.array()),
                    _ => (input.u16() % 4097) as i16,
                },
            });
        }
        let _ = self.rx.publish_responses();
    }

    /// Responds to tx requests, mostly with ids that are outstanding.
    fn respond_tx(&mut self, input: &mut Input<'_>) {
        let mut requests = [TxRequest::default(); SLOTS];
        if let Ok((count, _)) = self.tx.peek_requests(&mut requests) {
            self.tx.consume(count);
            self.tx_ids.extend(requests[..count].iter().map(|request| request.id));
        }
        for _ in 0..input.below(24) {
            if self.tx_ids.is_empty() {
                break;
            }
            let due = self.tx_ids.swap_remove(input.below(self.tx_ids.len()));
            let id = if input.u8() < 8 { input.u16() } else { due };
            self.tx_ids.retain(|other| *other != id);
            let status = if input.u8() < 200 { 0 } else { i16::from_le_bytes(input.array()) };
            self.tx.push_response(TxResponse { id, status });
        }
        let _ = self.tx.publish_responses();
    }

    fn ingress(&mut self, pool: &mut StalePool) -> Result<(), QueueDown> {
        let mut batch = FrameBatch::new();
        let outcome = self.front.ingress(Budget::BATCH, &mut pool.pool, &mut batch);
        for frame in batch {
            assert!(!frame.is_empty() && frame.len() <= frame.capacity());
            check_fresh(&frame);
            match frame.end() {
                Some(_) => self.held.push_back(frame),
                None => pool.recycle(frame),
            }
        }
        outcome
    }

    /// No page that was posted in this step has a frame in it.
    fn check_posted(&mut self) {
        let posted = self.ring_pages[1].pages().load(REQ_PROD, Ordering::Acquire);
        while self.posted != posted && !self.is_scribbled {
            let page = self.posted as usize % SLOTS;
            let is_held = self.held.iter().flat_map(end_pages).any(|held| held == page);
            assert!(!is_held, "page {page} is posted while a frame is in it");
            self.posted = self.posted.wrapping_add(1);
        }
    }

    /// Takes one of the frames that are in their pages out of them.
    fn release(&mut self, input: &mut Input<'_>, pool: &mut StalePool) {
        let chosen = input.below(self.held.len());
        let Some(mut frame) = self.held.remove(chosen) else { return };
        pool.pool.complete(&mut frame).expect("the pages are the guest's own");
        check_fresh(&frame);
        pool.recycle(frame);
    }

    /// Puts the end of a long frame into a slab, as a device does.
    fn stow(&mut self, frame: &mut Frame) {
        let end = frame.len().saturating_sub(MIDDLE_LEN);
        let Some((_, page_pool)) = self.slabs.as_mut().filter(|_| end > 0) else { return };
        let Some(mut pages) = page_pool.take() else { return };
        let first = SLOTS + pages.pieces()[0].at / PAGE_SIZE;
        let ids = first..first + pages.len() / PAGE_SIZE;
        let is_outstanding = self.tx_ids.iter().any(|id| ids.contains(&usize::from(*id)));
        assert!(!is_outstanding || self.is_scribbled, "a slab is taken while it is sent");
        pages.truncate(end);
        frame.set_len(MIDDLE_LEN);
        frame.set_end(pages);
    }

    /// Writes anything anywhere into a ring page.
    fn scribble(&mut self, input: &mut Input<'_>) {
        self.is_scribbled = true;
        let page = input.choose(&[0, 1]);
        scribble(self.ring_pages[page].pages(), input);
    }
}
