//! A guest that has its backend keep its pages mapped.

use ringway_e2e::host::{Host, SOON, describe, send};
use ringway_e2e::shared_turn;
use ringway_e2e::traffic::{Iperf, UNTIL_STOPPED};
use rustix::process::Signal;

/// Pages of the rings of a queue, and of the slabs that each queue sends from, if there is room for
/// these.
const PAGES: [usize; 2] = [512, 240];

/// The mapped pages of guest `a`, if both ends agree about them.
fn mapped(host: &Host) -> Option<usize> {
    let vif = host.vif("vif1.0").filter(|vif| vif.state == "Connected")?;
    let guest = host.guest("a")?;
    (guest.vifs.first()?.staged_pages == vif.staged_pages).then_some(vif.staged_pages)
}

#[test]
fn pages_stay_mapped_while_the_backend_lives_and_again_when_the_guest_connects_again() {
    let Some(_turn) = shared_turn(&["iperf3"]) else { return };
    let guests = [("a", "", "queues = 2\nstaging = true"), ("b", "", "queues = 2")];
    let host = Host::start(&describe("max-queues = 2", &guests));
    let all = |queues: usize| {
        let [rings, slabs] = PAGES.map(|pages| queues * pages);
        move |host: &Host| mapped(host).filter(|pages| [rings, rings + slabs].contains(pages))
    };
    let pages = host.wait("the pages", SOON, all(2));
    let shown = host.text(&["vif", "show", "vif1.0"]);
    assert!(shown.contains(&format!("staged pages      {pages}\n")), "{shown}");
    assert_eq!(host.vif("vif2.0").map(|vif| vif.staged_pages), Some(0), "it has not asked");
    let ways = [("a", ("b", "10.77.0.2")), ("b", ("a", "10.77.0.1"))];
    for (restarts, (from, to)) in (1_u64..).zip(ways) {
        let transfer = Iperf::start(&host, from, to, UNTIL_STOPPED);
        transfer.expect_progress(&host);
        send(host.pid_of("backend"), Signal::KILL);
        host.wait("the restart", SOON, |host| {
            host.event("backend-restarted").filter(|event| event["restarts"] == restarts)
        });
        transfer.expect_progress(&host);
    }
    assert_eq!(host.vif("vif1.0").map(|vif| vif.staged_pages), Some(0), "none is known");
    host.text(&["guest", "set", "a", "queues", "1"]);
    host.wait("the pages of one queue", SOON, all(1));
}
