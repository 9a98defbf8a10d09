//! Where the backend's workers serve vifs with one queue.

use ringway_e2e::host::{Host, SOON, describe};
use ringway_e2e::shared_turn;
use ringway_e2e::traffic::{Iperf, UNTIL_STOPPED};

/// The workers that serve the first queues of two guests.
fn workers(host: &Host) -> Option<[usize; 2]> {
    let of = |vif| host.vif(vif)?.queues.first().map(|queue| queue.worker);
    Some([of("vif1.0")?, of("vif2.0")?])
}

#[test]
fn guests_with_one_queue_that_talk_to_each_other_come_to_share_a_worker() {
    let Some(_turn) = shared_turn(&["iperf3", "ping"]) else { return };
    let guests = [("a", "", "queues = 1"), ("b", "", "queues = 1")];
    let host = Host::start(&describe("workers = 2", &guests));
    host.ping("a", "10.77.0.2");
    let [a, b] = workers(&host).expect("both are connected");
    assert_ne!(a, b, "without traffic, each has a worker of its own");
    // Enough to justify a move, and so little that no worker is ever saturated.
    let options = ["-u", "-b", "60M", "-l", "1000"];
    let transfer = Iperf::start_with(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED, &options);
    host.wait("a common worker", 6 * SOON, |host| workers(host).filter(|[a, b]| a == b));
    drop(transfer);
    host.ping("a", "10.77.0.2");
}
