//! The frontend's end of a queue, for a backend that writes any responses and anything else into
//! both ring pages. No frame holds bytes that the backend did not write, no buffer is lost, and the
//! grants end once the backend releases them.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ringway_datapath::{
    Budget, FrameBatch, FrameQueue, OffloadCaps, PortQueue, QueueCounters, QueueDown, Woken,
};
use ringway_fuzz::Input;
use ringway_fuzz::machine::{GUEST, HOST, Machine, StalePool, check_fresh, scribble};
use ringway_hypervisor::ForeignPage;
use ringway_loopback::{LoopbackEvent, LoopbackGrants};
use ringway_netfront::VifQueue;
use ringway_ring::{BackRing, Rx, Tx};
use ringway_wire::netif::{RxRequest, RxResponse, TxRequest, TxResponse};

/// The most steps of one input.
const STEPS_MAX: usize = 128;
/// Slots of a ring.
const SLOTS: usize = 256;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let machine = Machine::new();
    let mut pool = StalePool::new();
    let mut bench = Bench::new(&machine);
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
    let Bench { front, ring_pages, .. } = bench;
    drop(ring_pages);
    front.close().expect("the backend has released all pages");
    let holdings = machine.loopback.holdings_of(GUEST);
    assert_eq!((holdings.grants, holdings.pages, holdings.pages_kept), (0, 0, 0));
    waiting.drain(..).for_each(|frame| pool.recycle(frame));
    pool.check_and_drop();
});

struct Bench {
    front: VifQueue<LoopbackGrants, LoopbackEvent>,
    tx: BackRing<Tx>,
    rx: BackRing<Rx>,
    ring_pages: [ForeignPage; 2],
    /// Ids of the tx requests without a response.
    tx_ids: Vec<u16>,
}

impl Bench {
    fn new(machine: &Machine) -> Bench {
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
        Bench { front, tx, rx, ring_pages, tx_ids: Vec::new() }
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
            7..=10 => self.ingress(pool)?,
            11..=13 => {
                pool.fill(waiting, input);
                self.front.egress(waiting, &mut pool.pool)?;
            }
            14 => {
                self.front.arm()?;
                self.front.woken(Woken::Unknown)?;
            }
            _ => self.scribble(input),
        }
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
            pool.recycle(frame);
        }
        outcome
    }

    /// Writes anything anywhere into a ring page.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let page = input.choose(&[0, 1]);
        scribble(self.ring_pages[page].pages(), input);
    }
}
