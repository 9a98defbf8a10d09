//! The test's own guests behind vhost-user sockets, and what its front-ends of other files share.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use ringway_e2e::host::{Host, Running, SOON, describe};
use ringway_e2e::machine::EchoConnection;
use ringway_e2e::virtio_guest::{Maker, description, guest_with, kill_backend, wait_for_queues};
use ringway_sys::poll::wait_readable;
use ringway_vhost::{Addresses, RegionKey, Request};
use ringway_vhost_shell::{Connection, Received};
use rustix::event::{EventfdFlags, eventfd};

use crate::vhost::{OPTIONS, PING_MS, Pings};

/// A guest in its own namespaces, with an echo server on TCP port 7.
fn guest(dir: &Path, name: &str, maker: Maker) -> Running {
    guest_with(dir, name, maker, "")
}

#[test]
fn either_end_may_create_the_socket_and_either_may_start_first() {
    let Some(_turn) = ringway_e2e::shared_turn(&["socat", "unshare"]) else { return };
    for maker in [Maker::Backend, Maker::Guest] {
        for is_guest_first in [false, true] {
            let place = tempfile::tempdir().expect("a directory");
            let dir = place.path();
            let mode = if maker == Maker::Backend { "server" } else { "client" };
            let early = is_guest_first.then(|| guest(dir, "vm1", maker));
            let host = Host::start(&description(dir, &[("vm1", mode)]));
            let _guest = early.unwrap_or_else(|| guest(dir, "vm1", maker));
            wait_for_queues(&host, 4);
            let echo = EchoConnection::start(&host, "a");
            echo.expect_progress(&host, &format!("{maker:?} makes the socket"));
            kill_backend(&host);
            echo.expect_progress(&host, "after the backend was killed");
            wait_for_queues(&host, 4);
        }
    }
}

/// A frame that a backend has taken from one queue and not yet put into another is lost with the
/// backend; frames in the guest's queues are not. Frames without a port on the switch are counted.
#[test]
fn frames_in_a_guests_queues_outlive_killed_backends() {
    let Some(_turn) = ringway_e2e::shared_turn(&["socat", "unshare", "ping"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, &[("vm1", "server")]));
    let file = dir.join("pings");
    let ping = format!(
        "(until ping -c1 -W1 10.77.0.1; do :; done; \
         exec ping {OPTIONS} 10.77.0.1 > {}) > {}/first-pings & ",
        file.display(),
        dir.display()
    );
    let _guest = guest_with(dir, "vm1", Maker::Backend, &ping);
    wait_for_queues(&host, 4);
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "at first");
    let pings = Pings::of(&host, file);
    let (mut dropped, mut uncounted) = (0, 0);
    for kill in 1..=KILLS {
        // Each backend has its own counters, and what it drops after they were read has none.
        let read = Instant::now();
        dropped += dropped_by(&host);
        let killed = kill_backend(&host);
        uncounted += 1 + killed.duration_since(read).as_millis() / PING_MS;
        echo.expect_progress(&host, "after the backend was killed");
        wait_for_queues(&host, 4);
        host.wait("the guest to have the same queues", SOON, |_| {
            let log = std::fs::read_to_string(dir.join("guest-log")).expect("it was made");
            (log.matches("with the same queues").count() >= kill).then_some(())
        });
    }
    let (sent, lost) = pings.end();
    dropped += dropped_by(&host);
    println!(
        "{lost} of {sent} pings lost, one each 10 ms, a backend killed {KILLS} times; {dropped} \
         frames dropped and counted, {uncounted} pings before a kill"
    );
    let uncounted = usize::try_from(uncounted).expect("a few");
    assert!(lost <= dropped + uncounted + KILLS * BATCH_MAX, "{lost} lost, {dropped} counted");
}

/// Frames that a backend dropped for any reason, including those for a port that has not
/// reconnected yet.
pub(crate) fn dropped_by(host: &Host) -> usize {
    let vifs = ["vif1.0", "vif2.0", "vm1"].into_iter().filter_map(|name| host.vif(name));
    let drops: Vec<u64> = vifs
        .inspect(|vif| println!("{}: {:?}", vif.name, vif.refused))
        .flat_map(|vif| vif.queues)
        .inspect(|queue| println!("{:?}", queue.dropped))
        .flat_map(|queue| queue.dropped.into_values())
        .collect();
    usize::try_from(drops.into_iter().sum::<u64>()).expect("a few")
}

/// How often a backend is killed.
const KILLS: usize = 3;
/// Frames that a worker takes at once.
pub(crate) const BATCH_MAX: usize = 64;

#[test]
fn a_virtio_vif_has_the_features_of_others() {
    let Some(_turn) = ringway_e2e::shared_turn(&["socat", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let host = Host::start(&description(place.path(), &[("vm1", "server")]));
    let _guest = guest(place.path(), "vm1", Maker::Backend);
    wait_for_queues(&host, 4);
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "at first");

    host.text(&["vif", "set", "vif2.0", "mirror", "vm1"]);
    let before = host.rx_bytes("vif2.0");
    echo.expect_progress(&host, "mirrored");
    host.wait("copies of its frames", SOON, |host| {
        (host.rx_bytes("vif2.0") > before + 100_000).then_some(())
    });
    let refused = |arguments: &[&str]| {
        let output = host.verb(arguments);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let reason = refused(&["vif", "set", "vm1", "mirror", "vif1.0"]);
    assert!(reason.contains("vm1 is mirrored to vif2.0"), "{reason}");
    let reason = refused(&["vif", "set", "vm1", "max-queues", "2"]);
    assert!(reason.contains("ethtool -L"), "{reason}");
    let reason = refused(&["vif", "set", "vm1", "rate", "fast"]);
    assert!(reason.contains("fast"), "{reason}");
    for vif in ["vm1", "vif1.0"] {
        let reason = refused(&["vif", "set", vif, "weight", "0"]);
        assert!(reason.contains("weight: expected a weight from 1 to 1000, not \"0\""), "{reason}");
        let reason = refused(&["vif", "set", vif, "mirror", "nosuch"]);
        assert!(reason.contains("there is no port \"nosuch\": expected all or some"), "{reason}");
    }

    host.text(&["vif", "set", "vm1", "rate", "500Mb/s"]);
    assert!(host.text(&["vif", "show", "vm1"]).contains("500Mb/s"));
    assert!(host.text(&["vif", "stats"]).contains("vm1"));
    assert!(host.text(&["top", "--once"]).contains("vm1"));
    echo.expect_progress(&host, "with a rate");
    kill_backend(&host);
    wait_for_queues(&host, 4);
    assert!(host.text(&["vif", "show", "vm1"]).contains("500Mb/s"), "as a Xen vif keeps its rate");
}

#[test]
fn vifs_are_added_and_removed_at_run_time_and_outlive_a_killed_backend() {
    let Some(_turn) = ringway_e2e::shared_turn(&["socat", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let socket = |name: &str| dir.join(name).display().to_string();
    let nowhere = "[[vhost]]\nname = 'vm5'\nsocket = '/nonexistent/vm5'\nmode = 'server'\n";
    let host = Host::start(&(description(dir, &[("vm0", "client")]) + nowhere));
    host.wait("a warning", SOON, |host| host.log().contains("vm5\"").then_some(()));
    assert!(host.log().contains("waits: /nonexistent/vm5"), "{}", host.log());
    let add = |name: &str, mode: &str, more: &[&str]| {
        let path = socket(name);
        let mut all = vec!["vif", "add", name, "--vhost", &path, "--queues", "4", "--mode", mode];
        all.extend(more);
        host.text(&all);
    };
    for (name, mode, maker) in [("vm1", "client", Maker::Guest), ("vm2", "server", Maker::Backend)]
    {
        add(name, mode, &["--set", "rate=\"500Mb/s\"", "--set", "weight=3"]);
        let guest = guest(dir, name, maker);
        host.wait("four queues", SOON, |host| (host.vif(name)?.queues.len() == 4).then_some(()));
        // The guest before this one had its address.
        host.in_guest("a", &["ip", "neighbour", "flush", "all"]).status().expect("iproute2");
        let echo = EchoConnection::start(&host, "a");
        echo.expect_progress(&host, "with a vif that was added");
        let shown = host.text(&["vif", "show", name]);
        assert!(shown.contains("500Mb/s") && shown.contains("vif add"), "{shown}");
        kill_backend(&host);
        echo.expect_progress(&host, "after the backend was killed");
        let again = host.verb(&["vif", "add", name, "--vhost", &socket("vm9")]);
        assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"), "{again:?}");
        host.text(&["vif", "remove", name]);
        assert!(host.vif(name).is_none());
        assert_eq!(dir.join(name).exists(), maker == Maker::Guest, "whose socket it was");
        drop((echo, guest));
    }
    // Another vif of the same name is a new one; the removed one does not return.
    add("vm1", "server", &[]);
    kill_backend(&host);
    host.wait("the vif", SOON, |host| host.vif("vm1").map(drop));
    assert!(host.vif("vm2").is_none());
    let refused = |arguments: &[&str]| {
        let output = host.verb(arguments);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["vif", "remove", "vm0"]).contains("is in the description"));
    assert!(refused(&["vif", "remove", "vm7"]).contains("no vif \"vm7\" was added"));
    let known = refused(&["vif", "add", "vm3", "--vhost", "/x", "--set", "colour=1"]);
    assert!(known.contains("colour"), "{known}");
    let known = refused(&["vif", "add", "vm3", "--vhost", &socket("none/vm3"), "--mode", "server"]);
    assert!(known.contains("none/vm3"), "{known}");
    let add = ["vif", "add", "vm3", "--vhost", "/x"];
    let twice = refused(&[&add[..], &["--queues", "3", "--set", "queues=2"]].concat());
    assert!(twice.contains("--set queues=2: --queues sets queues, too"), "{twice}");
    let nowhere = refused(&[&add[..], &["--set", "mirror=['vm9']"]].concat());
    assert!(nowhere.contains("there is no port \"vm9\""), "{nowhere}");
    let all = refused(&["vif", "add", "all", "--vhost", "/x"]);
    assert!(all.contains("`all` means all ports"), "{all}");
}

#[test]
fn a_virtio_vif_may_be_on_a_bridge_of_the_host() {
    let Some(_turn) = ringway_e2e::shared_turn(&["socat", "unshare", "nsenter", "ip"]) else {
        return;
    };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let socket = |name: &str| dir.join(name).display().to_string();
    let text = describe("max-queues = 4", &[("a", "", "queues = 4\nbridge = 'br7'")])
        + &format!(
            "[[bridge]]\nname = 'br7'\n[[vhost]]\nname = 'vm1'\nsocket = '{}'\nqueues = 4\n\
             mode = 'server'\nbridge = 'br7'\n",
            socket("vm1")
        );
    let host = Host::start(&text);
    let vm1 = guest(dir, "vm1", Maker::Backend);
    wait_for_queues(&host, 4);
    assert_eq!(host.vif("vm1").expect("it is there").attached_to, "br7");
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "over a bridge");
    kill_backend(&host);
    echo.expect_progress(&host, "after the backend was killed");
    crate::toolstack::ip_ok(&host, "link del vm1");
    echo.expect_progress(&host, "after the device was deleted");
    for (vif, of) in [("vm1", "all"), ("vif1.0", "all")] {
        let refused = host.verb(&["vif", "set", vif, "mirror", of]);
        let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && reason.contains("is on the bridge br7"), "{reason}");
    }
    drop((echo, vm1));

    let path = socket("vm2");
    let add = ["vif", "add", "vm2", "--vhost", &path, "--queues", "4", "--mode", "server"];
    let with = |more: &[&str]| host.verb(&[&add[..], more].concat());
    let refused = with(&["--bridge", "br8"]);
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && reason.contains("on bridge br8"), "{reason}");
    let added = with(&["--bridge", "br7", "--rate", "500Mb/s", "--features", "-in_order,-csum"]);
    assert!(added.status.success(), "{added:?}");
    let _guest = guest(dir, "vm2", Maker::Backend);
    host.wait("four queues", SOON, |host| (host.vif("vm2")?.queues.len() == 4).then_some(()));
    host.in_guest("a", &["ip", "neighbour", "flush", "all"]).status().expect("iproute2");
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "with a vif that was added");
    let virtio = host.vif("vm2").and_then(|vif| vif.virtio).expect("it is of virtio");
    let segmentation = ["host_tso4", "host_tso6", "host_ecn", "host_uso"];
    for feature in ["in_order", "csum", "ring_packed"].into_iter().chain(segmentation) {
        assert!(virtio.not_offered.iter().any(|it| it == feature), "{feature}: {virtio:?}");
    }
    assert_eq!(virtio.not_offered.len(), 7, "{virtio:?}");
    host.text(&["vif", "remove", "vm2"]);
    assert!(host.vif("vm2").is_none());
}

pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor")
}

/// What a front-end sends about one of its rings.
pub(crate) fn ring_requests(ring: u16, call: Option<OwnedFd>, kick: OwnedFd) -> [Request; 5] {
    let start = START + u64::from(ring) * 0x10000;
    let addresses =
        Addresses { descriptor: start, available: start + 0x4000, used: start + 0x8000, log: None };
    [
        Request::SetVringNum { ring, size: 256 },
        Request::SetVringBase { ring, base: 0 },
        Request::SetVringAddr { ring, addresses },
        Request::SetVringCall { ring, file: call },
        Request::SetVringKick { ring, file: Some(kick) },
    ]
}

/// Bytes of its memory.
pub(crate) const LEN: u64 = 1 << 20;
/// Its address for the back-end.
pub(crate) const START: u64 = 1 << 32;
pub(crate) const KEY: RegionKey =
    RegionKey { guest_address: START, size: LEN, user_address: START, file_offset: 0 };

pub(crate) fn wait_for_error(host: &Host, name: &str, text: &str) {
    host.wait(&format!("{name} to say {text:?}"), SOON, |host| {
        host.vif(name)?.error.filter(|error| error.contains(text))
    });
}

/// Waits until the back-end replies.
pub(crate) fn await_reply(connection: &mut Connection) {
    while !matches!(connection.receive().expect("it is whole"), Received::Message(_)) {
        assert!(wait_readable(connection, Some(SOON)).expect("a descriptor"), "no reply");
    }
}
