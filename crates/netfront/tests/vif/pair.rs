//! Our frontend and our backend, joined by one guest's memory: what enters one side leaves the
//! other, byte for byte and in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use ringway_datapath::{
    Budget, Checksum, End, Frame, FrameBatch, FramePool, FrameQueue, Gso, GsoKind, MIDDLE_LEN,
    Offload, PagePool, Pending, PoolBudget, PortQueue, Wakers, Woken,
};
use ringway_netback::Headroom;
use ringway_netfront::Slabs;
use ringway_sys::SharedPages;
use ringway_sys::poll::wait_readable;
use ringway_wire::netif::HEADROOM_MAX;

use crate::frames::pattern;
use crate::joined::{Back, Front, attach, pair, pair_with};
use crate::machine::HOST;

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
    /// Where long frames are put, if that is in pages.
    page_pool: Option<Box<dyn PagePool>>,
    /// Frames that arrived and were not compared yet.
    held: FrameQueue,
    /// Frames that were sent, and received, with bytes in pages.
    in_pages: [usize; 2],
}

/// Where the ends of long frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Copied,
    InPages,
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
            let end = (len > MIDDLE_LEN).then(|| self.page_pool.as_mut()?.take()).flatten();
            match end {
                None => frame.bytes_mut().copy_from_slice(&bytes),
                Some(mut end) => {
                    end.truncate(len - MIDDLE_LEN);
                    frame.set_len(MIDDLE_LEN);
                    frame.bytes_mut().copy_from_slice(&bytes[..MIDDLE_LEN]);
                    fill(&end, &bytes[MIDDLE_LEN..]);
                    frame.set_end(end);
                    self.in_pages[0] += 1;
                }
            }
            frame.offload = offload;
            self.waiting.push_back(frame);
            self.expected.push_back(Sent { bytes, offload });
        }
    }

    /// Takes frames, and compares all but the newest `held`.
    fn compare(&mut self, frames: FrameBatch, held: usize, pool: &mut FramePool) {
        self.in_pages[1] += frames.iter().filter(|frame| !frame.is_complete()).count();
        self.held.extend(frames);
        while self.held.len() > held {
            let Some(mut frame) = self.held.pop_front() else { return };
            pool.complete(&mut frame).expect("its pages are our own");
            let sent = self.expected.pop_front().expect("nothing arrives that was not sent");
            assert_eq!(frame.bytes(), sent.bytes);
            assert_eq!(frame.offload, sent.offload);
            self.arrived += 1;
            pool.recycle(frame);
        }
    }
}

/// Writes the bytes of an end, as a device does.
fn fill(end: &End, bytes: &[u8]) {
    let pages: &SharedPages =
        end.kept_pages().expect("a slab").memory().downcast_ref().expect("pages of a machine");
    let [piece] = end.pieces() else { panic!("a slab is one piece") };
    assert_eq!(piece.len, bytes.len());
    pages.copy_from(piece.at, bytes);
}

fn take(port: &mut impl PortQueue, pool: &mut FramePool) -> FrameBatch {
    let mut frames = FrameBatch::new();
    port.ingress(Budget::BATCH, pool, &mut frames).expect("both ends are honest");
    frames
}

fn round_trips(seed: u64, ends: Ends) {
    let mut random = Rng::with_seed(seed);
    let headroom: Arc<Headroom> = Arc::default();
    let (machine, mut front, mut back) = pair_with(&headroom);
    // Tight enough to run out at times.
    let mut pool = FramePool::new(PoolBudget::new(24 << 20));
    let (mut up, mut down) = (Lane::default(), Lane::default());
    let slabs = Slabs::new(&mut machine.grants(), HOST).expect("the guest has memory");
    if ends == Ends::InPages {
        front.receive_in_place().expect("the test has descriptors");
        front.send_from(&slabs);
        up.page_pool = Some(slabs.page_pool());
    }
    let rounds = if cfg!(miri) { 30 } else { 300 };
    for round in 0..rounds {
        let is_draining = round > rounds * 2 / 3;
        if random.u8(0..20) == 0 {
            headroom.set([0, 0, 1, 256, HEADROOM_MAX][random.usize(0..5)]);
        }
        match random.u8(0..6) {
            0 if !is_draining && up.waiting.len() < 200 => up.enqueue(&mut random, &mut pool),
            1 if !is_draining && down.waiting.len() < 200 => down.enqueue(&mut random, &mut pool),
            2 => front.egress(&mut up.waiting, &mut pool).expect("the backend is honest"),
            3 => up.compare(take(&mut back, &mut pool), 0, &mut pool),
            4 => back.egress(&mut down.waiting, &mut pool).expect("the frontend is honest"),
            _ => {
                let held = random.usize(0..8);
                down.compare(take(&mut front, &mut pool), held, &mut pool);
            }
        }
    }
    drain(&mut front, &mut back, &mut up, &mut down, &mut pool);
    assert!(up.arrived > rounds && down.arrived > rounds, "{} {}", up.arrived, down.arrived);
    let are_in_pages = [up.in_pages[0], down.in_pages[1]].map(|frames| frames > 0);
    assert!(cfg!(miri) || are_in_pages == [ends == Ends::InPages; 2], "{are_in_pages:?}");
    drop((back, up, down));
    front.close().expect("nothing refers to a page");
    slabs.close(&mut machine.grants()).expect("nothing refers to a slab");
}

/// Serves both ends until nothing waits; after a lost wake-up or page, this would never return.
fn drain(front: &mut Front, back: &mut Back, up: &mut Lane, down: &mut Lane, pool: &mut FramePool) {
    for _ in 0..500 {
        front.egress(&mut up.waiting, pool).expect("the backend is honest");
        up.compare(take(back, pool), 0, pool);
        back.egress(&mut down.waiting, pool).expect("the frontend is honest");
        down.compare(take(front, pool), 0, pool);
        if up.expected.is_empty() && down.expected.is_empty() {
            let idle = [front.arm(), back.arm()].map(|armed| armed.expect("both are honest"));
            assert_eq!(idle, [Pending::Nothing; 2], "and nothing is left to do");
            return;
        }
    }
    panic!("{} and {} frames never arrived", up.expected.len(), down.expected.len());
}

#[test]
fn frames_cross_byte_for_byte_and_in_order() {
    for seed in 0..if cfg!(miri) { 1 } else { 12 } {
        for ends in [Ends::Copied, Ends::InPages] {
            println!("seed {seed}, {ends:?}");
            round_trips(seed, ends);
        }
    }
}

#[test]
fn replacing_the_backend_under_traffic_loses_no_frame() {
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
            back = attach(&machine, &mut front, events, (None, &Arc::default()));
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
fn frames_of_one_size_arrive_in_batches_with_few_events() {
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

/// A frame of 64 KiB that the frontend received and left in its pages.
fn in_place(front: &mut Front, back: &mut Back, pool: &mut FramePool) -> Frame {
    front.receive_in_place().expect("the test has descriptors");
    let frame = pool.take(65_000).expect("the pool has room");
    back.egress(&mut FrameQueue::from([frame]), pool).expect("the frontend is honest");
    let mut frames = take(front, pool);
    assert_eq!(frames.len(), 1);
    assert!(!frames[0].is_complete());
    frames.remove(0)
}

#[test]
fn a_sleeping_queue_is_woken_when_a_frame_is_freed_and_reposts_its_pages() {
    let (_machine, mut front, mut back) = pair();
    let mut pool = FramePool::new(PoolBudget::new(16 << 20));
    let frame = in_place(&mut front, &mut back, &mut pool);
    let rings = |front: &Front| {
        let mut last = false;
        front.wakers(&mut |fd| {
            // waits: this thread made all events, so no other is to come
            last = wait_readable(&fd, Some(Duration::ZERO)).expect("our own descriptor");
        });
        last
    };
    assert_eq!(front.arm().expect("the backend is honest"), Pending::Nothing);
    // All others are posted.
    let mut waiting: FrameQueue =
        (0..16).map(|_| pool.take(65_000).expect("the pool has room")).collect();
    back.egress(&mut waiting, &mut pool).expect("the frontend is honest");
    assert_eq!(waiting.len(), 1);
    assert!(!rings(&front));
    pool.recycle(frame);
    assert!(rings(&front));
    front.woken(Woken::Unknown).expect("the backend is honest");
    assert!(!rings(&front));
    take(&mut front, &mut pool);
    back.egress(&mut waiting, &mut pool).expect("the frontend is honest");
    assert!(waiting.is_empty());
}

#[test]
fn pages_that_a_frame_refers_to_remain_granted() {
    let (_machine, mut front, mut back) = pair();
    let mut pool = FramePool::new(PoolBudget::new(16 << 20));
    let frame = in_place(&mut front, &mut back, &mut pool);
    drop(back);
    assert!(front.close().is_err());
    drop(frame);

    let (machine, mut front, back) = pair();
    let slabs = Slabs::new(&mut machine.grants(), HOST).expect("the guest has memory");
    front.send_from(&slabs);
    let body = slabs.page_pool().take().expect("all of them are free");
    drop(back);
    front.close().expect("nothing refers to a page");
    assert!(slabs.close(&mut machine.grants()).is_err());
    drop(body);
}

#[test]
fn a_queue_that_cannot_be_freed_is_reported_with_a_grant_in_use() {
    let mut reported = Vec::new();
    for is_first_kept in [true, false] {
        let (_machine, mut front, mut back) = pair();
        let mut pool = FramePool::new(PoolBudget::new(16 << 20));
        let first = in_place(&mut front, &mut back, &mut pool);
        let frame = pool.take(65_000).expect("the pool has room");
        back.egress(&mut FrameQueue::from([frame]), &mut pool).expect("the frontend is honest");
        let second = take(&mut front, &mut pool).remove(0);
        assert!(!second.is_complete());
        let (kept, gone) = if is_first_kept { (first, second) } else { (second, first) };
        drop((gone, back));
        reported.push(front.close().expect_err("a frame refers to a page").gref);
        drop(kept);
    }
    assert_ne!(reported[0], reported[1]);
}
