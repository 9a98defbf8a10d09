//! What full queues do to their senders: they hold them while they drain, and release them when
//! they stall.

use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::QueueCounters;
use ringway_switch::PortId;
use ringway_worker::gauge::LOW;
use ringway_worker::{Forwarding, Policy, Workers};

use crate::double::{
    EVERYONE, LEN_MIN, PATIENCE, Peer, Scripted, TestPort, attachment_counting, config, port,
};
use crate::order::{learn, switch};

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
fn many_sources_of_a_slow_queue_are_held_and_nothing_is_lost() {
    // In each case: 60 sources, some of which share the sink's worker, and a sink with room for a
    // few frames per poll.
    for (workers, room) in [(1, 5), (2, 5), (3, 64), (2, 1)] {
        let mut workers = Workers::start(config(workers, Policy::Static)).expect("threads");
        let (sink, sink_drops) = attach(&mut workers, 100, 1);
        sink.far().room_per_poll = room;
        let sources: Vec<_> = (1..=60).map(|id| attach(&mut workers, id, 100)).collect();
        for (flow, (source, _)) in (0..).zip(&sources) {
            source.send_flow(1, 100, flow, 0, 300);
        }
        sink.wait_until("all frames", |far| far.received == 60 * 300);
        assert_eq!(sink.far().reordered, 0);
        assert_eq!(dropped(&sink_drops), 0);
        assert!(sources.iter().all(|(_, counters)| dropped(counters) == 0));
    }
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
fn sources_of_a_stalled_queue_continue_to_other_queues() {
    for count in [1, 2, 3] {
        let mut workers = Workers::start(config(count, Policy::Static)).expect("threads");
        // One source on a worker of its own, and one at each sink, all with both destinations.
        let switch = switch(1);
        for number in 1..=3 {
            learn(&switch, number);
        }
        let forwarding = Forwarding::Switch(switch);
        let mut stations = Vec::new();
        for number in 1..=3_u16 {
            let (queue, peer) = port();
            let counters: Arc<QueueCounters> = Arc::default();
            let queue = attachment_counting(queue, &counters);
            workers.attach(PortId(number), &forwarding, vec![queue]).expect("attached");
            stations.push((peer, counters));
        }
        let [(source, _), (still, still_drops), (good, good_drops)] = &stations[..] else {
            unreachable!("three were attached")
        };
        still.stop_draining();
        let frames = 5000;
        source.send((0..frames).flat_map(|sequence| {
            [2, 3].map(|to| Scripted { to, from: 1, flow: to.into(), sequence, len: LEN_MIN })
        }));
        // A worker that gets no CPU for a while is like a queue that stands still, and loses some.
        good.wait_until("all frames of the good one", |far| {
            far.received + dropped(good_drops) == frames.into()
        });
        let low = u64::try_from(LOW.frames).unwrap();
        assert!(good.far().received >= low, "it gets no more than one that stands still");
        let deadline = Instant::now() + PATIENCE;
        while u64::from(frames) - dropped(still_drops) >= low {
            assert!(Instant::now() < deadline, "more is kept for a queue that stands still");
            std::thread::yield_now();
        }

        // It drains again: the kept frames come first, and then new ones, without another loss.
        still.grant(usize::MAX);
        still.wait_until("what was kept", |far| {
            far.received + dropped(still_drops) == frames.into()
        });
        let kept = still.far().received;
        assert!(0 < kept && kept < low, "{kept} frames were kept");
        let before = dropped(still_drops);
        source.send_flow(1, 2, 2, frames, 1000);
        still.wait_until("new frames", |far| far.received == kept + 1000);
        assert_eq!(dropped(still_drops), before);
        assert_eq!(still.far().reordered, 0);
    }
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
