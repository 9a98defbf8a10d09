//! What a port may send: any frame is judged, and by the short cut as by a closer look. What a
//! locked port gets through is, by another reader of packets, from its own addresses and neither a
//! router's nor a DHCP server's. What it says of multicast groups fills no more of the table than is
//! its own, and never makes it a router's port.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use libfuzzer_sys::fuzz_target;
use ringway_datapath::{
    FrameBatch, FramePool, IpNetwork, LockingMode, MacAddr, PoolBudget, PortRules, VlanRules,
    link_local_of,
};
use ringway_fuzz::{Input, frames};
use ringway_switch::{
    Binding, FloodLimit, MulticastConfig, PortId, PortPolicy, Role, StormLimits, Switch,
    SwitchConfig, Ticks, Unregistered, Verdict, Verdicts,
};

const OWN: MacAddr = MacAddr([0x00, 0x16, 0x3e, 0, 0, 1]);
const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let shape = input.u8();
    let mut frame = [[0xff; 6], OWN.0].concat();
    // Most of the time something that a reader knows.
    match shape {
        // IGMP, MLD, and both again in a place that a filter may not look at.
        250.. => frame.extend(IGMP),
        240.. => frame.extend(MLD),
        230.. => frame.extend([0, 64, 0xaa, 0xaa, 3, 0, 0, 0]),
        _ => {}
    }
    match shape % 5 {
        _ if shape >= 230 => {}
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
    for mode in [None, Some(LockingMode::Locked)] {
        listen(&frame, &policy(mode));
    }
});

/// An Ethernet type, and IPv4 with the option that routers are to look at it, up to the message.
const IGMP: [u8; 26] =
    [0x08, 0, 0x46, 0, 0, 32, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 239, 1, 0, 1, 0x94, 4, 0, 0];
/// The same of IPv6, with hop-by-hop options.
const MLD: [u8; 50] = [
    0x86, 0xdd, 0x60, 0, 0, 0, 0, 48, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff,
    2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 58, 0, 5, 2, 0, 0, 1, 0,
];
const GROUPS_MAX: u16 = 8;
const GROUPS_PER_PORT_MAX: u16 = 3;

/// What the port says of groups, sixteen times with other last bytes of what it says.
fn listen(frame: &[u8], policy: &PortPolicy) {
    let switch = Switch::new(SwitchConfig {
        fdb_entries_max: 16,
        ports_max: 4,
        addresses_per_port_max: 4,
        ageing_ticks: 300,
        flood: FloodLimit::NONE,
        storm: StormLimits::NONE,
        multicast: Some(MulticastConfig {
            groups_max: GROUPS_MAX,
            groups_per_port_max: GROUPS_PER_PORT_MAX,
            unregistered: Unregistered::Routers,
            ticks_per_second: 1,
        }),
        hash_seed: 7,
    });
    let [uplink, port] = [PortId(0), PortId(1)];
    for (at, role) in [(uplink, Role::Uplink), (port, Role::Ordinary)] {
        switch.join(at, &VlanRules::default(), role).expect("there is room");
    }
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let flood = switch.flood_budget(Ticks(0));
    let mut verdicts = Verdicts::new();
    for number in 0..16 {
        let mut bytes = frame.to_vec();
        bytes[..6].copy_from_slice(&[0x01, 0x00, 0x5e, 1, 0, 1]);
        if bytes.get(12) == Some(&0x86) {
            bytes[..2].copy_from_slice(&[0x33, 0x33]);
        }
        if let Some(last) = bytes.last_mut() {
            *last ^= number;
        }
        let mut batch: FrameBatch = frames::in_pool(&bytes, &mut pool).into_iter().collect();
        switch.classify(port, policy, &mut batch, Ticks(0), &flood, &mut verdicts);
        for (frame, verdict) in batch.iter().zip(&verdicts) {
            let is_asking = is_query(frame.bytes());
            assert!(!is_asking || matches!(verdict, Verdict::Drop(_)), "a query got through");
        }
        batch.into_iter().for_each(|frame| pool.recycle(frame));
    }
    let entries = switch.group_entries();
    assert!(entries.len() <= GROUPS_MAX.into(), "{entries:?}");
    let part = switch.multicast_port(port).expect("multicast is snooped");
    assert!(part.groups <= GROUPS_PER_PORT_MAX.into() && !part.is_router, "{part:?}");
    assert_eq!(switch.multicast_port(uplink).expect("it is snooped").groups, 0);
    switch.leave(port);
    assert!(switch.group_entries().is_empty(), "a membership stayed behind");
}

/// Whether another reader of packets finds a whole query of IGMP or MLD.
fn is_query(frame: &[u8]) -> bool {
    let Ok(sliced) = LaxSlicedPacket::from_ethernet(frame) else { return false };
    match (&sliced.net, &sliced.transport) {
        (Some(LaxNetSlice::Ipv4(ip)), _) => {
            let payload = ip.payload();
            payload.ip_number.0 == 2
                && !payload.fragmented
                && payload.payload.first() == Some(&0x11)
        }
        (Some(LaxNetSlice::Ipv6(_)), Some(TransportSlice::Icmpv6(icmp))) => {
            icmp.header().icmp_type.type_u8() == 130
        }
        _ => false,
    }
}

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
        // Over IPv4 it means nothing.
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
