//! The path of a frame through both ends allocates nothing once they have warmed up. This test has
//! its own program without the test harness: the count is that of the whole program, and the
//! harness has a thread that may allocate while a test runs.

#[path = "pair/joined.rs"]
mod joined;

use std::alloc::System;

use ringway_datapath::{Budget, FrameBatch, FramePool, FrameQueue, PoolBudget, PortQueue};
use ringway_wire::virtio::{
    Features, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_RING_F_EVENT_IDX,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use joined::Joined;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Attempts to observe a stretch without any allocation.
const ATTEMPTS: usize = 10;

fn main() {
    if cfg!(miri) {
        println!("SKIPPED: Miri's heap is not the program's");
        return;
    }
    let split = Features::of(&[VIRTIO_F_VERSION_1, VIRTIO_RING_F_EVENT_IDX]);
    let mergeable = split.or(Features::of(&[VIRTIO_NET_F_MRG_RXBUF]));
    for features in [split, mergeable, mergeable.or(Features::of(&[VIRTIO_F_RING_PACKED]))] {
        measure(features);
    }
    println!("test a_frame_takes_nothing_from_the_heap ... ok");
}

fn measure(features: Features) {
    let Joined { mut front, mut back, .. } = Joined::new(features, 256, 65_000);
    let mut pool = FramePool::new(PoolBudget::new(16 << 20));
    let (mut up, mut down) = (FrameQueue::new(), FrameQueue::new());
    let mut frames = FrameBatch::new();
    let mut packets = 0;
    let mut round = |packets: &mut usize| {
        for len in [60, 1514, 9000, 65_000] {
            for _ in 0..2 {
                up.push_back(pool.take(len).expect("the pool has room"));
            }
        }
        front.egress(&mut up, &mut pool).expect("the device is honest");
        back.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the driver is honest");
        down.extend(frames.drain(..));
        back.egress(&mut down, &mut pool).expect("the driver is honest");
        for frame in &mut down {
            pool.complete(frame).expect("the driver is honest");
        }
        back.settle(&mut pool).expect("the driver is honest");
        pool.end_loans();
        front.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the device is honest");
        *packets += frames.len();
        frames.drain(..).for_each(|frame| pool.recycle(frame));
        front.arm().expect("the device is honest");
        back.arm().expect("the driver is honest");
    };
    for _ in 0..20 {
        round(&mut packets);
    }
    // The thread that polls event descriptors allocates a little when it starts, perhaps now.
    // Allocations of frames would appear in every attempt.
    let mut last = None;
    let has_rest = (0..ATTEMPTS).any(|_| {
        packets = 0;
        let region = Region::new(HEAP);
        for _ in 0..200 {
            round(&mut packets);
        }
        let change = region.change();
        assert_eq!(packets, 200 * 8);
        last = Some(change);
        change.allocations + change.reallocations == 0
    });
    assert!(has_rest, "{last:?}");
}
