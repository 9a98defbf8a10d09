//! What a port may send: each refusal, what an honest station sends, and frames at random.

use std::net::{Ipv4Addr, Ipv6Addr};

use ringway_datapath::{DropReason, IpNetwork, LockingMode, MacAddr, PortRules, link_local_of};
use ringway_switch::{Binding, PortPolicy};

const OWN: MacAddr = MacAddr([0x00, 0x16, 0x3e, 0x40, 0x01, 0x00]);
const VICTIM: MacAddr = MacAddr([0x00, 0x16, 0x3e, 0x40, 0x02, 0x00]);
const ALL: MacAddr = MacAddr::BROADCAST;
const IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const VICTIM_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const NO_IP: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const IP6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
const VICTIM_IP6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
const NO_IP6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const UDP: u8 = 17;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

fn policy(mode: Option<LockingMode>, rules: &PortRules) -> PortPolicy {
    PortPolicy::for_vif(rules, mode, 1, Some(OWN), Binding::Static)
}

fn rules() -> PortRules {
    let allowed = [IpNetwork::host(IP.into()), IpNetwork::host(IP6.into())];
    PortRules { allowed: allowed.to_vec(), ..PortRules::default() }
}

fn locked() -> PortPolicy {
    policy(Some(LockingMode::Locked), &rules())
}

fn by_default() -> PortPolicy {
    policy(None, &PortRules::default())
}

/// A frame with its own Ethernet header.
fn eth(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = [ALL.0, OWN.0].concat();
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
    frame.resize(frame.len().max(60), 0);
    frame
}

fn v4(source: Ipv4Addr, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + payload.len()).expect("short").to_be_bytes();
    let mut packet = vec![0x45, 0, len[0], len[1], 0, 1];
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(source.octets());
    packet.extend([255; 4]);
    packet.extend(payload);
    eth(0x0800, &packet)
}

fn v6(source: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).expect("short").to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, len[0], len[1], next, 255];
    packet.extend(source.octets());
    packet.extend(ALL_NODES.octets());
    packet.extend(payload);
    eth(0x86dd, &packet)
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes(), [0, 12], [0, 0]]
        .concat()
        .into_iter()
        .chain([7; 4])
        .collect()
}

fn tcp() -> Vec<u8> {
    let mut header = vec![0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0];
    header.extend([9; 6]);
    header
}

fn arp(operation: u8, sender: (MacAddr, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
    packet.extend(sender.0.0);
    packet.extend(sender.1.octets());
    packet.extend([0; 6]);
    packet.extend(target.octets());
    eth(0x0806, &packet)
}

/// A message of neighbor discovery; its options are a kind with an Ethernet address each.
fn nd(kind: u8, target: Ipv6Addr, options: &[(u8, MacAddr)]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    if matches!(kind, 135..=137) {
        message.extend(target.octets());
    }
    if kind == 134 {
        message.extend([0; 8]);
    }
    for (kind, mac) in options {
        message.extend([*kind, 1]);
        message.extend(mac.0);
    }
    message
}

fn tagged(frame: &[u8], vid: u8) -> Vec<u8> {
    let mut tagged = frame.to_vec();
    tagged.splice(12..12, [0x81, 0, 0, vid]);
    tagged
}

/// Headers in front of an upper one: each is 8 bytes and names the next.
fn behind(extensions: &[u8], upper: u8, payload: &[u8]) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    for (index, kind) in extensions.iter().enumerate() {
        let next = extensions.get(index + 1).copied().unwrap_or(upper);
        match *kind {
            FRAGMENT => bytes.extend([next, 0, 0, 0, 0, 0, 0, 9]),
            _ => bytes.extend([next, 0, 1, 4, 0, 0, 0, 0]),
        }
    }
    bytes.extend(payload);
    (extensions.first().copied().unwrap_or(upper), bytes)
}

fn check(policy: &PortPolicy, name: &str, frame: &[u8], expected: Option<DropReason>) {
    assert_eq!(policy.refuse(frame), expected, "{name}");
    assert_eq!(policy.refuse_patched(frame), expected, "{name}, to a bridge");
    // Inside a VLAN tag it is the same frame; Linux ignores a tag with VLAN 0.
    assert_eq!(policy.refuse(&tagged(frame, 0)), expected, "{name}, with a tag");
    assert_eq!(policy.refuse(&tagged(&tagged(frame, 7), 0)), expected, "{name}, with two");
    if expected.is_some() {
        let third = policy.refuse(&tagged(&tagged(&tagged(frame, 7), 0), 0));
        assert_eq!(third, Some(DropReason::Undetermined), "{name}, with three");
    }
}

#[test]
fn an_honest_station_is_refused_nothing() {
    let link_local = link_local_of(OWN);
    let (locked, by_default) = (locked(), by_default());
    let mld = behind(&[HOP_BY_HOP], ICMPV6, &[143, 0, 0, 0, 0, 0, 0, 0]);
    let frames = [
        ("TCP", v4(IP, TCP, 0, &tcp())),
        ("UDP", v4(IP, UDP, 0, &udp(4000, 53))),
        ("ping", v4(IP, ICMP, 0, &[8, 0, 0, 0, 0, 1, 0, 1])),
        ("a first fragment", v4(IP, UDP, 0x2000, &udp(4000, 53))),
        ("a later fragment", v4(IP, UDP, 0x2005, &[67; 8])),
        ("DHCP request, without an address", v4(NO_IP, UDP, 0, &udp(68, 67))),
        ("DHCP renewal", v4(IP, UDP, 0, &udp(68, 67))),
        ("IGMP, without an address", v4(NO_IP, 2, 0, &[0x22, 0, 0, 0, 0, 0, 0, 0])),
        ("ARP request", arp(1, (OWN, IP), VICTIM_IP)),
        ("ARP reply", arp(2, (OWN, IP), VICTIM_IP)),
        ("ARP announcement", arp(1, (OWN, IP), IP)),
        ("ARP probe", arp(1, (OWN, NO_IP), IP)),
        ("TCP over IPv6", v6(IP6, TCP, &tcp())),
        ("DHCPv6 request", v6(link_local, UDP, &udp(546, 547))),
        ("duplicate address detection", v6(NO_IP6, ICMPV6, &nd(135, IP6, &[]))),
        ("the same for link-local", v6(NO_IP6, ICMPV6, &nd(135, link_local, &[]))),
        ("the same with a nonce", {
            let mut message = nd(135, IP6, &[]);
            message.extend([14, 1, 1, 2, 3, 4, 5, 6]);
            v6(NO_IP6, ICMPV6, &message)
        }),
        ("solicitation", v6(IP6, ICMPV6, &nd(135, VICTIM_IP6, &[(1, OWN)]))),
        ("advertisement", v6(IP6, ICMPV6, &nd(136, IP6, &[(2, OWN)]))),
        ("advertisement of link-local", v6(link_local, ICMPV6, &nd(136, link_local, &[(2, OWN)]))),
        ("router solicitation", v6(link_local, ICMPV6, &nd(133, NO_IP6, &[(1, OWN)]))),
        ("the same without an address", v6(NO_IP6, ICMPV6, &nd(133, NO_IP6, &[]))),
        ("MLD report", v6(link_local, mld.0, &mld.1)),
        ("MLD report, without an address", v6(NO_IP6, mld.0, &mld.1)),
        ("ping over IPv6", v6(IP6, ICMPV6, &[128, 0, 0, 0, 0, 1, 0, 1])),
        ("a fragmented datagram", {
            let (next, payload) = behind(&[FRAGMENT], UDP, &udp(4000, 53));
            v6(IP6, next, &payload)
        }),
    ];
    for (name, frame) in &frames {
        check(&locked, name, frame, None);
        check(&by_default, name, frame, None);
    }
}

#[test]
fn a_locked_port_sends_from_no_address_but_its_own() {
    let locked = locked();
    let (ip, arp_spoofed, nd_spoofed) =
        (Some(DropReason::IpSource), Some(DropReason::ArpSpoofed), Some(DropReason::NdSpoofed));
    let mut odd_arp = arp(1, (OWN, IP), VICTIM_IP);
    odd_arp[14 + 5] = 16;
    let frames = [
        ("TCP", v4(VICTIM_IP, TCP, 0, &tcp()), ip),
        ("a later fragment", v4(VICTIM_IP, UDP, 0x2005, &[0; 8]), ip),
        ("UDP from nowhere", v4(NO_IP, UDP, 0, &udp(68, 53)), ip),
        ("DHCP in the name of another", v4(VICTIM_IP, UDP, 0, &udp(68, 67)), ip),
        ("TCP over IPv6", v6(VICTIM_IP6, TCP, &tcp()), ip),
        ("another's link-local", v6(link_local_of(VICTIM), TCP, &tcp()), ip),
        ("IPv6 from nowhere", v6(NO_IP6, UDP, &udp(4000, 53)), ip),
        ("advertisement from nowhere", v6(NO_IP6, ICMPV6, &nd(136, IP6, &[])), ip),
        ("ARP reply", arp(2, (OWN, VICTIM_IP), IP), arp_spoofed),
        ("ARP request", arp(1, (OWN, VICTIM_IP), IP), arp_spoofed),
        ("ARP with another's Ethernet address", arp(2, (VICTIM, IP), IP), arp_spoofed),
        ("a probe for another's address", arp(1, (OWN, NO_IP), VICTIM_IP), arp_spoofed),
        ("a reply from nowhere", arp(2, (OWN, NO_IP), IP), arp_spoofed),
        ("reverse ARP", arp(3, (OWN, IP), IP), arp_spoofed),
        ("ARP for other lengths", odd_arp, arp_spoofed),
        ("advertisement", v6(IP6, ICMPV6, &nd(136, VICTIM_IP6, &[(2, OWN)])), nd_spoofed),
        ("its option", v6(IP6, ICMPV6, &nd(136, IP6, &[(2, VICTIM)])), nd_spoofed),
        ("a second option", v6(IP6, ICMPV6, &nd(136, IP6, &[(2, OWN), (2, VICTIM)])), nd_spoofed),
        ("solicitation's option", v6(IP6, ICMPV6, &nd(135, IP6, &[(1, VICTIM)])), nd_spoofed),
        ("another's detection", v6(NO_IP6, ICMPV6, &nd(135, VICTIM_IP6, &[])), nd_spoofed),
        ("router solicitation", v6(IP6, ICMPV6, &nd(133, IP6, &[(1, VICTIM)])), nd_spoofed),
        ("other protocols", eth(0x88cc, &[0; 46]), Some(DropReason::Protocol)),
        ("LLC", eth(46, &[0x42, 0x42, 3, 0, 0, 0, 8, 0]), Some(DropReason::Protocol)),
        ("SNAP", eth(46, &[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0]), Some(DropReason::Protocol)),
        ("reverse ARP's own type", eth(0x8035, &[0; 46]), Some(DropReason::Protocol)),
    ];
    for (name, frame, expected) in &frames {
        check(&locked, name, frame, *expected);
        let unlocked = policy(Some(LockingMode::Unlocked), &rules());
        assert_eq!(unlocked.refuse(frame), None, "{name}");
        assert_eq!(by_default().refuse(frame), None, "{name}");
    }
}

#[test]
fn a_version_that_contradicts_the_ethertype_is_refused_on_every_path() {
    // To a receiver that goes by the version field, these are from other addresses.
    let mut version_six = v4(IP, TCP, 0, &tcp());
    version_six[14] = 0x60;
    let mut version_four = v6(IP6, TCP, &tcp());
    version_four[14] = 0x40;
    for policy in [locked(), by_default()] {
        check(&policy, "version 6", &version_six, Some(DropReason::Undetermined));
        check(&policy, "version 4", &version_four, Some(DropReason::Undetermined));
    }
}

const ROUTER: Option<DropReason> = Some(DropReason::RouterOnly);
const SERVER: Option<DropReason> = Some(DropReason::DhcpServerOnly);
const HIDDEN: Option<DropReason> = Some(DropReason::Undetermined);

/// Frames as routers send them, or that hide whether they are such.
fn of_routers() -> Vec<(&'static str, Vec<u8>, Option<DropReason>)> {
    let advertisement = nd(134, NO_IP6, &[(1, OWN)]);
    let behind_v6 = |extensions: &[u8]| {
        let (next, payload) = behind(extensions, ICMPV6, &advertisement);
        v6(IP6, next, &payload)
    };
    let mut first_without_headers = behind_v6(&[FRAGMENT, DESTINATION]);
    first_without_headers.truncate(14 + 40 + 8);
    first_without_headers[14 + 4..14 + 6].copy_from_slice(&[0, 8]);
    first_without_headers[14 + 40 + 3] = 1;
    let mut cut = v6(IP6, ICMPV6, &[]);
    cut.truncate(54);
    vec![
        ("router advertisement", v6(IP6, ICMPV6, &advertisement), ROUTER),
        ("redirect", v6(IP6, ICMPV6, &nd(137, IP6, &[])), ROUTER),
        ("behind options", behind_v6(&[DESTINATION]), ROUTER),
        ("behind many headers", behind_v6(&[HOP_BY_HOP, DESTINATION, DESTINATION, 43, 60]), ROUTER),
        ("behind too many headers", behind_v6(&[DESTINATION; 11]), HIDDEN),
        ("in an atomic fragment", behind_v6(&[FRAGMENT]), HIDDEN),
        ("in a first fragment, behind options", behind_v6(&[FRAGMENT, DESTINATION]), HIDDEN),
        ("a first fragment without the header", first_without_headers, HIDDEN),
        ("cut off", cut, HIDDEN),
        ("multicast router", v6(IP6, ICMPV6, &[151, 0, 0, 0, 0, 0, 0, 0]), ROUTER),
        ("ICMP redirect", v4(IP, ICMP, 0, &[5, 1, 0, 0, 0, 0, 0, 0]), ROUTER),
        ("ICMP router advertisement", v4(IP, ICMP, 0, &[9, 0, 0, 0, 0, 0, 0, 0]), ROUTER),
    ]
}

/// Frames as DHCP servers send them.
fn of_servers() -> Vec<(&'static str, Vec<u8>, Option<DropReason>)> {
    let mut options = v4(IP, UDP, 0, &[&[1; 4][..], &udp(67, 68)].concat());
    options[14] = 0x46;
    let behind_v6 = |extension: u8| {
        let (next, payload) = behind(&[extension], UDP, &udp(547, 546));
        v6(IP6, next, &payload)
    };
    let mut odd = v4(IP, UDP, 0, &udp(1, 2));
    odd[14] = 0x65;
    vec![
        ("DHCP reply", v4(IP, UDP, 0, &udp(67, 68)), SERVER),
        ("DHCP reply from an odd port", v4(IP, UDP, 0, &udp(4000, 68)), SERVER),
        ("DHCP reply behind options", options, SERVER),
        ("DHCP reply, first fragment", v4(IP, UDP, 0x2000, &udp(67, 68)), SERVER),
        ("DHCPv6 reply", v6(IP6, UDP, &udp(547, 546)), SERVER),
        ("DHCPv6 reply from an odd port", v6(IP6, UDP, &udp(4000, 546)), SERVER),
        ("DHCPv6 reply behind options", behind_v6(DESTINATION), SERVER),
        ("DHCPv6 reply, fragmented", behind_v6(FRAGMENT), SERVER),
        ("IP of another version", odd, HIDDEN),
    ]
}

#[test]
fn only_routers_and_dhcp_servers_may_send_as_such() {
    let serving = PortRules { is_router: true, is_dhcp_server: true, ..rules() };
    for (name, frame, expected) in &[of_routers(), of_servers()].concat() {
        check(&by_default(), name, frame, *expected);
        check(&locked(), name, frame, *expected);
        if *expected != HIDDEN {
            check(&policy(None, &serving), name, frame, None);
            check(&policy(Some(LockingMode::Locked), &serving), name, frame, None);
        }
        assert_eq!(policy(Some(LockingMode::Unlocked), &rules()).refuse(frame), None, "{name}");
    }
}

/// A frame with LLC and SNAP headers in the place of its EtherType.
fn in_snap(frame: &[u8], len: u16, oui: [u8; 3]) -> Vec<u8> {
    let llc = [&len.to_be_bytes()[..], &[0xaa, 0xaa, 3], &oui].concat();
    [&frame[..12], &llc, &frame[12..]].concat()
}

#[test]
fn inspected_protocols_cannot_hide_behind_llc_and_snap() {
    let hidden = Some(DropReason::Undetermined);
    let advertisement = v6(IP6, ICMPV6, &nd(134, NO_IP6, &[(1, OWN)]));
    let reply = v4(IP, UDP, 0, &udp(67, 68));
    for policy in [locked(), by_default()] {
        for frame in [&advertisement, &reply] {
            let len = u16::try_from(frame.len() - 6).expect("short");
            for (len, oui) in [(len, [0; 3]), (len, [0, 0, 0xf8]), (0, [0; 3]), (0x05ff, [0; 3])] {
                check(&policy, "SNAP", &in_snap(frame, len, oui), hidden);
            }
            check(&policy, "a tag in SNAP", &in_snap(&tagged(frame, 0), len, [0; 3]), hidden);
        }
    }
    // Cisco's discovery protocol is not checked.
    check(&by_default(), "CDP", &eth(46, &[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0]), None);
}

#[test]
fn a_port_uses_its_own_ethernet_address_unless_more_are_allowed() {
    let mut foreign = v4(IP, TCP, 0, &tcp());
    foreign[6..12].copy_from_slice(&VICTIM.0);
    for mode in [None, Some(LockingMode::Locked)] {
        let policy = policy(mode, &rules());
        assert_eq!(policy.refuse_patched(&foreign), Some(DropReason::BadSource));
    }
    let many = PortPolicy::for_vif(&PortRules::default(), None, 4, Some(OWN), Binding::Static);
    assert_eq!(many.refuse_patched(&foreign), None);
    for group in [ALL, MacAddr([0; 6]), MacAddr([0x33, 0x33, 0, 0, 0, 1])] {
        foreign[6..12].copy_from_slice(&group.0);
        assert_eq!(many.refuse_patched(&foreign), Some(DropReason::BadSource));
    }
    assert_eq!(many.refuse_patched(&foreign[..13]), Some(DropReason::Malformed));
}

#[test]
fn a_port_with_an_address_list_sends_only_from_these_addresses() {
    let mut frame = v4(VICTIM_IP, UDP, 0, &udp(67, 68));
    let policy = PortPolicy::of_addresses([VICTIM, OWN]);
    for (source, expected) in
        [(OWN, None), (VICTIM, None), (MacAddr([2; 6]), Some(DropReason::BadSource))]
    {
        frame[6..12].copy_from_slice(&source.0);
        assert_eq!(policy.refuse_patched(&frame), expected, "{source}");
        let none = PortPolicy::of_addresses([]);
        assert_eq!(none.refuse_patched(&frame), Some(DropReason::BadSource), "{source}");
    }
}

#[test]
fn listed_ethernet_addresses_are_a_ports_own_also_if_it_is_locked() {
    const LISTED: [MacAddr; 2] = [MacAddr([0, 0, 0x5e, 0, 1, 7]), MacAddr([2, 0, 0, 0, 9, 9])];
    let listing =
        PortRules { shared_macs: vec![LISTED[0]], allowed_macs: vec![LISTED[1]], ..rules() };
    for mode in [None, Some(LockingMode::Locked)] {
        for mac in [OWN, LISTED[0], LISTED[1]] {
            let mut announcement = arp(1, (mac, IP), IP);
            announcement[6..12].copy_from_slice(&mac.0);
            assert_eq!(policy(mode, &listing).refuse_patched(&announcement), None, "{mac}");
            let is_own = policy(mode, &rules()).refuse_patched(&announcement).is_none();
            assert_eq!(is_own, mac == OWN, "{mac}");
            announcement[6..12].copy_from_slice(&VICTIM.0);
            let refused = Some(DropReason::BadSource);
            assert_eq!(policy(mode, &listing).refuse_patched(&announcement), refused);
        }
    }
}

#[test]
fn nothing_enters_by_a_disabled_port() {
    let disabled = policy(Some(LockingMode::Disabled), &rules());
    for frame in [v4(IP, TCP, 0, &tcp()), arp(1, (OWN, IP), IP), eth(0x1234, &[0; 46])] {
        assert_eq!(disabled.refuse(&frame), Some(DropReason::PortDisabled));
        assert_eq!(PortPolicy::disabled().refuse_patched(&frame), Some(DropReason::PortDisabled));
        assert_eq!(PortPolicy::open().refuse_patched(&frame), None);
    }
}

#[test]
fn allowed_networks_match_by_prefix() {
    let listed = ["10.77.0.0/24", "fd77::/64"].map(|it| it.parse().expect("a network"));
    let rules = PortRules { allowed: listed.to_vec(), ..PortRules::default() };
    let policy = policy(Some(LockingMode::Locked), &rules);
    check(&policy, "in it", &v4(VICTIM_IP, TCP, 0, &tcp()), None);
    check(&policy, "in it", &v6(VICTIM_IP6, TCP, &tcp()), None);
    let refused = Some(DropReason::IpSource);
    check(&policy, "beside it", &v4(Ipv4Addr::new(10, 77, 1, 0), TCP, 0, &tcp()), refused);
    let beside = Ipv6Addr::new(0xfd77, 0, 0, 1, 0, 0, 0, 1);
    check(&policy, "beside it", &v6(beside, TCP, &tcp()), refused);
    let any = ["0.0.0.0/0", "::/0"].map(|it| it.parse().expect("a network"));
    let rules = PortRules { allowed: any.to_vec(), ..PortRules::default() };
    let policy = PortPolicy::for_vif(&rules, Some(LockingMode::Locked), 1, None, Binding::None);
    check(&policy, "anywhere", &v4(Ipv4Addr::new(1, 2, 3, 4), TCP, 0, &tcp()), None);
    check(&policy, "anywhere", &v6(beside, TCP, &tcp()), None);
}

/// Every frame that a locked port gets through is, to another parser, from an address that it may
/// have, and is not a router advertisement.
#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn frames_that_pass_a_locked_port_have_its_addresses_by_an_independent_parser() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0050);
    let seeds = [
        v4(IP, UDP, 0, &udp(67, 68)),
        v4(IP, UDP, 0, &udp(4000, 53)),
        v6(IP6, ICMPV6, &nd(134, IP6, &[(1, OWN)])),
        v6(IP6, ICMPV6, &nd(136, IP6, &[(2, OWN)])),
        {
            let (next, payload) = behind(&[HOP_BY_HOP, DESTINATION], ICMPV6, &nd(134, IP6, &[]));
            v6(IP6, next, &payload)
        },
        {
            let (next, payload) = behind(&[FRAGMENT, DESTINATION], UDP, &udp(547, 546));
            v6(IP6, next, &payload)
        },
        arp(2, (OWN, IP), VICTIM_IP),
    ];
    let locked = locked();
    let mut passed = 0;
    for round in 0..200_000 {
        let mut frame = seeds[round % seeds.len()].clone();
        for _ in 0..random.usize(..4) {
            let at = random.usize(12..frame.len());
            frame[at] = match random.u8(..3) {
                0 => random.u8(..),
                1 => frame[at] ^ 1 << random.u8(..8),
                _ => 58,
            };
        }
        if random.u8(..4) == 0 {
            frame.truncate(random.usize(12..=frame.len()));
        }
        if locked.refuse(&frame).is_some() {
            continue;
        }
        passed += 1;
        check_by_another_parser(&frame);
    }
    assert!(passed > 10_000, "{passed} frames were compared");
}

fn check_by_another_parser(frame: &[u8]) {
    use etherparse::{InternetSlice, SlicedPacket, TransportSlice};

    let Ok(sliced) = SlicedPacket::from_ethernet(frame) else { return };
    match &sliced.net {
        Some(InternetSlice::Ipv4(ip)) => {
            let source = ip.header().source_addr();
            assert!(source == IP || source == NO_IP, "{frame:02x?}");
        }
        Some(InternetSlice::Ipv6(ip)) => {
            let source = ip.header().source_addr();
            let own = [IP6, NO_IP6, link_local_of(OWN)];
            assert!(own.contains(&source), "{frame:02x?}");
        }
        _ => {}
    }
    let is_v4 = matches!(sliced.net, Some(InternetSlice::Ipv4(_)));
    match &sliced.transport {
        Some(TransportSlice::Icmpv6(icmp)) if !is_v4 => {
            assert!(!matches!(icmp.header().icmp_type.type_u8(), 134 | 137), "{frame:02x?}");
        }
        Some(TransportSlice::Udp(udp)) => {
            let client = if is_v4 { 68 } else { 546 };
            assert_ne!(udp.destination_port(), client, "{frame:02x?}");
        }
        _ => {}
    }
}

#[test]
fn arbitrary_bytes_are_inspected_without_a_panic() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0051);
    let policies = [locked(), by_default()];
    let rounds = if cfg!(miri) { 2_000 } else { 300_000 };
    for _ in 0..rounds {
        let mut frame: Vec<u8> = (0..random.usize(..120)).map(|_| random.u8(..)).collect();
        let types = [[0x08, 0], [0x86, 0xdd], [0x08, 0x06], [0x81, 0]];
        if let Some(ethertype) = frame.get_mut(12..14) {
            ethertype.copy_from_slice(&types[random.usize(..4)]);
        }
        if let Some(first) = frame.get_mut(14) {
            *first = [0x45, 0x60, 0x4f, 0][random.usize(..4)];
        }
        if let Some(next) = frame.get_mut(20) {
            *next = [0, 44, 51, 58, 17][random.usize(..5)];
        }
        for policy in &policies {
            let _ = policy.refuse(&frame);
            let _ = policy.refuse_patched(&frame);
        }
    }
}
