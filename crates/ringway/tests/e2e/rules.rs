//! What guests may send: a guest that impersonates others, and real guests under the strictest
//! rules.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use ringway_datapath::MacAddr;
use ringway_e2e::host::{Host, SOON, describe};
use ringway_e2e::shared_turn;

use crate::hostile::Hostile;

/// The default address of the second guest of a description.
const MAC_B: MacAddr = MacAddr([0x00, 0x16, 0x3e, 0x40, 0x02, 0x00]);
const IP_B: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

fn ethernet(dst: MacAddr, src: MacAddr, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = [dst.0, src.0].concat();
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A broadcast ARP reply that announces an address.
pub(crate) fn arp(src: MacAddr, sender: (MacAddr, Ipv4Addr)) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 2];
    for _ in 0..2 {
        packet.extend(sender.0.0);
        packet.extend(sender.1.octets());
    }
    ethernet(MacAddr::BROADCAST, src, 0x0806, &packet)
}

/// An ARP request between two hosts of the examples, with or without a VLAN tag.
pub(crate) fn arp_question(src: MacAddr, from: u8, whom: u8, vid: Option<u8>) -> Vec<u8> {
    let mut frame = arp(src, (src, Ipv4Addr::new(10, 77, 0, from)));
    frame[21] = 1;
    frame[38..42].copy_from_slice(&Ipv4Addr::new(10, 77, 0, whom).octets());
    if let Some(vid) = vid {
        frame.splice(12..12, [0x81, 0, 0, vid]);
    }
    frame
}

fn ipv6(src: MacAddr, source: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let len = u16::try_from(payload.len()).expect("short").to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, len[0], len[1], next, 255];
    packet.extend(source.octets());
    packet.extend(all_nodes.octets());
    packet.extend(payload);
    ethernet(MacAddr([0x33, 0x33, 0, 0, 0, 1]), src, 0x86dd, &packet)
}

/// An ICMPv6 message with its checksum.
fn icmpv6(src: MacAddr, source: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut frame = ipv6(src, source, 58, message);
    let len = u32::try_from(message.len()).expect("short").to_be_bytes();
    let mut bytes = frame[22..54].to_vec();
    bytes.extend(len);
    bytes.extend([0, 0, 0, 58]);
    bytes.extend(message);
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
    frame[56..58].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A router advertisement of a 64-bit prefix, repeated as long as needed.
fn router_advertisement(src: MacAddr, source: Ipv6Addr, prefix: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 1, 0x51, 0x80, 0, 0, 0, 0]);
    message.extend(prefix.octets());
    icmpv6(src, source, &message)
}

fn neighbor_advertisement(src: MacAddr, target: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(target.octets());
    message.extend([2, 1]);
    message.extend(src.0);
    icmpv6(src, target, &message)
}

fn udp(src: MacAddr, source: Ipv4Addr, ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 36, 0, 1, 0, 0, 64, 17, 0, 0];
    packet.extend(source.octets());
    packet.extend([255; 4]);
    packet.extend(ports.map(u16::to_be_bytes).concat());
    packet.extend([0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    ethernet(MacAddr::BROADCAST, src, 0x0800, &packet)
}

/// The dropped frames of a vif by reason, when one reason has this count.
pub(crate) fn refused(host: &Host, vif: &str, reason: &str, frames: u64) -> BTreeMap<String, u64> {
    host.wait(&format!("{reason} to be counted"), SOON, |host| {
        let refused = host.vif(vif)?.refused;
        (refused.get(reason).is_some_and(|count| *count >= frames)).then_some(refused)
    })
}

pub(crate) fn neighbor(host: &Host, guest: &str, address: &str) -> String {
    host.guest_text(guest, &["ip", "neigh", "show", address])
}

fn link_local(mac: MacAddr) -> Ipv6Addr {
    ringway_datapath::link_local_of(mac)
}

#[test]
fn a_locked_guest_cannot_use_the_ip_address_of_another() {
    let Some(_turn) = shared_turn(&["ping", "ip", "xenstore-read", "xenstore-write"]) else {
        return;
    };
    let host = Host::start(&describe("", &[("a", "", ""), ("b", "", "")]));
    // As a vif line with ip= sets it.
    let mut guest = Hostile::with_keys(&host, &[("ip", "10.77.0.66 fd77::66")]);
    guest.connect();
    let (own, name) = (guest.mac(), guest.name());
    host.ping("a", "10.77.0.2");
    host.ping("a", "fd77::2");
    let attack = |guest: &mut Hostile<'_>, rounds: usize| {
        for _ in 0..rounds {
            guest.send(&arp(own, (own, IP_B)));
            guest.send(&neighbor_advertisement(own, "fd77::2".parse().expect("an address")));
            guest.send(&udp(own, IP_B, [4000, 53]));
        }
    };
    attack(&mut guest, 100);
    let refused_of = refused(&host, &name, "ip_source", 200);
    assert!(refused_of["arp_spoofed"] >= 100, "{refused_of:?}");
    for address in ["10.77.0.2", "fd77::2"] {
        let neighbor = neighbor(&host, "a", address);
        assert!(neighbor.contains(&MAC_B.to_string()), "{neighbor}");
        host.ping("a", address);
    }
    let status = host.vif(&name).expect("it is listed");
    assert_eq!(status.locking_mode, "locked");
    assert_eq!(status.allowed_ips, ["10.77.0.66", "fd77::66"]);

    // The effect of the same frames on a guest without rules shows that they would work, and that
    // rules change while a guest is connected.
    let mode = format!("{}/locking-mode", guest.vif().backend_dir());
    host.tool_text("xenstore-write", &[&mode, "unlocked"]);
    host.wait("the change", SOON, |host| {
        host.vif(&name).filter(|vif| vif.locking_mode == "unlocked")
    });
    host.wait("the attack to work", SOON, |host| {
        attack(&mut guest, 1);
        neighbor(host, "a", "10.77.0.2").contains(&own.to_string()).then_some(())
    });
    host.tool_text("xenstore-write", &[&mode, "disabled"]);
    host.wait("the change", SOON, |host| {
        host.vif(&name).filter(|vif| vif.locking_mode == "disabled")
    });
    // A worker that is in a round reads new rules before the next one.
    host.wait("a frame to be dropped", SOON, |host| {
        attack(&mut guest, 1);
        host.vif(&name)?.queues.iter().find_map(|queue| queue.dropped.get("port_disabled").copied())
    });
    // An invalid value changes nothing.
    host.tool_text("xenstore-write", &[&mode, "looked"]);
    host.wait("a line", SOON, |host| (host.log_count("expected unlocked") > 0).then_some(()));
    assert_eq!(host.vif(&name).expect("it is listed").locking_mode, "disabled");
}

/// The address of a VRRP router in turn at two vifs that share it, while a third one without rules
/// wants it, too.
#[test]
fn a_shared_address_moves_at_once_between_its_vifs_and_to_no_other() {
    let Some(_turn) = shared_turn(&["ping", "xenstore-read", "xenstore-write"]) else { return };
    let router = MacAddr([0x00, 0x00, 0x5e, 0x00, 0x01, 0x07]);
    let host = Host::start(&describe("", &[("a", "", "shared-macs = [\"00:00:5e:00:01:07\"]")]));
    let sharing = || {
        let keys = [("ringway-shared-macs", "00:00:5e:00:01:07"), ("ip", "10.77.0.66")];
        let mut guest = Hostile::with_keys(&host, &keys);
        guest.connect();
        guest
    };
    let (mut one, mut two) = (sharing(), sharing());
    let mut greedy = Hostile::with_keys(&host, &[("locking-mode", "unlocked")]);
    greedy.connect();
    let announcement = arp(router, (router, Ipv4Addr::new(10, 77, 0, 66)));
    let place = |host: &Host| {
        let fdb = host.backend()?.fdb;
        fdb.into_iter().find(|entry| entry.mac == router.to_string()).map(|entry| entry.port)
    };
    let mut tries = 0;
    for _ in 0..3 {
        for guest in [&mut one, &mut two] {
            guest.send(&announcement);
            let name = guest.name();
            host.wait("the address to move", SOON, |host| (place(host)? == name).then_some(()));
            greedy.send(&announcement);
            tries += 1;
            refused(&host, &greedy.name(), "address_taken", tries);
            assert_eq!(place(&host), Some(name));
        }
    }
    for guest in [&one, &two] {
        assert_eq!(host.vif(&guest.name()).expect("it is listed").refused, BTreeMap::new());
    }
    // What helps is said where one looks.
    let vif = host.vif(&greedy.name()).expect("it is listed");
    let taken = vif.taken.expect("it is known");
    let holder = two.name();
    assert!(taken.contains(&format!("{router} belongs to {holder};")), "{taken}");
    assert!(taken.contains("list it in shared-macs of each"), "{taken}");
    // Whichever of them had it when the line was due.
    let line = format!("{router} belongs to ");
    host.wait("a line", SOON, |host| (host.log_count(&line) > 0).then_some(()));
    // A vif that is allowed to share it takes it while it is connected.
    let node = format!("{}/ringway-shared-macs", greedy.vif().backend_dir());
    host.tool_text("xenstore-write", &[&node, &router.to_string()]);
    host.wait("the change", SOON, |host| {
        (!host.vif(&greedy.name())?.shared_macs.is_empty()).then_some(())
    });
    let name = greedy.name();
    // The first may be too early, as above.
    host.wait("the address to move", SOON, |host| {
        greedy.send(&announcement);
        (place(host)? == name).then_some(())
    });
    // It is no vif's own address.
    let mut owner = Hostile::with_keys(&host, &[("mac", &router.to_string())]);
    owner.connect();
    let error = host.wait("the error", SOON, |host| host.vif(&owner.name())?.error);
    assert!(error.contains("its mac 00:00:5e:00:01:07 is in shared-macs of vif1.0"), "{error}");
    let added = host.verb(&["vif", "add", "vm1", "--vhost", "/none", "--mac", &router.to_string()]);
    let reason = String::from_utf8_lossy(&added.stderr).into_owned();
    assert!(reason.contains("is that of vif1.0, in its shared-macs"), "{reason}");
}

/// Honest guests on the switch and on a bridge, each locked to its assigned addresses.
#[test]
fn locked_guests_can_use_arp_and_nd_and_lose_nothing() {
    let Some(_turn) = shared_turn(&["ping", "ip", "xenstore-read"]) else { return };
    let locked = "locking-mode = \"locked\"";
    let of_a =
        format!("{locked}\nallowed-ips = [\"10.77.0.1\", \"fd77::/64\", \"2001:db8:77::/64\"]");
    let host = Host::start(&describe("", &[("a", "", &of_a), ("b", "", locked)]));
    // ARP, neighbor discovery, and duplicate address detection of a guest's first addresses.
    host.ping("a", "10.77.0.2");
    host.ping("a", "fd77::2");
    host.ping("b", "fd77::1");

    // An address that it derives from a router's prefix.
    let mut router = Hostile::with_keys(&host, &[("ringway-router", "1")]);
    router.connect();
    let own = router.mac();
    let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 0);
    host.wait("an address of the router's prefix, in use", SOON, |host| {
        router.send(&router_advertisement(own, link_local(own), prefix));
        let addresses = host.guest_text("a", &["ip", "-6", "-o", "addr", "show"]);
        let mut lines = addresses.lines().filter(|line| line.contains("2001:db8:77:"));
        lines.any(|line| !line.contains("tentative") && !line.contains("dadfailed")).then_some(())
    });
    let addresses = host.guest_text("a", &["ip", "-6", "-o", "addr", "show"]);
    assert!(!addresses.contains("dadfailed"), "{addresses}");
    // The prefix is not on the list of b, so frames from such an address are dropped.
    host.guest_text("b", &["ip", "route", "flush", "cache"]);
    host.ping("a", "10.77.0.2");
    for vif in ["vif1.0", "vif2.0"] {
        let mut refused = host.vif(vif).expect("it is listed").refused;
        // b may have derived an address from the prefix, which is not on its list.
        let others =
            refused.remove("nd_spoofed").is_some() || refused.remove("ip_source").is_some();
        assert!(refused.is_empty() && !(others && vif == "vif1.0"), "{vif}: {refused:?}");
    }
}

#[test]
fn rules_apply_to_a_guest_on_a_bridge_as_well() {
    let Some(_turn) = shared_turn(&["ping", "ip", "xenstore-read", "xenstore-write"]) else {
        return;
    };
    let bridge = "[[bridge]]\nname = \"rwbr0\"\naddresses = [\"10.77.0.254/24\"]\n";
    let vif = "bridge = \"rwbr0\"";
    let host = Host::start(&(describe("", &[("a", "", vif), ("b", "", vif)]) + bridge));
    let keys = [("bridge", "rwbr0"), ("ipv4-allowed", "10.77.0.66")];
    let mut guest = Hostile::with_keys(&host, &keys);
    guest.connect();
    let (own, name) = (guest.mac(), guest.name());
    host.ping("a", "10.77.0.2");
    for _ in 0..50 {
        guest.send(&arp(MAC_B, (MAC_B, IP_B)));
        guest.send(&arp(own, (own, IP_B)));
    }
    let refused_of = refused(&host, &name, "arp_spoofed", 50);
    assert!(refused_of["bad_source"] >= 50, "{refused_of:?}");
    let neighbor = neighbor(&host, "a", "10.77.0.2");
    assert!(neighbor.contains(&MAC_B.to_string()), "{neighbor}");
    host.ping("a", "10.77.0.2");
    // A guest may have its own bridge if it may have more addresses.
    let node = format!("{}/ringway-addresses-per-vif", guest.vif().backend_dir());
    host.tool_text("xenstore-write", &[&node, "8"]);
    host.wait("the change", SOON, |host| host.vif(&name).filter(|vif| vif.addresses_max == 8));
    let behind = MacAddr([2, 0, 0, 0, 0, 9]);
    let mut spoofed = 50;
    // The first may be too early, as above. What is refused in any case is behind what is not.
    host.wait("a frame of that address to pass", SOON, |host| {
        let before = host.vif(&name)?.refused["bad_source"];
        guest.send(&arp(behind, (behind, Ipv4Addr::new(10, 77, 0, 66))));
        guest.send(&arp(own, (own, IP_B)));
        spoofed += 1;
        (refused(host, &name, "arp_spoofed", spoofed)["bad_source"] == before).then_some(())
    });
}

/// A trunk, which reaches each VLAN with its tag, and only with it.
fn checked_trunk(host: &Host) -> Hostile<'_> {
    let mut trunk = Hostile::with_keys(host, &[("ringway-trunk", "10,20")]);
    trunk.connect();
    let (own, name) = (trunk.mac(), trunk.name());
    let ask = |from: u8, whom: u8, vid: Option<u8>| arp_question(own, from, whom, vid);
    let knows = |host: &Host, guest: &str, last: u8| {
        neighbor(host, guest, &format!("10.77.0.{last}")).contains(&own.to_string())
    };
    trunk.send(&ask(61, 1, None));
    trunk.send(&ask(62, 1, Some(20)));
    trunk.send(&ask(63, 1, Some(30)));
    for (guest, from, whom, vid) in [("a", 64, 1, 10), ("c", 65, 3, 20)] {
        trunk.send(&ask(from, whom, Some(vid)));
        host.wait("a reply", SOON, |host| knows(host, guest, from).then_some(()));
    }
    // The question of `a` was before those of the trunk.
    assert!(!neighbor(host, "c", "10.77.0.1").contains("lladdr"), "another VLAN");
    for from in 61..64 {
        assert!(!knows(host, "a", from), "{from}");
    }
    let vlan = refused(host, &name, "vlan", 2);
    assert_eq!(vlan["vlan"], 2, "{vlan:?}");
    trunk
}

/// `vlan` of xl's vif lines, on the switch; beside a script it is the script's.
fn check_vlan_of_xl(host: &Host) {
    let placed = |keys: &[(&str, &str)]| {
        let guest = Hostile::with_keys(host, keys);
        let dir = guest.vif().backend_dir();
        let is_served = |node: String| host.node(&node).is_some_and(|state| state == "2");
        host.wait("an offer or an error", SOON, |host| {
            let error = host.node(&format!("{dir}/error")).is_some();
            (error || is_served(guest.vif().backend_state())).then_some(())
        });
        let vif = host.vif(&guest.name()).expect("it is known");
        (vif.vlan, vif.trunk, vif.error.unwrap_or_default())
    };
    assert_eq!(placed(&[("vlan", "10p/20-21")]), (Some(10), vec![20, 21], String::new()));
    let scripted = [("vlan", "10p/20-21"), ("script", "/etc/xen/scripts/vif-bridge")];
    assert_eq!(placed(&scripted), (None, Vec::new(), String::new()));
    let refused = placed(&[("vlan", "10/20")]).2;
    assert!(refused.contains("/vlan is \"10/20\"") && refused.contains("10p/20"), "{refused}");
    let refused = placed(&[("vlan", "10"), ("bridge", "xenbr0")]).2;
    assert!(refused.contains("only ringway's own switch supports"), "{refused}");
}

#[test]
fn guests_reach_only_their_vlan_and_private_guests_only_the_uplink() {
    let programs = ["bash", "ping", "ip", "xenstore-read", "xenstore-write"];
    let Some(_turn) = shared_turn(&programs) else { return };
    let uplink = "[uplink]\naddresses = [\"10.77.0.254/24\"]\nvlan = 10\ntrunk = [20]\n";
    let guests = [
        ("a", "", "vlan = 10"),
        ("b", "", "vlan = 10"),
        ("c", "", "vlan = 20"),
        ("p", "", "vlan = 10\nprivate = true"),
    ];
    // With one queue, frames stay in order.
    let host = Host::start(&(describe("max-queues = 1", &guests) + uplink));
    host.ping("a", "10.77.0.2");
    host.ping("a", "fd77::2");
    // A kernel that is asked for its address replies, and notes who asked.
    assert!(neighbor(&host, "b", "10.77.0.1").contains("lladdr"));
    for (guest, number) in [("a", 3), ("p", 1), ("b", 4)] {
        let line = format!("echo > /dev/udp/10.77.0.{number}/9");
        host.guest_text(guest, &["bash", "-c", &line]);
    }
    // These frames are behind the questions at both ends.
    for guest in ["a", "b", "p", "a"] {
        host.ping(guest, "10.77.0.254");
    }
    for (guest, address) in [("a", "10.77.0.4"), ("p", "10.77.0.2")] {
        assert!(!neighbor(&host, guest, address).contains("lladdr"), "p is private");
    }

    let trunk = checked_trunk(&host);
    // A tag does not take a guest into another VLAN.
    let mut access = Hostile::with_keys(&host, &[("ringway-vlan", "10")]);
    access.connect();
    for vid in [10, 20] {
        let mut frame = arp(access.mac(), (access.mac(), Ipv4Addr::new(10, 77, 0, 70)));
        frame.splice(12..12, [0x81, 0, 0, vid]);
        access.send(&frame);
    }
    refused(&host, &access.name(), "vlan", 2);

    let (fdb, name) = (host.backend().expect("it responds").fdb, trunk.name());
    let vlans = |port: &str| -> Vec<Option<u16>> {
        fdb.iter().filter(|entry| entry.port == port).map(|entry| entry.vlan).collect()
    };
    assert_eq!((vlans("vif1.0"), vlans("vif3.0")), (vec![Some(10)], vec![Some(20)]));
    assert_eq!(vlans(&name), [Some(10), Some(20)], "{fdb:?}");
    let shown = host.text(&["vif", "show", &name]);
    assert!(shown.contains("trunk             10,20"), "{shown}");

    check_vlan_of_xl(&host);

    // The VLAN of a connected guest changes.
    let node = "/local/domain/0/backend/vif/3/0/ringway-vlan";
    host.tool_text("xenstore-write", &[node, "10"]);
    host.wait("the change", SOON, |host| host.vif("vif3.0").filter(|vif| vif.vlan == Some(10)));
    host.ping("c", "10.77.0.1");
}
