//! The path of a frame over two workers does not allocate once they have warmed up. This test is
//! alone in its program, because the count covers the whole program.

#[path = "worker/double.rs"]
#[allow(dead_code, reason = "this suite uses a part of it")]
mod double;

use std::alloc::System;
use std::sync::Arc;

use ringway_datapath::MacAddr;
use ringway_switch::{PortId, Switch, SwitchConfig, Ticks};
use ringway_worker::{Forwarding, Policy, Workers};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use double::{Peer, attachment, config, mac, port};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Frames of one burst: more than a queue takes before it holds its senders.
const BURST: u32 = 1000;

#[test]
fn forwarding_a_frame_allocates_nothing() {
    let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
    let switch = Arc::new(Switch::new(SwitchConfig::unlimited(64, 16, 1)));
    let forwarding = Forwarding::Switch(Arc::clone(&switch));
    // Ports 1 and 3 are on one worker, port 2 is on the other.
    let peers: Vec<Peer> = (1..=3)
        .map(|number| {
            let (queue, peer) = port();
            let id = PortId(number.into());
            switch.fdb().learn(MacAddr(mac(number)), id, Ticks(0));
            workers.attach(id, &forwarding, vec![attachment(queue)]).expect("attached");
            peer
        })
        .collect();
    let mut sent = 0;
    let mut round = || {
        peers[0].send_flow(1, 2, 0, sent, BURST);
        peers[1].send_flow(2, 3, 1, sent, BURST);
        peers[2].send_flow(3, 1, 2, sent, BURST);
        sent += BURST;
        for peer in &peers {
            peer.wait_until("a burst", |far| far.received == u64::from(sent));
        }
    };
    // Slow ones first, so that every queue and pool has been as full as it can be.
    for peer in &peers {
        peer.far().room_per_poll = 2;
    }
    (0..3).for_each(|_| round());
    for peer in &peers {
        peer.far().room_per_poll = 0;
        peer.far().room = usize::MAX;
    }
    (0..20).for_each(|_| round());
    let region = Region::new(HEAP);
    (0..200).for_each(|_| round());
    let change = region.change();
    // How full queues become depends on how the threads run, so that a list may still grow once;
    // 600,000 frames have passed.
    let count = change.allocations + change.reallocations;
    assert!(count < 32, "{count} allocations, {change:?}");
}
