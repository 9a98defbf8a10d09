//! Multicast between real stacks: sockets join, a querier asks, and only members receive the
//! frames.

use std::fs::File;
use std::process::Stdio;

use ringway_e2e::host::{Host, Running, SOON, describe, wait_for};
use ringway_e2e::shared_turn;

/// Joins a group of each kind, and writes a line for each received datagram.
const LISTENER: &str = "
import pathlib, select, socket, struct, sys
v4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
v4.bind(('239.1.2.3', 5000))
own = struct.pack('4s4si', socket.inet_aton('239.1.2.3'), b'\\0' * 4, socket.if_nametoindex('eth0'))
v4.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, own)
v6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
v6.bind(('ff15::1:77', 5000))
index = struct.pack('i', socket.if_nametoindex('eth0'))
own = socket.inet_pton(socket.AF_INET6, 'ff15::1:77') + index
v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, own)
pathlib.Path(sys.argv[1]).touch()
while True:
    for ready in select.select([v4, v6], [], [])[0]:
        with open(sys.argv[1], 'a') as log:
            print('v4' if ready is v4 else 'v6', ready.recv(100).decode(), file=log)
";

/// Counts frames for both groups, and membership reports, until a datagram to all.
const BYSTANDER: &str = "
import pathlib, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(('eth0', 0))
pathlib.Path(sys.argv[1]).touch()
counts = {'v4': 0, 'v6': 0, 'reports': 0}
while True:
    frame, address = s.recvfrom(2000)
    if frame[:6].hex() == 'ffffffffffff' and sys.argv[2].encode() in frame:
        break
    if address[2] == socket.PACKET_OUTGOING:
        continue
    dst = frame[:6].hex()
    counts['v4'] += dst == '01005e010203'
    counts['v6'] += dst == '333300010077'
    counts['reports'] += dst in ('01005e000016', '333300000016')
print(*(f'{name}={count}' for name, count in counts.items()))
";

/// Sends a datagram to each group, and joins and leaves another, which the kernel reports.
const SENDER: &str = "
import socket, struct, sys
index = socket.if_nametoindex('eth0')
v4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own = struct.pack('4s4si', socket.inet_aton('239.9.9.9'), b'\\0' * 4, index)
v4.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, own)
v4.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
v4.sendto(sys.argv[1].encode(), ('239.1.2.3', 5000))
v6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
v6.sendto(sys.argv[1].encode(), ('ff15::1:77', 5000))
";

/// Sends a datagram to all.
const LAST: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.sendto(sys.argv[1].encode(), ('10.77.0.255', 5001))
";

/// Sends general queries of both kinds, with a response time of one second.
const QUERIER: &str = "
import socket, struct
index = socket.if_nametoindex('eth0')
v4 = socket.socket(socket.AF_INET, socket.SOCK_RAW, 2)
out = struct.pack('4s4si', b'\\0' * 4, b'\\0' * 4, index)
v4.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, out)
v4.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([0x94, 4, 0, 0]))
v4.sendto(bytes([0x11, 10, 0xee, 0xf5, 0, 0, 0, 0]), ('224.0.0.1', 0))
v6 = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
v6.setsockopt(socket.IPPROTO_IPV6, 54, bytes([0, 0, 5, 2, 0, 0, 1, 0]))
v6.sendto(bytes([130, 0, 0, 0, 3, 232, 0, 0]) + bytes(16), ('ff02::1', 0, 0, index))
";

/// Only a guest that is configured as a router becomes the querier, to which all then report.
fn become_querier(host: &Host) {
    host.guest_text("c", &["python3", "-c", QUERIER]);
    host.wait("the refusal", SOON, |host| {
        let refused = host.vif("vif3.0")?.refused;
        (refused.get("router_only") == Some(&2)).then_some(())
    });
    let part = |name: &str| host.vif(name).and_then(|vif| vif.multicast).expect("it is shown");
    assert!(!part("vif3.0").is_router && !part("vif4.0").is_router);

    host.guest_text("r", &["python3", "-c", QUERIER]);
    host.wait("the router", SOON, |host| {
        host.vif("vif4.0")?.multicast.filter(|part| part.is_router)
    });
    host.wait("all to have reported", SOON, |host| {
        let parts = ["vif1.0", "vif2.0"].map(|name| host.vif(name)?.multicast);
        parts.iter().all(|part| part.is_some_and(|it| !it.hears_all)).then_some(())
    });
}

#[test]
fn a_group_reaches_only_guests_that_joined_it() {
    let Some(_turn) = shared_turn(&["ip", "python3"]) else { return };
    let guests =
        [("a", "", ""), ("b", "", ""), ("c", "", ""), ("r", "", "multicast-router = \"learn\"")];
    let switch = "\n[switch]\nmulticast-snooping = true\n";
    // With one queue, frames stay in order.
    let host = Host::start(&(describe("max-queues = 1", &guests) + switch));
    let heard = host.file("heard");
    let mut listener = host.in_guest("a", &["python3", "-c", LISTENER]);
    let _listener = Running::start(listener.arg(&heard).stdout(Stdio::null()));
    wait_for("a to listen", SOON, || heard.exists().then_some(()));
    let mut round = 0;
    let mut send_and_watch = || {
        round += 1;
        let ready = host.file(&format!("ready-{round}"));
        let text = format!("this is round {round}");
        let seen = host.file(&format!("seen-{round}"));
        let mut watch = host.in_guest("b", &["python3", "-c", BYSTANDER]);
        watch.arg(&ready).arg(&text).stdout(File::create(&seen).expect("created"));
        let mut watch = Running::start(&mut watch);
        wait_for("b to watch", SOON, || ready.exists().then_some(()));
        let lines = [format!("v4 {text}"), format!("v6 {text}")];
        // A datagram may be lost, so all are sent again until they have arrived.
        wait_for("a to hear both", SOON, || {
            let mut sender = host.in_guest("c", &["python3", "-c", SENDER, &text]);
            let sent = sender.output().expect("it can be started").status;
            let heard = std::fs::read_to_string(&heard).ok()?;
            let has_heard = lines.iter().all(|line| heard.contains(line.as_str()));
            (sent.success() && has_heard).then_some(())
        });
        wait_for("b to see the last one", SOON, || {
            host.guest_text("c", &["python3", "-c", LAST, &text]);
            watch.0.try_wait().expect("our child")
        });
        std::fs::read_to_string(&seen).expect("written").trim().to_owned()
    };
    // Without a querier everything is flooded except what only routers need.
    let seen = send_and_watch();
    let has_all = seen.starts_with("v4=") && !seen.contains("v4=0") && !seen.contains("v6=0");
    assert!(has_all, "{seen}");

    become_querier(&host);
    let mut seen = String::new();
    wait_for("b to be left alone", 3 * SOON, || {
        seen = send_and_watch();
        (seen == "v4=0 v6=0 reports=0").then_some(())
    });
    let groups = host.backend().expect("it responds").groups;
    let of = |group: &str| {
        let entry = groups.iter().find(|entry| entry.group == group);
        entry.map(|entry| entry.ports.clone()).unwrap_or_default()
    };
    assert_eq!(of("01:00:5e:01:02:03"), ["vif1.0"], "{groups:?}");
    assert_eq!(of("33:33:00:01:00:77"), ["vif1.0"], "{groups:?}");
    let shown = host.text(&["vif", "show", "vif4.0"]);
    assert!(shown.contains("multicast         router"), "{shown}");
    // Neighbor discovery uses groups, too.
    host.ping("b", "fd77::1");
    host.ping("c", "10.77.0.2");
}
