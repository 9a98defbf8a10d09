//! Common programs in guests: a DHCP client and servers, and TCP over VLAN interfaces.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use ringway_e2e::host::{Host, Running, SOON, describe, send, wait_for};
use ringway_e2e::shared_turn;
use ringway_e2e::traffic::{random_file, send_file};
use rustix::process::Signal;

use crate::rules::neighbor;

/// The script that udhcpc calls with its lease.
const SCRIPT: &str = "#!/bin/sh
case $1 in
deconfig) ip address flush dev $interface ;;
bound) ip address add $ip/24 dev $interface && echo $ip $serverid > $LEASE ;;
esac
";

/// Starts a DHCP server in a guest, which offers one address.
fn serve(host: &Host, guest: &str, address: &str) -> Running {
    let [config, leases, pid] =
        ["conf", "leases", "pid"].map(|kind| host.file(&format!("dhcp-{guest}.{kind}")));
    fs::write(&leases, "").expect("a file");
    let text = format!(
        "start {address}\nend {address}\ninterface eth0\nmax_leases 1\nauto_time 0\n\
         lease_file {}\npidfile {}\noption subnet 255.255.255.0\noption lease 600\n",
        leases.display(),
        pid.display()
    );
    fs::write(&config, text).expect("a file");
    let config = config.display().to_string();
    let mut server = host.in_guest(guest, &["udhcpd", "-f", &config]);
    let server = Running::start(server.stdout(Stdio::null()).stderr(Stdio::null()));
    wait_for("the server to begin", SOON, || pid.exists().then_some(()));
    server
}

/// A client in guest `a`, until it has a lease.
fn ask(host: &Host) -> Running {
    let (script, lease) = (host.file("dhcp-script"), host.file("lease"));
    fs::write(&script, SCRIPT).expect("a file");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let script = script.display().to_string();
    let lease = format!("LEASE={}", lease.display());
    let client = ["env", &lease, "udhcpc", "-f", "-q", "-i", "eth0", "-s", &script];
    let mut command = host.in_guest("a", &[&client[..], &["-t", "1000", "-T", "1"]].concat());
    Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

#[test]
fn a_locked_guest_is_configured_by_the_dhcp_server_that_may_reply_and_by_no_other() {
    let Some(_turn) = shared_turn(&["ip", "ping", "udhcpc", "udhcpd"]) else { return };
    let locked = "locking-mode = \"locked\"";
    let of_a = format!("{locked}\nallowed-ips = [\"10.77.0.1\", \"10.77.0.50\"]");
    let of_s = format!("{locked}\ndhcp-server = true");
    let guests = [("a", "", of_a.as_str()), ("s", "", &of_s), ("rogue", "", "")];
    let host = Host::start(&describe("", &guests));
    let refused = |host: &Host, vif: &str| {
        let refused = host.vif(vif).map(|vif| vif.refused).unwrap_or_default();
        refused.get("dhcp_server_only").copied().unwrap_or(0)
    };
    // Only a server that may not reply: the client asks again, because it gets no offer.
    let _rogue = serve(&host, "rogue", "10.77.0.66");
    let mut client = ask(&host);
    host.wait("two offers to be counted", SOON, |host| (refused(host, "vif3.0") > 1).then_some(()));
    assert!(!host.file("lease").exists());
    send(client.0.id(), Signal::TERM);
    client.wait("its end", SOON);
    // Both servers, which get each question: the client receives replies of the permitted one.
    let _server = serve(&host, "s", "10.77.0.50");
    let before = refused(&host, "vif3.0");
    let mut client = ask(&host);
    assert!(client.wait("a lease", 3 * SOON).success(), "{}", host.log());
    let lease = fs::read_to_string(host.file("lease")).expect("the client had its script called");
    assert_eq!(lease.trim(), "10.77.0.50 10.77.0.2");
    host.wait("the other one to reply as well", SOON, |host| {
        (refused(host, "vif3.0") > before).then_some(())
    });
    let addresses = host.guest_text("a", &["ip", "-4", "-o", "address", "show", "dev", "eth0"]);
    assert!(addresses.contains("10.77.0.50/24"), "{addresses}");
    host.ping("a", "10.77.0.2");
    for vif in ["vif1.0", "vif2.0"] {
        let refused = host.vif(vif).expect("it is listed").refused;
        assert!(refused.is_empty(), "{vif}: {refused:?}");
    }
}

/// A VLAN interface for kernels without one: a TAP device whose frames leave through `eth0` with a
/// tag, and which gets the frames that arrive there with that tag. The kernel removes the tag from
/// what a packet socket receives, and reports it beside the frame.
const VLAN_INTERFACE: &str = "
import fcntl, os, pathlib, select, socket, struct, subprocess, sys
vid, name, ready = int(sys.argv[1]), sys.argv[2], sys.argv[3]
tap = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tap, 0x400454ca, struct.pack('16sH22x', name.encode(), 0x1002))
mac = pathlib.Path('/sys/class/net/eth0/address').read_text().strip()
subprocess.run(['ip', 'link', 'set', name, 'address', mac, 'mtu', '1496', 'up'], check=True)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(('eth0', 0))
wire.setsockopt(263, 8, 1)
pathlib.Path(ready).touch()
while True:
    for which in select.select([tap, wire], [], [])[0]:
        if which == tap:
            frame = os.read(tap, 2000)
            wire.send(frame[:12] + struct.pack('>HH', 0x8100, vid) + frame[12:])
            continue
        frame, ancillary, flags, address = wire.recvmsg(2000, 100)
        for level, kind, data in ancillary:
            tag = struct.unpack('IIIHHHH', data[:20])[5]
            if (level, kind) == (263, 8) and tag & 0xfff == vid and address[2] != 4:
                os.write(tap, frame)
";

/// Creates VLAN interfaces in a guest: the kernel's, or the test's if the kernel has none.
fn make_vlans(host: &Host, guest: &str, vids: &[u16]) -> Vec<Running> {
    let mut relays = Vec::new();
    for vid in vids {
        let (name, id) = (format!("vlan{vid}"), vid.to_string());
        let link = ["ip", "link", "add", "link", "eth0", "name", &name, "type", "vlan", "id", &id];
        let mut command = host.in_guest(guest, &link);
        let made = command.stderr(Stdio::null()).status().expect("it starts");
        if !made.success() {
            let ready = host.file(&format!("{guest}-{name}"));
            let place = ready.display().to_string();
            let relay = ["python3", "-c", VLAN_INTERFACE, &id, &name, &place];
            relays.push(Running::start(&mut host.in_guest(guest, &relay)));
            wait_for("an interface", SOON, || ready.exists().then_some(()));
        }
        host.guest_text(guest, &["ip", "link", "set", &name, "up"]);
    }
    relays
}

#[test]
fn a_guest_on_a_trunk_port_exchanges_tcp_with_each_vlan() {
    let Some(_turn) = shared_turn(&["bash", "ip", "ping", "python3", "socat"]) else { return };
    for isolate in ["", "isolate = true"] {
        // What a packet socket receives has its checksum only if no sender leaves it blank.
        let plain = "sg = false\ncsum = false\ngso = false\n";
        let of = |rules: &str| format!("{plain}{rules}");
        let [t, a, c] = ["trunk = [10, 20]", "vlan = 10", "vlan = 20"].map(of);
        let guests = [("t", "", t.as_str()), ("a", "", &a), ("c", "", &c)];
        // With one queue, frames stay in order.
        let host = Host::start(&describe(&format!("max-queues = 1\n{isolate}"), &guests));
        let _relays = make_vlans(&host, "t", &[10, 20]);
        for (guest, device, address) in [
            ("t", "vlan10", "10.78.0.1/24"),
            ("t", "vlan20", "10.79.0.1/24"),
            ("a", "eth0", "10.78.0.2/24"),
            ("c", "eth0", "10.79.0.3/24"),
        ] {
            host.guest_text(guest, &["ip", "address", "add", address, "dev", device]);
        }
        host.wait("the trunk", SOON, |host| {
            // waits: then it asks again.
            let ping = ["ping", "-n", "-c", "1", "-W", "1", "10.78.0.2"];
            host.in_guest("t", &ping).output().ok()?.status.success().then_some(())
        });
        let file = host.file("random");
        random_file(&file, 2);
        for (from, to, address) in [
            ("t", "a", "10.78.0.2"),
            ("a", "t", "10.78.0.1"),
            ("t", "c", "10.79.0.3"),
            ("c", "t", "10.79.0.1"),
        ] {
            assert!(send_file(&host, from, to, address, &file), "{isolate}: {from} to {to}");
        }
        // The VLANs stay separate: `c` is not asked for its address, as it would note who asked.
        host.guest_text("a", &["ip", "address", "add", "10.79.0.2/24", "dev", "eth0"]);
        host.guest_text("a", &["bash", "-c", "echo > /dev/udp/10.79.0.3/9"]);
        // These frames are behind the question at both ends.
        host.ping("a", "10.78.0.1");
        host.ping("t", "10.79.0.3");
        assert!(neighbor(&host, "c", "10.79.0.1").contains("lladdr"));
        assert!(!neighbor(&host, "c", "10.79.0.2").contains("lladdr"));
    }
}
