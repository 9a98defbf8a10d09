//! A sender that waits for its frames to leave is notified of every end that a frame can have here.

use ringway_switch::PortId;
use ringway_worker::{Forwarding, Policy, Workers};

use crate::double::{EVERYONE, Peer, TestPort, attachment, config, port};
use crate::order::switch;

fn attach(workers: &mut Workers<TestPort>, id: u16, forwarding: &Forwarding) -> Peer {
    let (queue, peer) = port();
    workers.attach(PortId(id), forwarding, vec![attachment(queue)]).expect("attached");
    peer
}

/// Runs a source and a sink on one worker, and then on two.
fn pairs(mut run: impl FnMut(&mut Workers<TestPort>, Peer, Peer)) {
    for count in [1, 2] {
        let mut workers = Workers::start(config(count, Policy::Static)).expect("threads");
        let sink = attach(&mut workers, 2, &Forwarding::Patch(PortId(1)));
        let source = attach(&mut workers, 1, &Forwarding::Patch(PortId(2)));
        run(&mut workers, source, sink);
    }
}

#[test]
fn a_frame_that_leaves_returns_its_receipt() {
    pairs(|_, source, sink| {
        source.expect_receipts(1000);
        source.send_flow(1, 2, 0, 0, 1000);
        sink.wait_until("all frames", |far| far.received == 1000);
        assert_eq!(sink.far().receipted, 1000);
        source.wait_until_held(0);
    });
}

#[test]
fn each_copy_of_a_flood_has_the_receipt() {
    let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
    let forwarding = Forwarding::Switch(switch(1));
    let peers: Vec<Peer> = (1..=4).map(|id| attach(&mut workers, id, &forwarding)).collect();
    peers[0].expect_receipts(20);
    peers[0].send_flow(1, EVERYONE, 0, 0, 20);
    for peer in &peers[1..] {
        peer.wait_until("its copies", |far| far.received == 20);
        assert_eq!(peer.far().receipted, 20);
    }
    peers[0].wait_until_held(0);
}

#[test]
fn a_sender_that_waits_for_a_stalled_queue_is_released_and_loses_no_frames() {
    pairs(|_, source, sink| {
        sink.stop_draining();
        source.expect_receipts(10);
        source.send_flow(1, 2, 0, 0, 10);
        source.wait_until("all are taken in", |far| far.script.is_empty());
        source.wait_until_held(0);
        assert_eq!(sink.far().received, 0);
        sink.grant(usize::MAX);
        sink.wait_until("all frames", |far| far.received == 10);
        assert_eq!(sink.far().receipted, 0);
    });
}

#[test]
fn frames_of_a_detached_port_return_their_receipts() {
    pairs(|workers, source, sink| {
        sink.stop_draining();
        source.expect_receipts(100);
        source.send_flow(1, 2, 0, 0, 100);
        source.wait_until("all are taken in", |far| far.script.is_empty());
        assert_eq!(workers.detach(PortId(2)).len(), 1);
        source.wait_until_held(0);
        // From now on, frames have no destination.
        source.expect_receipts(200);
        source.send_flow(1, 2, 0, 100, 100);
        source.wait_until("all are taken in", |far| far.script.is_empty());
        source.wait_until_held(0);
    });
}

#[test]
fn a_held_source_still_publishes_its_responses() {
    pairs(|_, source, sink| {
        sink.stop_draining();
        source.send_flow(1, 2, 0, 0, 1000);
        source.wait_until("it has been settled", |far| far.settled > 0);
    });
}
