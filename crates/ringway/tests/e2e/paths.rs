//! The paths that a frame can take: with or without offloads, one event channel or two, switch,
//! bridge, uplink, and each placement of queues on workers.

use ringway_e2e::host::{Host, describe};
use ringway_e2e::shared_turn;
use ringway_e2e::traffic::{Iperf, UNTIL_STOPPED, random_file, send_file};

const PLAIN: &str = "queues = 2\nsg = false\ncsum = false\ngso = false";
const FULL: &str = "queues = 2";
const COMPLETE: &str = "queues = 2\noffloads = \"none\"";

#[test]
fn files_arrive_unchanged_with_every_combination_of_offloads() {
    let Some(_turn) = shared_turn(&["socat"]) else { return };
    for (host_keys, a, b) in [
        ("max-queues = 2", PLAIN, PLAIN),
        ("max-queues = 2", FULL, PLAIN),
        ("max-queues = 2", COMPLETE, FULL),
        ("max-queues = 2", FULL, COMPLETE),
        ("max-queues = 2", FULL, "queues = 2\ngso = false"),
        ("max-queues = 2\nsg = false\ncsum = false\ngso = false", FULL, FULL),
        ("max-queues = 2\nsplit-event-channels = false", FULL, FULL),
        ("max-queues = 2\nbalance-flows = true", FULL, FULL),
    ] {
        let host = Host::start(&describe(host_keys, &[("a", "", a), ("b", "", b)]));
        let file = host.file("sent");
        random_file(&file, 4);
        for (from, to, address) in [
            ("a", "b", "10.77.0.2"),
            ("b", "a", "10.77.0.1"),
            ("a", "b", "fd77::2"),
            ("b", "a", "fd77::1"),
        ] {
            let is_same = send_file(&host, from, to, address, &file);
            assert!(is_same, "{host_keys} {a} {b}: {from} to {address}");
        }
        let is_split = !host_keys.contains("split");
        let node = "/local/domain/1/device/vif/0/queue-0/event-channel";
        let mut store = host.store();
        assert_eq!(store.read(node).expect("readable").is_none(), is_split);
        let vif = host.vif("vif1.0").expect("it is there");
        assert_eq!(vif.flows_moved.is_some(), host_keys.contains("balance"));
        let offloads = vif.offloads;
        let is_plain = a == PLAIN || host_keys.contains("gso");
        assert_eq!(offloads.is_empty(), is_plain, "{offloads:?}");
        assert_eq!(offloads == ["sg"], a == COMPLETE, "{offloads:?}");
    }
}

/// Sends some megabytes from `b` to `a`.
fn carry(host: &Host) {
    let address = ("b", "10.77.0.2");
    let transfer = Iperf::start_with(host, "a", address, UNTIL_STOPPED, &["-P", "4"]);
    transfer.expect_progress(host);
    transfer.stop();
}

#[test]
fn guests_on_a_linux_bridge_reach_each_other_and_the_host() {
    let Some(_turn) = shared_turn(&["iperf3", "ping"]) else { return };
    let vif = "queues = 2\nbridge = \"ringway-e2e\"";
    let guests = describe("max-queues = 2", &[("a", "", vif), ("b", "", vif)]);
    let bridge = "[[bridge]]\nname = \"ringway-e2e\"\naddresses = [\"10.77.0.254/24\"]\n";
    let host = Host::start(&(guests + bridge));
    host.ping("a", "10.77.0.2");
    host.ping("a", "10.77.0.254");
    carry(&host);
    assert_eq!(host.vif("vif1.0").expect("it is there").attached_to, "ringway-e2e");
}

#[test]
fn guests_reach_the_host_over_the_uplink() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let guests = describe("max-queues = 2", &[("a", "", FULL), ("b", "", FULL)]);
    let uplink = "[uplink]\nname = \"ringway-e2e\"\n\
                  addresses = [\"10.77.0.254/24\", \"fd77::fe/64\"]\n";
    let host = Host::start(&(guests + uplink));
    for guest in ["a", "b"] {
        host.ping(guest, "10.77.0.254");
    }
    let status = host.backend().expect("it replies");
    let uplink = status.uplink.expect("there is one");
    assert!(uplink.queues.iter().map(|queue| queue.rx_packets).sum::<u64>() >= 4, "{uplink:?}");
}

#[test]
fn every_placement_of_queues_on_workers_carries_traffic() {
    let Some(_turn) = shared_turn(&["iperf3"]) else { return };
    for policy in ["per-queue", "static", "balanced"] {
        for workers in [1, 2, 4] {
            let keys = format!("max-queues = 4\npolicy = \"{policy}\"\nworkers = {workers}");
            let vif = "queues = 4";
            let host = Host::start(&describe(&keys, &[("a", "", vif), ("b", "", vif)]));
            carry(&host);
            let status = host.backend().expect("it replies");
            assert_eq!(status.policy, policy);
            if workers == 1 && policy != "per-queue" {
                // One worker serves both guests, so frames can go from page to page.
                let queues = host.vif("vif2.0").expect("it is there").queues;
                let (long, lent): (Vec<_>, Vec<_>) =
                    queues.iter().map(|queue| (queue.tx_long, queue.tx_lent)).unzip();
                let (long, lent): (u64, u64) = (long.iter().sum(), lent.iter().sum());
                assert!((1..=long).contains(&lent), "{keys}: {lent} of {long}");
            }
            let least = if policy == "per-queue" { 8 } else { workers };
            assert!(status.workers.len() >= least, "{keys}: {:?}", status.workers);
        }
    }
}
