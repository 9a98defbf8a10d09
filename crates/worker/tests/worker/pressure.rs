//! What full queues do to their senders between threads: they wake them, and each copy of a frame
//! arrives or is counted.

use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::QueueCounters;
use ringway_switch::PortId;
use ringway_worker::{Forwarding, Policy, Workers};

use crate::double::{EVERYONE, PATIENCE, Peer, TestPort, attachment_counting, config, port};
use crate::order::switch;

fn attach(workers: &mut Workers<TestPort>, id: u16, to: u16) -> (Peer, Arc<QueueCounters>) {
    let (queue, peer) = port();
    let counters = Arc::default();
    let queue = attachment_counting(queue, &counters);
    workers.attach(PortId(id), &Forwarding::Patch(PortId(to)), vec![queue]).expect("attached");
    (peer, counters)
}

fn dropped(counters: &QueueCounters) -> u64 {
    counters.dropped.snapshot().map(|(_, count)| count).sum()
}

#[test]
fn a_queue_that_drains_in_bursts_wakes_its_sources() {
    // A burst of room comes when all workers sleep, or are about to: a wake-up lost here is lost
    // for good. Only the cost of a stall may depend on when this thread runs.
    let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
    let (sink, sink_drops) = attach(&mut workers, 2, 1);
    let (source, source_drops) = attach(&mut workers, 1, 2);
    sink.stop_draining();
    let frames = 20_000;
    source.send_flow(1, 2, 0, 0, frames);
    for burst in (1..=97).cycle() {
        sink.grant(burst);
        sink.wait_until("room is used, or no frame is left", |far| {
            far.room == 0 || far.received + dropped(&sink_drops) >= frames.into()
        });
        if sink.far().room > 0 {
            break;
        }
    }
    assert_eq!(sink.far().reordered, 0);
    assert_eq!(dropped(&source_drops), 0);
}

#[test]
fn a_broadcast_reaches_every_other_port_once_or_is_counted_there() {
    let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
    let forwarding = Forwarding::Switch(switch(2));
    let (peers, counters): (Vec<Peer>, Vec<Arc<QueueCounters>>) = (1..=6)
        .map(|number| {
            let (queue, peer) = port();
            let counters = Arc::default();
            let queue = attachment_counting(queue, &counters);
            workers.attach(PortId(number), &forwarding, vec![queue]).expect("attached");
            // Full from time to time, which must not cause a second copy.
            peer.far().room_per_poll = 3;
            (peer, counters)
        })
        .unzip();
    peers[0].send_flow(1, EVERYONE, 0, 0, 1000);
    // A copy that found the inbox of another worker full is counted where the frame came from.
    let deadline = Instant::now() + PATIENCE;
    let accounted = || {
        let received: u64 = peers.iter().map(|peer| peer.far().received).sum();
        received + counters.iter().map(|counters| dropped(counters)).sum::<u64>()
    };
    while accounted() < 5 * 1000 {
        assert!(Instant::now() < deadline, "{} of 5000", accounted());
        std::thread::yield_now();
    }
    assert_eq!(accounted(), 5 * 1000);
    assert!(peers.iter().all(|peer| peer.far().reordered == 0));
    assert_eq!(peers[0].far().received, 0);
}
