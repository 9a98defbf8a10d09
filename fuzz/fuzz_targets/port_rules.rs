//! What a port may send: any frame gets a verdict, and the fast path agrees with the full check.
//! What a locked port gets through is, according to another packet parser, from its own addresses,
//! and neither a router's nor a DHCP server's.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use libfuzzer_sys::fuzz_target;
use ringway_datapath::{IpNetwork, LockingMode, MacAddr, PortRules, link_local_of};
use ringway_fuzz::Input;
use ringway_switch::{Binding, PortPolicy};

const OWN: MacAddr = MacAddr([0x00, 0x16, 0x3e, 0, 0, 1]);
const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let shape = input.u8();
    let mut frame = [[0xff; 6], OWN.0].concat();
    // Mostly frames that a parser accepts.
    match shape % 5 {
        0 => frame.extend([0x08, 0x00, 0x45]),
        1 => frame.extend([0x86, 0xdd, 0x60]),
        2 => frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0]),
        3 => frame.extend([0x81, 0, 0, 0]),
        _ => {}
    }
    frame.extend(input.rest());
    let allowed = [IpAddr::from(V4), IpAddr::from(V6)].map(IpNetwork::host).to_vec();
    let rules = PortRules { allowed, ..PortRules::default() };
    let policy = |mode| PortPolicy::for_vif(&rules, mode, 1, Some(OWN), Binding::Static);
    let by_default = policy(None).refuse_patched(&frame);
    let locked = policy(Some(LockingMode::Locked)).refuse_patched(&frame);
    assert!(by_default.is_none() || locked.is_some(), "a locked port may send {by_default:?}");
    for mode in [None, Some(LockingMode::Locked)] {
        let policy = policy(mode);
        assert_eq!(policy.refuse(&frame), policy.refuse_by_inspection(&frame), "{mode:?}");
    }
    assert!(policy(Some(LockingMode::Disabled)).refuse_patched(&frame).is_some());
    if locked.is_none() {
        check(&frame);
    }
});

fn check(frame: &[u8]) {
    let Ok(sliced) = LaxSlicedPacket::from_ethernet(frame) else { return };
    match &sliced.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let source = ip.header().source_addr();
            assert!(source == V4 || source.is_unspecified(), "from {source}");
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let source = ip.header().source_addr();
            let own = [V6, link_local_of(OWN), Ipv6Addr::UNSPECIFIED];
            assert!(own.contains(&source), "from {source}");
        }
        _ => {}
    }
    let is_v4 = matches!(sliced.net, Some(LaxNetSlice::Ipv4(_)));
    match &sliced.transport {
        // Over IPv4 it has no meaning.
        Some(TransportSlice::Icmpv6(icmp)) if !is_v4 => {
            let kind = icmp.header().icmp_type.type_u8();
            assert!(!matches!(kind, 134 | 137), "ICMPv6 {kind}");
        }
        Some(TransportSlice::Udp(udp)) => {
            let to = udp.destination_port();
            let server = if is_v4 { 68 } else { 546 };
            assert_ne!(to, server, "to a DHCP client");
        }
        _ => {}
    }
}
