//! Our frontend and our backend, joined by one guest's memory: what enters one side leaves the
//! other, byte for byte and in order.

use std::collections::VecDeque;

use fastrand::Rng;
use ringway_datapath::{
    Budget, Checksum, Frame, FrameBatch, FramePool, FrameQueue, Gso, GsoKind, Offload, Pending,
    PoolBudget, PortQueue,
};

use crate::frames::pattern;
use crate::joined::{Back, Front, attach, pair};

/// What must leave at the far end of a lane.
struct Sent {
    bytes: Vec<u8>,
    offload: Offload,
}

/// One direction of the pair.
#[derive(Default)]
struct Lane {
    waiting: FrameQueue,
    expected: VecDeque<Sent>,
    arrived: usize,
}

impl Lane {
    fn enqueue(&mut self, random: &mut Rng, pool: &mut FramePool) {
        for _ in 0..random.usize(0..100) {
            let len = match random.u8(0..20) {
                0 => random.usize(60_000..=65_535),
                1..=4 => random.usize(14..10_000),
                5 => [14, 4096, 4097, 8192, 8193, 65_535][random.usize(0..6)],
                _ => random.usize(14..1600),
            };
            let gso = match random.u8(0..3) {
                0 if random.bool() => Some(Gso { kind: GsoKind::TcpV4, size: random.u16(1..) }),
                0 => Some(Gso { kind: GsoKind::TcpV6, size: random.u16(1..) }),
                _ => None,
            };
            let checksum = match (gso, random.u8(0..3)) {
                (Some(_), _) | (None, 0) => Checksum::Blank,
                (None, 1) => Checksum::Validated,
                (None, _) => Checksum::Unverified,
            };
            let offload = Offload { checksum, gso };
            let Some(mut frame) = pool.take(len) else { return };
            let bytes = pattern(random.usize(0..1000), len);
            frame.bytes_mut().copy_from_slice(&bytes);
            frame.offload = offload;
            self.waiting.push_back(frame);
            self.expected.push_back(Sent { bytes, offload });
        }
    }

    fn compare(&mut self, frames: FrameBatch, pool: &mut FramePool) {
        for frame in frames {
            let sent = self.expected.pop_front().expect("nothing arrives that was not sent");
            assert_eq!(frame.bytes(), sent.bytes);
            assert_eq!(frame.offload, sent.offload);
            self.arrived += 1;
            pool.recycle(frame);
        }
    }
}

fn take(port: &mut impl PortQueue, pool: &mut FramePool) -> FrameBatch {
    let mut frames = FrameBatch::new();
    port.ingress(Budget::BATCH, pool, &mut frames).expect("both ends are honest");
    frames
}

fn round_trips(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let (_machine, mut front, mut back) = pair();
    // Tight enough to run out at times.
    let mut pool = FramePool::new(PoolBudget::new(24 << 20));
    let (mut up, mut down) = (Lane::default(), Lane::default());
    let rounds = if cfg!(miri) { 30 } else { 300 };
    for round in 0..rounds {
        let is_draining = round > rounds * 2 / 3;
        match random.u8(0..6) {
            0 if !is_draining && up.waiting.len() < 200 => up.enqueue(&mut random, &mut pool),
            1 if !is_draining && down.waiting.len() < 200 => down.enqueue(&mut random, &mut pool),
            2 => front.egress(&mut up.waiting, &mut pool).expect("the backend is honest"),
            3 => up.compare(take(&mut back, &mut pool), &mut pool),
            4 => back.egress(&mut down.waiting, &mut pool).expect("the frontend is honest"),
            _ => down.compare(take(&mut front, &mut pool), &mut pool),
        }
    }
    drain(&mut front, &mut back, &mut up, &mut down, &mut pool);
    assert!(up.arrived > rounds && down.arrived > rounds, "{} {}", up.arrived, down.arrived);
}

/// Serves both ends until nothing waits; a lost wake-up or page would make it take for ever.
fn drain(front: &mut Front, back: &mut Back, up: &mut Lane, down: &mut Lane, pool: &mut FramePool) {
    for _ in 0..500 {
        front.egress(&mut up.waiting, pool).expect("the backend is honest");
        up.compare(take(back, pool), pool);
        back.egress(&mut down.waiting, pool).expect("the frontend is honest");
        down.compare(take(front, pool), pool);
        if up.expected.is_empty() && down.expected.is_empty() {
            let idle = [front.arm(), back.arm()].map(|armed| armed.expect("both are honest"));
            assert_eq!(idle, [Pending::Nothing; 2], "and nothing is left to do");
            return;
        }
    }
    panic!("{} and {} frames never arrived", up.expected.len(), down.expected.len());
}

#[test]
fn what_enters_one_end_leaves_the_other_byte_for_byte_and_in_order() {
    for seed in 0..if cfg!(miri) { 1 } else { 12 } {
        println!("seed {seed}");
        round_trips(seed);
    }
}

#[test]
fn a_backend_that_is_replaced_under_traffic_loses_no_frame_that_was_asked_for() {
    let (machine, mut front, mut back) = pair();
    let mut pool = FramePool::new(PoolBudget::new(16 << 20));
    let mut arrived = 0;
    for round in 0..20_usize {
        let frames = (0..10).map(|n| {
            let mut frame = pool.take(60).expect("the pool has room");
            frame.bytes_mut().copy_from_slice(&pattern(round * 10 + n, 60));
            frame
        });
        let mut queue: FrameQueue = frames.collect();
        front.egress(&mut queue, &mut pool).expect("the backend is honest");
        if round % 3 == 0 {
            // The new one finds the ring as the old one left it.
            let (_, events) = machine.channels();
            back = attach(&machine, &mut front, events);
        }
        for frame in take(&mut back, &mut pool) {
            assert_eq!(frame.bytes(), pattern(arrived, 60));
            arrived += 1;
            pool.recycle(frame);
        }
    }
    assert_eq!(arrived, 200);
}

#[test]
fn frames_of_one_size_arrive_in_batches_and_cost_few_events() {
    let (_machine, mut front, mut back) = pair();
    let mut pool = FramePool::new(PoolBudget::new(16 << 20));
    let mut frames: FrameQueue =
        (0..640).map(|_| pool.take(60).expect("the pool has room")).collect();
    let mut batches = 0;
    let mut arrived = 0;
    while arrived < 640 {
        front.egress(&mut frames, &mut pool).expect("the backend is honest");
        let batch = take(&mut back, &mut pool);
        arrived += batch.len();
        batches += 1;
        batch.into_iter().for_each(|frame: Frame| pool.recycle(frame));
    }
    assert_eq!(batches, 10);
}
