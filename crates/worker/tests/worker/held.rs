//! A source that must wait is still called, with an empty budget: its peer may wait for responses,
//! or for pages.

use ringway_switch::PortId;
use ringway_worker::{Forwarding, Policy, Workers};

use crate::double::{Peer, TestPort, attachment, config, port};

fn attach(workers: &mut Workers<TestPort>, id: u16, forwarding: &Forwarding) -> Peer {
    let (queue, peer) = port();
    workers.attach(PortId(id), forwarding, vec![attachment(queue)]).expect("attached");
    peer
}

#[test]
fn a_held_source_still_publishes_its_responses() {
    // A source and a sink on one worker, and then on two.
    for count in [1, 2] {
        let mut workers = Workers::start(config(count, Policy::Static)).expect("threads");
        let sink = attach(&mut workers, 2, &Forwarding::Patch(PortId(1)));
        let source = attach(&mut workers, 1, &Forwarding::Patch(PortId(2)));
        sink.stop_draining();
        source.send_flow(1, 2, 0, 0, 1000);
        source.wait_until("it has been settled", |far| far.settled > 0);
    }
}
