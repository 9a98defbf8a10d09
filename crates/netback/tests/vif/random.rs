//! Guests that write anything at all. A failure prints the seed that repeats it.

use fastrand::Rng;
use ringway_datapath::{
    Budget, FrameBatch, FrameQueue, Offload, OffloadCaps, PortQueue, QueueDown,
};
use ringway_hypervisor::Access;
use ringway_wire::GrantRef;
use ringway_wire::netif::{RxRequest, TxRequest};

use crate::frames::pattern;
use crate::guest::Bench;

const SEEDS: u64 = if cfg!(miri) { 4 } else { 400 };
const ROUNDS: usize = 12;

/// A slot that is mostly nearly right, so that the code behind the first check is reached as well.
fn slot(random: &mut Rng, grefs: &[GrantRef]) -> TxRequest {
    let gref = match random.u8(0..10) {
        0 => random.u32(..),
        _ => grefs[random.usize(0..grefs.len())].0,
    };
    let offset = if random.u8(0..20) == 0 { random.u16(..) } else { random.u16(0..2000) };
    let size = match random.u8(0..12) {
        0 => random.u16(..),
        1 => 0,
        _ => random.u16(0..1800),
    };
    let flags = match random.u8(0..6) {
        0 => random.u16(..),
        1 => random.u16(0..16),
        2 => 4,
        _ => random.u16(0..4),
    };
    TxRequest { gref, offset, flags, id: random.u16(..), size }
}

fn anything_goes(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let mut bench = Bench::starting_at(u32::MAX - random.u32(0..600), OffloadCaps::ALL);
    let grefs: Vec<GrantRef> = (0..8)
        .map(|n| {
            let access = if n % 3 == 0 { Access::ReadOnly } else { Access::ReadWrite };
            bench.page(0, &pattern(n, 4096), access)
        })
        .collect();
    let mut frames = FrameBatch::new();
    let mut waiting = FrameQueue::new();
    for _ in 0..ROUNDS {
        for _ in 0..random.usize(0..=bench.tx.free()) {
            bench.tx.push_request(slot(&mut random, &grefs));
        }
        let _ = bench.tx.publish_requests();
        for _ in 0..random.usize(0..=bench.rx.free()) {
            let gref = slot(&mut random, &grefs).gref;
            bench.rx.push_request(RxRequest { id: random.u16(..), pad: random.u16(..), gref });
        }
        let _ = bench.rx.publish_requests();
        if waiting.len() < 100 {
            let frame = bench.frame(&pattern(1, random.usize(14..9000)), Offload::default());
            waiting.push_back(frame);
        }
        let outcome = bench
            .back
            .ingress(Budget::BATCH, &mut bench.pool, &mut frames)
            .and_then(|()| bench.back.egress(&mut waiting, &mut bench.pool))
            .and_then(|()| bench.back.arm());
        for frame in frames.drain(..) {
            assert!((14..=65535).contains(&frame.len()));
            waiting.push_back(frame);
        }
        // The guest's rings check that there is exactly one response per request.
        bench.tx_responses();
        bench.rx_responses();
        match outcome {
            Ok(_) => {}
            Err(QueueDown::Peer(fault)) => {
                assert!(!fault.to_string().is_empty());
                return;
            }
            Err(QueueDown::Host(error)) => panic!("the host did nothing wrong: {error}"),
        }
    }
}

#[test]
fn random_writes_of_a_guest_cause_responses_or_a_fault_but_no_panic() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        anything_goes(seed);
    }
}
