//! A vif that receives copies of other vifs' frames, observed by a socket in its guest.

use std::process::Stdio;

use ringway_e2e::host::{Host, Running, SOON, describe, wait_for};
use ringway_e2e::shared_turn;

use crate::rules::{neighbor, refused};

/// Writes a line for each received frame: its addresses, its type, and its content.
const WATCHER: &str = "
import pathlib, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(('eth0', 0))
pathlib.Path(sys.argv[1]).touch()
while True:
    frame, address = s.recvfrom(2000)
    if address[2] != socket.PACKET_OUTGOING:
        with open(sys.argv[1], 'a') as log:
            print(frame[:6].hex(), frame[6:12].hex(), frame[12:64].hex(), file=log)
";

const A: &str = "00163e400100";
const B: &str = "00163e400200";
const M: &str = "00163e400300";
/// An echo request and its reply in IPv4, by protocol and ICMP type.
const ICMP: &str = "0800";

#[test]
fn a_vif_gets_copies_of_others_frames_and_nothing_else() {
    let Some(_turn) = shared_turn(&["bash", "ip", "ping", "python3", "xenstore-read"]) else {
        return;
    };
    let uplink = "[uplink]\naddresses = [\"10.77.0.254/24\"]\n";
    let guests = [("a", "", ""), ("b", "", ""), ("m", "", "")];
    // With one queue, it sees frames in the order in which they came.
    let host = Host::start(&(describe("max-queues = 1", &guests) + uplink));
    let seen = host.file("seen");
    let mut watcher = host.in_guest("m", &["python3", "-c", WATCHER]);
    let _watcher = Running::start(watcher.arg(&seen).stdout(Stdio::null()));
    wait_for("m to watch", SOON, || seen.exists().then_some(()));
    let between = |to: &str, from: &str| {
        let start = format!("{to} {from} {ICMP}");
        let seen = std::fs::read_to_string(&seen).unwrap_or_default();
        seen.lines().filter(|line| line.starts_with(&start)).count()
    };
    let see_more = |what: &str, (to, address): (&str, &str), from: &str| {
        let before = between(to, from);
        wait_for(what, SOON, || {
            host.ping("a", address);
            (between(to, from) > before).then_some(())
        });
    };
    let (to_b, to_m) = ((B, "10.77.0.2"), (M, "10.77.0.3"));
    host.ping("a", "10.77.0.2");
    see_more("what a sends to m", to_m, A);
    assert_eq!((between(B, A), between(A, B)), (0, 0));
    for guest in ["a", "m"] {
        host.guest_text(guest, &["ip", "neigh", "flush", "all"]);
    }

    let is_mirror =
        |host: &Host, of: &[&str]| host.vif("vif3.0").filter(|vif| vif.mirror == of).map(|_| ());
    host.text(&["vif", "set", "vif3.0", "mirror", "vif1.0:tx"]);
    host.wait("the mirror", SOON, |host| is_mirror(host, &["vif1.0:tx"]));
    see_more("what a sends", to_b, A);
    // A reply comes before the next request.
    see_more("what a sends then", to_b, A);
    assert_eq!(between(A, B), 0);
    host.text(&["vif", "set", "vif3.0", "mirror", "all"]);
    host.wait("the mirror", SOON, |host| is_mirror(host, &["all"]));
    see_more("what b sends", (A, "10.77.0.2"), B);
    assert!(host.text(&["vif", "show", "vif3.0"]).contains("mirror            all"));
    // Frames of its guest are dropped, the first a question for an address.
    let before = host.vif("vif3.0").expect("it is listed").refused.get("port_disabled").copied();
    host.guest_text("m", &["bash", "-c", "echo > /dev/udp/10.77.0.1/9"]);
    refused(&host, "vif3.0", "port_disabled", before.unwrap_or(0) + 1);
    assert!(!neighbor(&host, "a", "10.77.0.3").contains("lladdr"));

    for (vif, of, expected) in [
        ("ringway0", "vif1.0", "expected a vif"),
        ("vif3.0", "vif3.0", "copies of its own copies"),
        ("vif1.0", "vif3.0", "vif3.0 is the output of a mirror"),
        ("vif1.0", "vif2.0:in", "such as vif1.0, vif1.0:tx"),
    ] {
        let refused = host.verb(&["vif", "set", vif, "mirror", of]);
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && complaint.contains(expected), "{complaint}");
    }
    // It is an ordinary vif again.
    host.text(&["vif", "set", "vif3.0", "mirror", "none"]);
    host.wait("the end", SOON, |host| is_mirror(host, &[]));
    host.ping("m", "10.77.0.1");
}

#[test]
fn a_mirror_of_a_tenant_gets_frames_of_its_own_vifs_and_its_trunk() {
    let Some(_turn) = shared_turn(&["ip", "ping", "python3"]) else { return };
    let red = "tenant = \"red\"";
    let guests = [("a", "", red), ("b", "", ""), ("m", "", red)];
    let uplink = "[uplink]\naddresses = [\"10.77.0.254/24\"]\n";
    let host = Host::start(&(describe("isolate = true", &guests) + uplink));
    for (of, expected) in [
        ("vif2.0", "vif2.0 is of tenant domain-2, and no process sees frames of another"),
        ("vif1.0,ringway0:tx", "ringway0 is a port of the switch process"),
    ] {
        let refused = host.verb(&["vif", "set", "vif3.0", "mirror", of]);
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && complaint.contains(expected), "{complaint}");
        assert!(complaint.contains("expected vifs of tenant red, or trunk"), "{complaint}");
    }
    let seen = host.file("seen");
    let mut watcher = host.in_guest("m", &["python3", "-c", WATCHER]);
    let _watcher = Running::start(watcher.arg(&seen).stdout(Stdio::null()));
    wait_for("m to watch", SOON, || seen.exists().then_some(()));
    host.text(&["vif", "set", "vif3.0", "mirror", "trunk"]);
    wait_for("what crosses the trunk", SOON, || {
        host.ping("a", "10.77.0.2");
        let seen = std::fs::read_to_string(&seen).unwrap_or_default();
        let has = |to: &str, from: &str| {
            seen.lines().any(|line| line.starts_with(&format!("{to} {from} {ICMP}")))
        };
        (has(B, A) && has(A, B)).then_some(())
    });
}
