//! Guests that wait for their backend: until it has copied what they sent, or until the frames have
//! left.

use rustix::process::Signal;

use crate::host::{Host, SOON, describe, send};
use crate::shared_turn;
use crate::traffic::{Iperf, UNTIL_STOPPED, random_file, send_file};

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
        ("completion = \"sent\"", "", ""),
        ("completion = \"sent\"", "max-unanswered = 1", "max-unanswered = 2\ngso = false"),
        ("completion = \"copied\"", "max-unanswered = 2", "completion = \"sent\"\nqueues = 2"),
        // Guests without offloads get the frames of others cut into segments.
        ("completion = \"sent\"\nmax-queues = 2", "", "sg = false\ncsum = false\ngso = false"),
    ] {
        let host = Host::start(&describe(host_keys, &[("a", "", a), ("b", "", b)]));
        let file = host.file("sent");
        random_file(&file, 8);
        for (from, to, address) in [("a", "b", "10.77.0.2"), ("b", "a", "10.77.0.1")] {
            let is_same = send_file(&host, from, to, address, &file);
            assert!(is_same, "{host_keys} {a} {b}: {from} to {address}");
        }
        let vif = host.vif("vif1.0").expect("it is there");
        assert!(host_keys.contains(&vif.completion), "{}", vif.completion);
        if b.contains("completion") {
            assert_eq!(host.vif("vif2.0").expect("it is there").completion, "sent");
        }
        wait_until_completed(&host);
    }
}

#[test]
fn a_guest_with_deferred_responses_survives_a_killed_backend() {
    let Some(_turn) = shared_turn(&["iperf3", "socat"]) else { return };
    let vif = "max-unanswered = 16";
    let host = Host::start(&describe("completion = \"sent\"", &[("a", "", vif), ("b", "", vif)]));
    let transfer = Iperf::start(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED);
    transfer.expect_progress(&host);
    send(host.pid_of("backend"), Signal::KILL);
    host.wait("the backend's restart", SOON, |host| host.event("backend-restarted"));
    transfer.expect_progress(&host);
    transfer.stop();
    wait_until_completed(&host);
    let file = host.file("sent");
    random_file(&file, 1);
    assert!(send_file(&host, "b", "a", "10.77.0.1", &file));
}

#[test]
fn queues_can_be_changed_while_responses_are_deferred() {
    let Some(_turn) = shared_turn(&["iperf3"]) else { return };
    let vif = "max-unanswered = 16";
    let guests = [("a", "", vif), ("b", "", vif)];
    let host = Host::start(&describe("completion = \"sent\"\nmax-queues = 2", &guests));
    let transfer = Iperf::start(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED);
    for count in [1_usize, 2, 1, 2] {
        host.text(&["vif", "set", "vif2.0", "max-queues", &count.to_string(), "--reconnect"]);
        host.wait("its queues", SOON, |host| {
            let vif = host.vif("vif2.0")?;
            (vif.state == "Connected" && vif.queues.len() == count).then_some(())
        });
        transfer.expect_progress(&host);
    }
    transfer.stop();
    wait_until_completed(&host);
}
