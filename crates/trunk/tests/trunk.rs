//! A frontend and a backend, joined by a trunk like two processes: what enters one end leaves the
//! other, and a tenant that writes anything anywhere loses only its own queue.

use std::sync::Arc;

use ringway_datapath::{
    Budget, Frame, FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending, PoolBudget, PortQueue,
    QueueCounters, QueueDown, Woken,
};
use ringway_hypervisor::{
    Access, EventChannel, ForeignMemory, GrantCopy, GrantStatus, GrantTable, QueueEvents,
};
use ringway_netback::{FrontendFeatures, QueueParts};
use ringway_trunk::{
    End, PEER, QUEUES_MAX, SwitchQueue, TenantQueue, Trunk, TrunkEvent, TrunkGrants, TrunkMemory,
    queue_pages,
};
use ringway_wire::{GrantRef, PAGE_SIZE};
use rustix::fs::ftruncate;

type Front = ringway_netfront::VifQueue<TrunkGrants, TrunkEvent>;
type Back = ringway_netback::VifQueue<TrunkMemory, TrunkEvent>;

fn front(queue: TenantQueue) -> Front {
    let counters = Arc::new(QueueCounters::default());
    let mut front = Front::new(queue.grants, PEER, queue.events, counters).expect("pages for it");
    front.set_caps(OffloadCaps::ALL);
    front
}

fn back(queue: SwitchQueue) -> Back {
    let SwitchQueue { memory, tx_ring, rx_ring, events } = queue;
    let features = FrontendFeatures { caps: OffloadCaps::ALL, rx_notify: true };
    let parts = QueueParts::new(PEER, memory, [tx_ring, rx_ring], events, features);
    Back::attach(parts).expect("the rings are sound")
}

/// The ends of a trunk, passed as descriptors as between processes.
fn ends(queues: u16) -> (End, End) {
    let (tenant, switch) = Trunk::make(queues).expect("memory").split().expect("descriptors");
    let pass = |end: End| {
        let fds: Vec<_> =
            end.fds().iter().map(|fd| fd.try_clone_to_owned().expect("a copy")).collect();
        End::from_fds(fds).expect("as many as there were")
    };
    (pass(tenant), pass(switch))
}

fn frames(pool: &mut FramePool, lens: &[usize]) -> FrameQueue {
    let frame = |(seed, len): (usize, &usize)| {
        let mut frame = pool.take(*len).expect("the pool has room");
        let bytes: Vec<u8> =
            (0..*len).map(|n| u8::try_from((n + 7 * seed) % 251).unwrap_or(0)).collect();
        frame.bytes_mut().copy_from_slice(&bytes);
        frame
    };
    lens.iter().enumerate().map(frame).collect()
}

fn take(port: &mut impl PortQueue, pool: &mut FramePool) -> Vec<Vec<u8>> {
    let mut batch = FrameBatch::new();
    port.ingress(Budget::BATCH, pool, &mut batch).expect("both ends are honest");
    batch.into_iter().map(|frame: Frame| frame.bytes().to_vec()).collect()
}

#[test]
fn frames_cross_each_queue_unchanged() {
    let (tenant, switch) = ends(3);
    // The tenant makes its rings before the switch process reads them.
    let fronts: Vec<Front> =
        tenant.into_tenant_queues().expect("mapped").into_iter().map(front).collect();
    for (number, queue) in switch.into_switch_queues().expect("mapped").iter().enumerate() {
        let config = fronts[number].config();
        let first = u32::try_from(queue_pages(number).start).expect("a small number");
        assert_eq!([config.tx_ring_ref.0, config.rx_ring_ref.0], [first, first + 1]);
        drop(queue.events.ack());
    }
}

#[test]
fn frames_cross_in_both_directions_and_wake_the_other_end() {
    let (tenant, switch) = ends(2);
    let mut fronts: Vec<Front> =
        tenant.into_tenant_queues().expect("mapped").into_iter().map(front).collect();
    let mut backs: Vec<Back> =
        switch.into_switch_queues().expect("mapped").into_iter().map(back).collect();
    let mut pool = FramePool::new(PoolBudget::new(32 << 20));
    let lens = [60, 1514, 4096, 4097, 65_000, 14];
    for (front, back) in fronts.iter_mut().zip(&mut backs) {
        for _ in 0..40 {
            assert_eq!(back.arm().expect("honest"), Pending::Nothing);
            let mut leaving = frames(&mut pool, &lens);
            let sent: Vec<Vec<u8>> = leaving.iter().map(|frame| frame.bytes().to_vec()).collect();
            front.egress(&mut leaving, &mut pool).expect("honest");
            back.woken(Woken::Unknown).expect("an event came");
            assert_eq!(take(back, &mut pool), sent);
            let mut leaving = frames(&mut pool, &lens);
            back.egress(&mut leaving, &mut pool).expect("honest");
            front.woken(Woken::Unknown).expect("an event came");
            assert_eq!(take(front, &mut pool), sent);
        }
    }
}

#[test]
fn the_memory_of_a_trunk_cannot_be_resized() {
    let (tenant, _switch) = ends(1);
    let memory = tenant.fds()[0];
    assert!(ftruncate(memory, 0).is_err());
    assert!(ftruncate(memory, 1 << 30).is_err());
    assert_eq!(ends(0).0.queue_count(), 1);
    assert_eq!(ends(1000).0.queue_count(), usize::from(QUEUES_MAX));
}

#[test]
fn a_page_outside_the_trunk_is_refused() {
    let (_tenant, switch) = ends(1);
    let mut queue = switch.into_switch_queues().expect("mapped").pop().expect("one");
    let end = u32::try_from(queue_pages(1).start).expect("a small number");
    for (gref, offset, len, expected) in [
        (0, 0, 16, GrantStatus::Okay),
        (end - 1, 4080, 16, GrantStatus::Okay),
        (end - 1, 4081, 16, GrantStatus::BadCopyArg),
        (0, u16::MAX, u16::MAX, GrantStatus::BadCopyArg),
        (end, 0, 16, GrantStatus::BadGrantRef),
        (u32::MAX, 0, 16, GrantStatus::BadGrantRef),
    ] {
        let mut ops = [GrantCopy {
            gref: GrantRef(gref),
            offset,
            len,
            local: 0,
            local_offset: 0,
            status: GrantStatus::GeneralError,
        }];
        let mut locals = [[0_u8; 65_535]];
        queue.memory.copy_from_peer(PEER, &mut ops, &mut locals).expect("each for itself");
        assert_eq!(ops[0].status, expected, "{gref} {offset} {len}");
        queue.memory.copy_to_peer(PEER, &mut ops, &locals).expect("each for itself");
        assert_eq!(ops[0].status, expected, "{gref} {offset} {len}");
        let mapped = queue.memory.map(PEER, GrantRef(gref), Access::ReadWrite);
        assert_eq!(mapped.is_ok(), gref < end, "{gref}");
    }
}

#[test]
fn random_writes_of_a_tenant_cost_only_its_queue() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (tenant, switch) = ends(1);
        let mut tenant = tenant.into_tenant_queues().expect("mapped").pop().expect("one");
        let all = tenant.grants.share(PEER, queue_pages(1).start, Access::ReadWrite);
        let pages = all.expect("all pages are the tenant's").pages;
        let mut back = back(switch.into_switch_queues().expect("mapped").pop().expect("one"));
        let mut pool = FramePool::new(PoolBudget::new(8 << 20));
        let mut rounds = 0;
        let down = loop {
            for _ in 0..random.usize(0..40) {
                // Rings, most of the time, and their indices, often.
                let end = [16, 2 * PAGE_SIZE, pages.len()][random.usize(0..3)];
                let offset = random.usize(0..end / 4) * 4;
                pages
                    .write(offset, if random.bool() { random.u32(0..300) } else { random.u32(..) });
            }
            let mut leaving = frames(&mut pool, &[60, 9000]);
            let mut entered = FrameBatch::new();
            let moved = back
                .ingress(Budget::BATCH, &mut pool, &mut entered)
                .and_then(|()| back.egress(&mut leaving, &mut pool))
                .and_then(|()| back.arm().map(drop));
            for frame in entered.into_iter().chain(leaving.drain(..)) {
                pool.recycle(frame);
            }
            rounds += 1;
            match moved {
                Err(down) => break Some(down),
                Ok(()) if rounds > 1000 => break None,
                Ok(()) => {}
            }
        };
        // Whatever it is, it is the tenant's fault and not ours.
        assert!(!matches!(down, Some(QueueDown::Host(_))), "{down:?}");
    }
}

#[test]
fn unread_events_block_neither_end() {
    let (tenant, switch) = ends(1);
    let mut tenants = tenant.into_tenant_queues().expect("mapped");
    let mut switches = switch.into_switch_queues().expect("mapped");
    let (QueueEvents::Single(ours), QueueEvents::Single(theirs)) =
        (tenants.remove(0).events, switches.remove(0).events)
    else {
        panic!("a trunk has one channel for each queue");
    };
    // Flags of the tenant's end are the tenant's: those of the other end stay as they are.
    rustix::io::ioctl_fionbio(ours.waker().expect("a socket"), false).expect("it may");
    for _ in 0..100_000 {
        theirs.notify().expect("it never waits");
    }
    assert!(!theirs.ack().expect("nothing came"), "and nothing waits here either");
    assert!(ours.ack().expect("something came"));
    for _ in 0..100_000 {
        ours.notify().expect("it never waits");
    }
    assert!(theirs.ack().expect("something came"));
    drop(ours);
    let gone = theirs.notify().expect_err("the other end is gone");
    assert_eq!(gone.kind(), std::io::ErrorKind::NotConnected);
    theirs.ack().expect("that is not an error here");
}
