//! A vif that receives copies of other vifs' frames, observed by a socket in its guest.

use std::process::Stdio;

use ringway_e2e::host::{Host, Running, SOON, describe, wait_for};
use ringway_e2e::shared_turn;

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
/// An echo request and its reply in IPv4, by protocol and ICMP type.
const ICMP: &str = "0800";

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
