//! Guests that end while others continue.

use ringway_e2e::host::{Host, SOON, describe, send};
use ringway_e2e::shared_turn;
use ringway_e2e::traffic::{Iperf, UNTIL_STOPPED};
use rustix::process::Signal;

fn three(on_exit: &str) -> String {
    let vif = "queues = 2";
    describe("max-queues = 2", &[("a", "", vif), ("b", "", vif), ("c", on_exit, vif)])
}

#[test]
fn a_killed_guest_vanishes_without_effect_on_others() {
    let Some(_turn) = shared_turn(&["iperf3", "xenstore-read"]) else { return };
    let host = Host::start(&three(""));
    let backend = host.pid_of("backend");
    let transfer = Iperf::start(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED);
    transfer.expect_progress(&host);
    host.ping("a", "10.77.0.3");
    send(host.pid_of("guest c"), Signal::KILL);
    host.wait("its vif to vanish", SOON, |host| host.vif("vif3.0").is_none().then_some(()));
    for path in ["/local/domain/3", "/local/domain/0/backend/vif/3"] {
        host.wait(path, SOON, |host| host.node(path).is_none().then_some(()));
    }
    transfer.expect_progress(&host);
    transfer.stop();
    assert_eq!(host.pid_of("backend"), backend);
    assert_eq!(host.guest("c").map(|guest| guest.pid), None);
}

#[test]
fn vifs_connect_if_the_guest_has_memory_for_their_queues_only() {
    let Some(_turn) = shared_turn(&[]) else { return };
    // 2304 pages. A queue takes 514, and the slabs of a vif, which only serve speed, 240.
    let vifs = "[[guest.vif]]\nqueues = 1\n".repeat(4);
    let guest = format!("[[guest]]\nname = \"a\"\nmemory-mib = 9\n{vifs}");
    let host = Host::start(&format!("[host]\nnetwork = \"private\"\n{guest}"));
    let vifs = host.vifs();
    assert_eq!(vifs.len(), 4);
    assert!(vifs.iter().all(|vif| vif.queues.len() == 1), "{vifs:?}");
    assert_eq!(host.log_count("free pages"), 0, "{}", host.log());
}

#[test]
fn a_restarted_guest_has_the_same_addresses() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&three("on-exit = \"restart\""));
    host.ping("a", "10.77.0.3");
    let before = host.pid_of("guest c");
    send(before, Signal::KILL);
    let event = host.wait("its restart", SOON, |host| host.event("guest-started"));
    assert_eq!((event["name"].as_str(), event["domid"] == 3), (Some("c"), false), "{event}");
    let domid = event["domid"].as_u64().expect("a number");
    host.wait("its vif", SOON, |host| {
        host.vif(&format!("vif{domid}.0")).filter(|vif| vif.state == "Connected")
    });
    host.wait("its frontend", SOON, |host| {
        host.guest("c")?.vifs.pop().filter(|vif| vif.state == "Connected")
    });
    assert_ne!(host.pid_of("guest c"), before);
    host.ping("a", "10.77.0.3");
}
