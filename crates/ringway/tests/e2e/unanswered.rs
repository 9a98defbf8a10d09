//! Guests that wait for their backend: until it has copied what they sent.

use ringway_e2e::host::{Host, SOON, describe};
use ringway_e2e::shared_turn;
use ringway_e2e::traffic::{random_file, send_file};

/// Waits until the backend has no request without a response. Frontends read responses when they
/// send.
fn wait_until_completed(host: &Host) {
    host.wait("all responses", SOON, |host| {
        let mut queues = host.vifs().into_iter().flat_map(|vif| vif.queues);
        queues.all(|queue| queue.tx_unanswered == 0).then_some(())
    });
}

#[test]
fn files_arrive_unchanged_however_few_requests_may_be_unanswered() {
    let Some(_turn) = shared_turn(&["socat"]) else { return };
    for (host_keys, a, b) in [
        ("", "max-unanswered = 1", "max-unanswered = 2\ngso = false"),
        // Guests without offloads get the frames of others cut into segments.
        ("max-queues = 2", "max-unanswered = 2", "sg = false\ncsum = false\ngso = false"),
    ] {
        let host = Host::start(&describe(host_keys, &[("a", "", a), ("b", "", b)]));
        let file = host.file("sent");
        random_file(&file, 8);
        for (from, to, address) in [("a", "b", "10.77.0.2"), ("b", "a", "10.77.0.1")] {
            let is_same = send_file(&host, from, to, address, &file);
            assert!(is_same, "{host_keys} {a} {b}: {from} to {address}");
        }
        wait_until_completed(&host);
    }
}
