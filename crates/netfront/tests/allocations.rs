//! The path of a packet through both ends does not allocate once they have warmed up. This test is
//! alone in its program and has no test harness: the count covers the whole program, and a thread
//! of the harness may allocate while a test runs.

#[path = "vif/joined.rs"]
mod joined;
#[path = "../../netback/tests/vif/machine.rs"]
#[allow(dead_code, reason = "each suite uses what it needs")]
mod machine;

use std::alloc::System;

use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, Gso, GsoKind, MIDDLE_LEN, PoolBudget, PortQueue,
};
use ringway_netfront::Slabs;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    if cfg!(miri) {
        println!("SKIPPED: Miri's heap is not the program's");
        return;
    }
    [Ends::Copied, Ends::InPages, Ends::FromPageToPage].into_iter().for_each(measure);
    println!("test a_packet_takes_nothing_from_the_heap ... ok");
}

/// How the ends of long frames travel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// In private memory.
    Copied,
    /// In granted pages in the guest, and in private memory in the backend.
    InPages,
    /// In granted pages everywhere: the backend copies them from page to page.
    FromPageToPage,
}

fn measure(ends: Ends) {
    let (machine, mut front, mut back) = joined::pair();
    let are_in_pages = ends != Ends::Copied;
    let is_lending = ends == Ends::FromPageToPage;
    if is_lending {
        back.lend_pages(machine.memory());
    }
    let slabs = Slabs::new(&mut machine.grants(), machine::HOST).expect("the guest has memory");
    let mut page_pool = are_in_pages.then(|| slabs.page_pool());
    if are_in_pages {
        front.receive_in_place().expect("the test has descriptors");
        front.send_from(&slabs);
    }
    let mut pool = FramePool::new(PoolBudget::new(16 << 20));
    let (mut up, mut down) = (FrameQueue::new(), FrameQueue::new());
    let mut frames = FrameBatch::new();
    let mut packets = 0;
    let mut lent = 0;

    let mut round = |packets: &mut usize, lent: &mut usize| {
        for len in [60, 1514, 9000, 65_000] {
            for _ in 0..2 {
                let mut frame = pool.take(len).expect("the pool has room");
                if let (Some(page_pool), 65_000) = (&mut page_pool, len) {
                    let mut end = page_pool.take().expect("few are in use");
                    end.truncate(len - MIDDLE_LEN);
                    frame.set_len(MIDDLE_LEN);
                    frame.set_end(end);
                }
                frame.offload.gso =
                    (len > 1514).then_some(Gso { kind: GsoKind::TcpV4, size: 1448 });
                up.push_back(frame);
            }
        }
        front.egress(&mut up, &mut pool).expect("the backend is honest");
        back.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the frontend is honest");
        *lent += frames.iter().filter(|frame| frame.is_lent()).count();
        down.extend(frames.drain(..));
        back.egress(&mut down, &mut pool).expect("the frontend is honest");
        for frame in &mut down {
            pool.complete(frame).expect("the frontend is honest");
        }
        back.settle(&mut pool).expect("the frontend is honest");
        pool.end_loans();
        front.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the backend is honest");
        *packets += frames.len();
        frames.drain(..).for_each(|frame| pool.recycle(frame));
        front.arm().expect("the backend is honest");
        back.arm().expect("the frontend is honest");
    };

    for _ in 0..20 {
        round(&mut packets, &mut lent);
    }
    (packets, lent) = (0, 0);
    let region = Region::new(HEAP);
    for _ in 0..1000 {
        round(&mut packets, &mut lent);
    }
    let change = region.change();
    assert_eq!(packets, 8000);
    assert_eq!(lent > 0, is_lending, "{lent}");
    assert_eq!((change.allocations, change.reallocations, change.deallocations), (0, 0, 0));
}
