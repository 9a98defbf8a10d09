//! The switch: frames from several ports over time. A frame is sent only to a port where its
//! destination was seen and has not aged out, and never back; flooding stays within its limit. A
//! port that has reported a multicast group receives it, whatever other messages are sent.

#![no_main]

use std::collections::HashMap;
use std::sync::Arc;

use etherparse::{IpNumber, NetSlice, SlicedPacket, TransportSlice};
use libfuzzer_sys::fuzz_target;
use ringway_datapath::{FrameBatch, FramePool, MacAddr, PoolBudget, VlanRules};
use ringway_fuzz::{Input, frames};
use ringway_switch::{
    FloodBudget, FloodLimit, MulticastConfig, PortId, PortPolicy, Role, StormLimits, Switch,
    SwitchConfig, Ticks, Unregistered, Verdict,
};

const PORTS: u16 = 4;
const AGEING_TICKS: u32 = 10;
const GROUPS_PER_PORT_MAX: u16 = 6;
/// How long the switch keeps a membership, in ticks.
const MEMBERSHIP_TICKS: u32 = 260;
const LIMIT: FloodLimit = FloodLimit { frames_per_tick: 2, burst_frames: 6, ..FloodLimit::NONE };

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let addresses_max = if input.flag() { 8 } else { 64 };
    let switch = Switch::new(SwitchConfig {
        fdb_entries_max: 64,
        ports_max: PORTS,
        addresses_per_port_max: addresses_max,
        ageing_ticks: AGEING_TICKS,
        flood: LIMIT,
        storm: StormLimits::NONE,
        multicast: Some(MulticastConfig {
            groups_max: 8,
            groups_per_port_max: GROUPS_PER_PORT_MAX,
            unregistered: if input.flag() { Unregistered::Flood } else { Unregistered::Routers },
            ticks_per_second: 1,
        }),
        hash_seed: 7,
    });
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let start = input.u32();
    let mut now = Ticks(start);
    let budgets: Vec<Arc<FloodBudget>> = (0..PORTS).map(|_| switch.flood_budget(now)).collect();
    for port in 0..PORTS {
        let role = if port == 0 { Role::Uplink } else { Role::Ordinary };
        switch.join(PortId(port), &VlanRules::default(), role).expect("there is room");
    }
    let mut listens = Listens::new();
    let mut flooded = [0_u64; PORTS as usize];
    let mut seen = Seen::new();
    let policy = PortPolicy::open();
    while !input.is_empty() {
        match input.u8() % 8 {
            0 => now = Ticks(now.0.wrapping_add(u32::from(input.u8()))),
            1 => switch.expire(now),
            2 => {
                let port = PortId(input.u16() % PORTS);
                switch.fdb().remove_port(port);
                seen.values_mut().for_each(|ports| ports.retain(|(at, _)| *at != port));
            }
            _ => {
                let from = PortId(input.u16() % PORTS);
                let mut batch = match input.flag() {
                    true => batch(&mut input, &mut pool),
                    false => multicast(&mut input, &mut pool),
                };
                let index = usize::from(from.0);
                switch.classify(from, &policy, &mut batch, now, &budgets[index]);
                for frame in &batch {
                    let verdict = frame.verdict;
                    check(frame.bytes(), verdict, from, now, &mut seen);
                    if from != PortId(0) && is_a_routers(frame.bytes()) {
                        assert!(matches!(verdict, Verdict::Drop(_)), "{from} was let be a router");
                    }
                    let is_flooded = matches!(verdict, Verdict::Flood | Verdict::Routers);
                    flooded[index] += u64::from(is_flooded);
                    if verdict == Verdict::Routers {
                        note(frame.bytes(), from, now, &mut listens);
                    }
                    let scope = switch.scope_of(from, &policy, frame, verdict);
                    for port in (0..PORTS).map(PortId) {
                        let is_wanted = verdict == Verdict::Flood
                            && is_listening(&listens, frame.bytes(), port, now);
                        let hears = scope.has(port);
                        assert!(hears || !is_wanted || port == from, "{port} does not hear it");
                        assert!(port != from || !hears, "a copy went back");
                    }
                }
                batch.into_iter().for_each(|frame| pool.recycle(frame));
            }
        }
        for port in 0..PORTS {
            let part = switch.multicast_port(PortId(port)).expect("multicast is snooped");
            assert!(part.groups <= GROUPS_PER_PORT_MAX.into(), "port {port}: {part:?}");
            assert!(!part.is_router || port == 0, "port {port} is not that of a router");
            let addresses = switch.fdb().port_len(PortId(port));
            assert!(addresses <= addresses_max, "port {port} has {addresses} addresses");
        }
    }
    let ticks = u64::from(now.0.wrapping_sub(start));
    let most = u64::from(LIMIT.burst_frames) + ticks * u64::from(LIMIT.frames_per_tick);
    assert!(flooded.iter().all(|count| *count <= most), "{flooded:?} floods in {ticks} ticks");
});

/// When ports reported which group, by its Ethernet address.
type Listens = HashMap<(PortId, [u8; 6]), Ticks>;

/// Records a report of one group, which the switch accepted; a leave message has the same layout.
fn note(frame: &[u8], from: PortId, now: Ticks, listens: &mut Listens) {
    let group = frame.get(38..).and_then(<[u8]>::first_chunk);
    let Some((&kind, &[a, b, c, d])) = frame.get(34).zip(group) else { return };
    let key = (from, [0x01, 0x00, 0x5e, b & 0x7f, c, d]);
    let is_plain = frame[12..15] == [0x08, 0x00, 0x45] && a & 0xf0 == 0xe0;
    match kind {
        0x12 | 0x16 if is_plain => drop(listens.insert(key, now)),
        // A message that this parser does not understand may also have ended the membership.
        _ => listens.retain(|(port, _), _| *port != from),
    }
}

fn is_listening(listens: &Listens, frame: &[u8], port: PortId, now: Ticks) -> bool {
    let group = frame.get(..6).and_then(<[u8]>::first_chunk).copied();
    let at = group.and_then(|group| listens.get(&(port, group)));
    at.is_some_and(|at| now.since(*at) < MEMBERSHIP_TICKS)
}

/// Whether stations treat a frame as a router's query or hello, according to another packet parser.
fn is_a_routers(frame: &[u8]) -> bool {
    let is_to_many = frame.first().is_some_and(|first| first & 1 != 0);
    // Stations ignore truncated packets.
    let Ok(sliced) = SlicedPacket::from_ethernet(frame) else { return false };
    if !is_to_many || !sliced.link_exts.is_empty() {
        return false;
    }
    match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let payload = ip.payload();
            let is_sound = !payload.fragmented && frames::sum([payload.payload]) == 0xffff;
            let kind = payload.payload.first();
            match payload.ip_number {
                IpNumber::IGMP => payload.payload.len() >= 8 && kind == Some(&0x11) && is_sound,
                IpNumber::PIM => payload.payload.len() >= 4 && kind == Some(&0x20) && is_sound,
                _ => false,
            }
        }
        Some(NetSlice::Ipv6(ip)) => {
            let Some(TransportSlice::Icmpv6(icmp)) = &sliced.transport else { return false };
            let header = ip.header();
            let (source, destination) = (header.source(), header.destination());
            icmp.header().icmp_type.type_u8() == 130
                && icmp.slice().len() >= 24
                && icmp.is_checksum_valid(source, destination)
        }
        _ => false,
    }
}

/// A few IGMP messages, some of them valid, and datagrams for their groups.
fn multicast(input: &mut Input<'_>, pool: &mut FramePool) -> FrameBatch {
    let mut batch = FrameBatch::new();
    for _ in 0..input.below(8) + 1 {
        let kind = [0x11, 0x12, 0x16, 0x16, 0x17, 0x22, 0xff][input.below(7)];
        let group = if input.below(4) == 0 { [0; 4] } else { [239, 1, 0, input.u8() % 24] };
        let mut message = vec![kind, input.u8(), 0, 0];
        match kind {
            0x22 => {
                message.extend([0, 0, 0, input.u8() % 4]);
                message.extend(input.bytes(48));
            }
            _ => message.extend(group),
        }
        let sum = !frames::sum([&message[..]]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let total = (20 + message.len()) as u16;
        let mut bytes = match input.below(8) {
            0 => vec![0xff; 6],
            _ => [&[0x01, 0x00, 0x5e], &group[1..]].concat(),
        };
        bytes.extend([2, 0, 0, 0, 0, 1, 8, 0]);
        bytes.extend([0x45, 0]);
        bytes.extend(total.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 1, if kind == 0xff { 17 } else { 2 }, 0, 0, 10, 0, 0, 1]);
        bytes.extend(group);
        bytes.extend(message);
        if input.below(16) == 0 {
            let at = input.below(bytes.len());
            bytes[at] ^= input.u8();
        }
        batch.extend(frames::in_pool(&bytes, pool));
    }
    batch
}

/// A few frames, most of them between a dozen addresses.
fn batch(input: &mut Input<'_>, pool: &mut FramePool) -> FrameBatch {
    let mut batch = FrameBatch::new();
    for _ in 0..input.below(8) + 1 {
        let mut bytes = [0; frames::ETHERNET_LEN];
        let [dst, src] = [0, 6].map(|_| input.u8());
        let whole = if dst < 250 && src < 250 {
            bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, dst % 12]);
            bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, src % 12]);
            &bytes[..]
        } else {
            input.bytes(frames::ETHERNET_LEN)
        };
        batch.extend(frames::in_pool(whole, pool));
    }
    batch
}

/// The ports where each source was seen, and when last. A live address does not move to another
/// port, so any of them may have it.
type Seen = HashMap<MacAddr, Vec<(PortId, Ticks)>>;

fn check(frame: &[u8], verdict: Verdict, from: PortId, now: Ticks, seen: &mut Seen) {
    let address = |at: usize| frame.get(at..at + 6)?.try_into().ok().map(MacAddr);
    let (Some(dst), Some(src)) = (address(0), address(6)) else {
        assert!(matches!(verdict, Verdict::Drop(_)), "half a header went to {verdict:?}");
        return;
    };
    if src.0[0] & 1 != 0 || src.0 == [0; 6] {
        assert!(matches!(verdict, Verdict::Drop(_)), "a frame from {src} went to {verdict:?}");
        return;
    }
    let ports = seen.entry(src).or_default();
    ports.retain(|(port, _)| *port != from);
    ports.push((from, now));
    if let Verdict::Unicast(port) = verdict {
        assert_ne!(port, from, "a frame went back");
        let ports = seen.get(&dst).map_or(&[][..], Vec::as_slice);
        let Some((_, when)) = ports.iter().find(|(at, _)| *at == port) else {
            panic!("{dst} was not seen at {port}")
        };
        assert!(now.since(*when) <= AGEING_TICKS, "{dst} had aged");
    }
}
