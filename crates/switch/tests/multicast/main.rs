//! Multicast snooping: which ports receive a group, given the messages of stations and routers.

mod bench;
mod packets;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use bench::{Bench, MEMBERSHIP, PORTS, ROUTER, UPLINK, frame, group_v6};
use packets::*;
use ringway_datapath::{
    Checksum, DropReason, FrameBatch, FramePool, LockingMode, MacAddr, MulticastRouter, PoolBudget,
    PortRules, Vid, VlanRules,
};
use ringway_switch::{
    Binding, FloodBudget, FloodLimit, PortId, PortPolicy, Role, Ticks, Unregistered, Verdict,
};

const A: u16 = 1;
const B: u16 = 2;
const C: u16 = 3;
const G: [u8; 4] = [239, 1, 2, 3];
const OTHER: [u8; 4] = [239, 1, 2, 4];
const STATION: [u8; 4] = [10, 0, 0, 7];

#[test]
fn a_group_reaches_its_reporters_and_routers() {
    for report in [
        igmp(V1_REPORT, 0, G, STATION),
        igmp(V2_REPORT, 0, G, STATION),
        igmpv3(&[(TO_EXCLUDE, G, 0)], STATION),
        igmpv3(&[(ALLOW, OTHER, 2), (TO_INCLUDE, G, 1)], STATION),
    ] {
        let mut bench = Bench::quiet(Unregistered::Flood);
        assert_eq!(bench.send(A, &report), Verdict::Routers);
        assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, A], "{report:02x?}");
        // Frames for a group without members go to all ports.
        assert_eq!(bench.receivers(C, &data_v4([239, 9, 9, 9])).len(), 5);
    }
}

#[test]
fn an_ipv6_group_reaches_its_reporters() {
    let group = group_v6(0x77);
    for report in [
        mld(MLD_REPORT, 0, group, near(7)),
        // Before it has an address (RFC 3810, 5.2.13).
        mldv2(&[(TO_EXCLUDE, group, 0)], [0; 16]),
        mldv2(&[(ALLOW, group_v6(0x78), 3), (TO_INCLUDE, group, 1)], near(7)),
    ] {
        let mut bench = Bench::quiet(Unregistered::Flood);
        assert_eq!(bench.send(A, &report), Verdict::Routers);
        assert_eq!(bench.receivers(C, &data_v6(group)), [UPLINK, A], "{report:02x?}");
        assert_eq!(bench.receivers(C, &data_v6(group_v6(0x99))).len(), 5);
    }
}

#[test]
fn reports_go_to_routers_and_queries_to_all_ports() {
    let mut bench = Bench::quiet(Unregistered::Flood);
    assert_eq!(bench.receivers(A, &igmp(V2_REPORT, 0, G, STATION)), [UPLINK]);
    assert_eq!(bench.receivers(A, &mldv2(&[(TO_EXCLUDE, group_v6(1), 0)], near(7))), [UPLINK]);
    assert_eq!(bench.receivers(A, &igmp(V2_LEAVE, 0, G, STATION)), [UPLINK]);
    assert_eq!(bench.receivers(UPLINK, &igmp(QUERY, 100, [0; 4], ROUTER)).len(), 5);
    // A query for a group goes to its members (RFC 4541, 2.1.2).
    bench.send(A, &igmp(V2_REPORT, 0, G, STATION));
    assert_eq!(bench.receivers(UPLINK, &igmp(QUERY, 10, G, ROUTER)), [A]);
}

#[test]
fn reports_that_receivers_would_accept_are_read() {
    let spoilt = |mut packet: Vec<u8>| {
        let last = packet.len() - 1;
        packet[last] ^= 0x40;
        packet
    };
    let query = igmp(QUERY, 100, [0; 4], ROUTER);
    let report = igmp(V2_REPORT, 0, G, STATION);
    let report_v6 = mld(MLD_REPORT, 0, group_v6(0x77), near(7));
    let refused = Verdict::Drop(DropReason::RouterOnly);
    let mut bench = Bench::quiet(Unregistered::Flood);
    // No receiver accepts them, so nothing is learned.
    for packet in [&query, &report, &report_v6] {
        assert_eq!(bench.send(A, &spoilt(packet.clone())), Verdict::Flood);
    }
    assert_eq!(bench.switch.group_entries(), []);
    // A guest may mark its checksums as valid, and other guests' kernels believe it.
    bench.checksum = Checksum::Validated;
    assert_eq!(bench.send(A, &spoilt(query.clone())), refused);
    assert_eq!(bench.receivers(A, &spoilt(report.clone())), [UPLINK]);
    assert_eq!(bench.receivers(A, &spoilt(report_v6.clone())), [UPLINK]);
    bench.checksum = Checksum::Unverified;
    // Nor does it matter to them how many priority tags a frame has.
    for tags in [vec![0], vec![0, 0]] {
        let tag = |packet: &[u8]| tags.iter().fold(packet.to_vec(), |it, vid| tagged(&it, *vid));
        assert_eq!(bench.send(A, &tag(&query)), refused, "{tags:?}");
        assert_eq!(bench.receivers(A, &tag(&report)), [UPLINK], "{tags:?}");
        assert_eq!(bench.receivers(A, &tag(&report_v6)), [UPLINK], "{tags:?}");
    }
}

#[test]
fn well_known_groups_go_to_all_ports_whatever_is_reported() {
    let mut bench = Bench::quiet(Unregistered::Routers);
    for last in [1, 5, 18, 251, 255] {
        let group = [224, 0, 0, last];
        bench.send(A, &igmp(V2_REPORT, 0, group, STATION));
        assert_eq!(bench.receivers(C, &data_v4(group)).len(), 5, "{group:?}");
        let mut group = all_nodes();
        group[15] = last;
        bench.send(A, &mld(MLD_REPORT, 0, group, near(7)));
        assert_eq!(bench.receivers(C, &data_v6(group)).len(), 5, "{group:?}");
    }
    // Neither are frames that are not IP.
    let mut other = data_v4(G);
    other[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(bench.receivers(C, &other).len(), 5);
    let mut broadcast = data_v4(G);
    broadcast[..6].fill(0xff);
    assert_eq!(bench.receivers(C, &broadcast).len(), 5);
    // Nor is a tag of an unknown VLAN, which may have a querier of its own.
    assert_eq!(bench.receivers(C, &tagged(&data_v4(G), 7)).len(), 5);
    assert_eq!(bench.switch.group_entries(), []);
}

#[test]
fn unregistered_groups_go_only_to_routers_if_so_configured() {
    let mut bench = Bench::quiet(Unregistered::Routers);
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK]);
    bench.send(A, &igmp(V2_REPORT, 0, G, STATION));
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, A]);
    assert_eq!(bench.receivers(C, &data_v4(OTHER)), [UPLINK]);
}

#[test]
fn without_a_querier_all_groups_go_to_all_ports() {
    let mut bench = Bench::new(Unregistered::Routers, 64);
    bench.pass(MEMBERSHIP + 2);
    bench.send(A, &igmp(V2_REPORT, 0, G, STATION));
    assert_eq!(bench.receivers(C, &data_v4(G)).len(), 5);
    // An IGMP querier, which has given stations 10 s: the first query counts.
    bench.send(UPLINK, &igmp(QUERY, 100, [0; 4], ROUTER));
    bench.pass(5);
    bench.send(UPLINK, &igmp(QUERY, 100, [0; 4], ROUTER));
    bench.pass(6);
    assert_eq!(bench.receivers(C, &data_v4(G)).len(), 5);
    bench.pass(1);
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, A]);
    // No MLD querier.
    assert_eq!(bench.receivers(C, &data_v6(group_v6(1))).len(), 5);
    // When a querier is gone, stations still receive the groups that they no longer report.
    bench.pass(250);
    assert_eq!(bench.receivers(C, &data_v4(G)).len(), 5);
}

#[test]
fn queries_of_every_version_are_recognized() {
    let response = |query: &[u8], is_v4: bool, seconds: u32| {
        let mut bench = Bench::new(Unregistered::Routers, 64);
        bench.pass(MEMBERSHIP + 2);
        bench.send(UPLINK, query);
        bench.pass(seconds + 1);
        let data = if is_v4 { data_v4(G) } else { data_v6(group_v6(1)) };
        let before = bench.receivers(C, &data).len();
        bench.pass(1);
        (before, bench.receivers(C, &data).len())
    };
    // Version 1 has no time, and means 10 s.
    assert_eq!(response(&igmp(QUERY, 0, [0; 4], ROUTER), true, 10), (5, 1));
    assert_eq!(response(&igmp(QUERY, 255, [0; 4], ROUTER), true, 26), (5, 1));
    assert_eq!(response(&igmpv3_query(20, ROUTER), true, 2), (5, 1));
    // A mantissa of 0x1f, shifted by 3 + 2: 99.2 s.
    assert_eq!(response(&igmpv3_query(0xaf, ROUTER), true, 100), (5, 1));
    assert_eq!(response(&mld(MLD_QUERY, 3000, [0; 16], near(1)), false, 3), (5, 1));
    // A querier without an address also asks, but does not indicate a router.
    assert_eq!(response(&igmp(QUERY, 10, [0; 4], [0; 4]), true, 1), (5, 1));
}

#[test]
fn a_membership_ends_by_a_leave_message_or_by_age() {
    let mut bench = Bench::quiet(Unregistered::Routers);
    bench.send(A, &igmp(V2_REPORT, 0, G, STATION));
    bench.send(B, &igmpv3(&[(TO_EXCLUDE, G, 0)], STATION));
    bench.send(A, &igmp(V2_LEAVE, 0, G, STATION));
    // The querier asks whether another station is there.
    bench.pass(2);
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, A, B]);
    bench.pass(1);
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, B]);
    // Another station behind the same port has reported.
    bench.send(B, &igmpv3(&[(TO_INCLUDE, G, 0)], STATION));
    bench.send(B, &igmp(V2_REPORT, 0, G, [10, 0, 0, 8]));
    for _ in 0..3 {
        bench.pass(80);
        bench.send(UPLINK, &igmp(QUERY, 100, [0; 4], ROUTER));
        assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, B]);
    }
    bench.pass(MEMBERSHIP - 240 + 1);
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK]);
    assert_eq!(bench.switch.group_entries(), []);
    assert_eq!(bench.multicast(B).groups, 0);
    // For MLD likewise.
    let group = group_v6(5);
    bench.send(A, &mld(MLD_REPORT, 0, group, near(7)));
    bench.send(A, &mld(MLD_DONE, 0, group, near(7)));
    bench.pass(3);
    assert_eq!(bench.multicast(A).groups, 0);
}

#[test]
fn a_port_with_too_many_memberships_gets_all_groups_at_no_cost_to_others() {
    let mut bench = Bench::quiet_with(Unregistered::Routers, 8);
    bench.send(B, &igmp(V2_REPORT, 0, G, STATION));
    for number in 0..100 {
        bench.send(A, &igmp(V2_REPORT, 0, [239, 7, number, 1], STATION));
    }
    assert_eq!(bench.multicast(A).groups, 8);
    assert!(bench.multicast(A).hears_all && !bench.multicast(A).is_router);
    for number in 0..100 {
        assert_eq!(bench.receivers(C, &data_v4([239, 7, number, 1])), [UPLINK, A]);
    }
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, A, B]);
    // It does not get messages from stations to routers.
    assert_eq!(bench.receivers(B, &igmp(V2_REPORT, 0, G, STATION)), [UPLINK]);
    // More records than are read, in one report.
    let records: Vec<_> = (0..80).map(|number| (TO_EXCLUDE, [239, 8, number, 1], 0)).collect();
    bench.send(C, &igmpv3(&records, STATION));
    assert!(bench.multicast(C).hears_all);
    // It ends when those memberships would have.
    bench.pass(MEMBERSHIP / 2);
    bench.send(UPLINK, &igmp(QUERY, 100, [0; 4], ROUTER));
    bench.pass(MEMBERSHIP / 2 + 1);
    assert!(!bench.multicast(A).hears_all && !bench.multicast(C).hears_all);
    assert_eq!(bench.receivers(C, &data_v4(OTHER)), [UPLINK]);
}

#[test]
fn a_full_table_denies_no_port_a_group() {
    let mut bench = Bench::quiet_with(Unregistered::Routers, 1000);
    for number in 0..=255 {
        bench.send(A, &igmp(V2_REPORT, 0, [239, 7, number, 1], STATION));
    }
    bench.send(B, &igmp(V2_REPORT, 0, G, STATION));
    bench.send(B, &mld(MLD_REPORT, 0, group_v6(3), near(7)));
    assert!(bench.switch.group_entries().len() <= 64);
    assert!(bench.receivers(C, &data_v4(G)).contains(&B));
    assert!(bench.receivers(C, &data_v6(group_v6(3))).contains(&B));
}

#[test]
fn a_guest_that_acts_as_a_router_is_refused() {
    let mut bench = Bench::quiet(Unregistered::Routers);
    let refused = Verdict::Drop(DropReason::RouterOnly);
    for query in [
        igmp(QUERY, 100, [0; 4], STATION),
        igmp(QUERY, 100, G, STATION),
        igmpv3_query(100, STATION),
        mld(MLD_QUERY, 1000, [0; 16], near(7)),
        mld(MLD_QUERY, 1000, group_v6(1), near(7)),
        pim_hello(),
    ] {
        assert_eq!(bench.send(A, &query), refused, "{query:02x?}");
    }
    assert!(!bench.multicast(A).is_router && !bench.multicast(A).hears_all);
    // Nor in a broadcast, or with an Ethernet group that is not the packet's: stations accept both.
    for dst in [[0xff; 6], [0x03, 0, 0, 0, 0, 1]] {
        let mut query = igmp(QUERY, 100, [0; 4], STATION);
        query[..6].copy_from_slice(&dst);
        assert_eq!(bench.send(A, &query), refused, "{dst:02x?}");
    }
    // Nor in fragments, which its receivers would reassemble.
    let mut first = igmp(QUERY, 100, [0; 4], STATION);
    first[14 + 6] = 0x20;
    assert_eq!(bench.send(A, &first), Verdict::Drop(DropReason::Undetermined));
    // Messages that receivers refuse may pass, and are not learned from.
    let mut wrong = igmp(QUERY, 100, [0; 4], STATION);
    let end = wrong.len() - 1;
    wrong[end] ^= 1;
    assert_eq!(bench.send(A, &wrong), Verdict::Flood);
}

#[test]
fn a_permitted_router_port_counts_as_one_while_its_router_is_active() {
    let mut bench = Bench::quiet(Unregistered::Routers);
    for (query, is_router) in [
        (igmp(QUERY, 100, [0; 4], ROUTER), true),
        (igmp(QUERY, 100, [0; 4], [0; 4]), false),
        (mld(MLD_QUERY, 1000, [0; 16], near(1)), true),
        (pim_hello(), true),
    ] {
        bench.switch.set_multicast_router(PortId(A), MulticastRouter::Learn);
        assert!(!bench.multicast(A).is_router);
        assert_eq!(bench.send(A, &query), Verdict::Flood);
        assert_eq!(bench.multicast(A).is_router, is_router, "{query:02x?}");
    }
    assert_eq!(bench.receivers(B, &igmp(V2_REPORT, 0, G, STATION)), [UPLINK, A]);
    assert_eq!(bench.receivers(C, &data_v4(OTHER)), [UPLINK, A]);
    bench.pass(100);
    bench.send(UPLINK, &igmp(QUERY, 100, [0; 4], ROUTER));
    bench.pass(162);
    assert!(!bench.multicast(A).is_router);
    assert_eq!(bench.receivers(C, &data_v4(OTHER)), [UPLINK]);
}

#[test]
fn a_port_gets_all_groups_until_its_station_has_been_queried() {
    let mut bench = Bench::quiet(Unregistered::Routers);
    bench.send(A, &igmp(V2_REPORT, 0, G, STATION));
    // It connects again, and reports nothing by itself.
    bench.switch.leave(PortId(A));
    assert_eq!(bench.switch.group_entries(), []);
    bench.switch.join(PortId(A), &VlanRules::default(), Role::Ordinary).expect("there is room");
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, A]);
    bench.pass(100);
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, A]);
    for query in [igmp(QUERY, 100, [0; 4], ROUTER), mld(MLD_QUERY, 10_000, [0; 16], near(1))] {
        assert!(bench.multicast(A).hears_all);
        bench.send(UPLINK, &query);
        bench.pass(10);
        bench.send(A, &igmp(V2_REPORT, 0, G, STATION));
        bench.pass(2);
    }
    assert!(!bench.multicast(A).hears_all);
    assert_eq!(bench.receivers(C, &data_v4(G)), [UPLINK, A]);
}

#[test]
fn groups_of_one_vlan_do_not_exist_in_another() {
    let mut bench = Bench::quiet(Unregistered::Flood);
    let vid = |number| Vid::new(number).expect("a number");
    let access = |number| VlanRules { untagged: Some(vid(number)), tagged: Vec::new() };
    let trunk = VlanRules { untagged: None, tagged: vec![vid(10), vid(20)] };
    bench.join(UPLINK, &trunk, Role::Uplink);
    for (port, vlan) in [(A, 10), (B, 10), (C, 20), (4, 20), (5, 10)] {
        bench.join(port, &access(vlan), Role::Ordinary);
    }
    bench.pass(MEMBERSHIP + 2);
    // Only one of the two has a querier.
    bench.send(UPLINK, &tagged(&igmp(QUERY, 10, [0; 4], ROUTER), 10));
    bench.pass(3);
    bench.send(A, &igmp(V2_REPORT, 0, G, STATION));
    bench.send(C, &igmp(V2_REPORT, 0, G, STATION));
    assert_eq!(bench.receivers(UPLINK, &tagged(&data_v4(G), 10)), [A]);
    assert_eq!(bench.receivers(B, &data_v4(G)), [UPLINK, A]);
    assert_eq!(bench.receivers(UPLINK, &tagged(&data_v4(G), 20)), [C, 4]);
    bench.send(UPLINK, &tagged(&igmp(QUERY, 10, [0; 4], ROUTER), 20));
    bench.pass(3);
    assert_eq!(bench.receivers(UPLINK, &tagged(&data_v4(G), 20)), [C]);
    let entries = bench.switch.group_entries();
    let mut vlans: Vec<u16> = entries.iter().map(|entry| entry.vlan).collect();
    vlans.sort_unstable();
    assert_eq!(vlans, [10, 20]);
    assert_eq!(entries[0].group, MacAddr([0x01, 0x00, 0x5e, 1, 2, 3]));
}

#[test]
fn a_report_that_its_port_may_not_send_has_no_effect() {
    let mut bench = Bench::quiet(Unregistered::Routers);
    let allowed = vec!["10.0.0.7".parse().expect("an address")];
    let rules = PortRules { allowed, ..PortRules::default() };
    let mode = Some(LockingMode::Locked);
    let policy = PortPolicy::for_vif(&rules, mode, 1, None, Binding::None);
    bench.policies[usize::from(A)] = policy;
    let refused = Verdict::Drop(DropReason::IpSource);
    assert_eq!(bench.send(A, &igmp(V2_REPORT, 0, G, [10, 0, 0, 8])), refused);
    assert_eq!(bench.multicast(A).groups, 0);
    assert_eq!(bench.send(A, &igmp(V2_REPORT, 0, G, STATION)), Verdict::Routers);
    // Before it has an address.
    assert_eq!(bench.send(A, &igmp(V2_REPORT, 0, OTHER, [0; 4])), Verdict::Routers);
    assert_eq!(bench.multicast(A).groups, 2);
}

#[test]
fn reports_are_charged_before_they_are_parsed() {
    let mut bench = Bench::quiet(Unregistered::Flood);
    bench.flood[usize::from(A)].set_limit(FloodLimit::per_tick(Some(3), None));
    for number in 0..10 {
        bench.send(A, &igmp(V2_REPORT, 0, [239, 7, number, 1], STATION));
    }
    assert_eq!(bench.multicast(A).groups, 3);
}

/// When each port's station has asked for each group.
type Wanted = HashMap<(u16, [u8; 4]), u32>;

/// Members hear a group, and others only if all do.
fn check_receivers(bench: &mut Bench, wanted: &Wanted, group: [u8; 4]) {
    let receivers = bench.receivers(UPLINK, &data_v4(group));
    for ((port, of), at) in wanted {
        let is_live = bench.now.0 - at < MEMBERSHIP;
        assert!(
            *of != group || !is_live || receivers.contains(port),
            "{port} does not hear {group:?}: {receivers:?}"
        );
    }
    if !receivers.is_empty() && receivers.len() < usize::from(PORTS) - 1 {
        let is_meant =
            |port: &u16| wanted.contains_key(&(*port, group)) || bench.multicast(*port).hears_all;
        // A member that has left is kept for a moment.
        let is_settled = bench.now.0 > bench.passed_at + 3;
        assert!(!is_settled || receivers.iter().all(is_meant), "{group:?}: {receivers:?}");
    }
}

#[test]
fn in_every_history_members_get_their_groups() {
    for seed in 0..if cfg!(miri) { 2 } else { 300 } {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let unregistered = if random.bool() { Unregistered::Flood } else { Unregistered::Routers };
        let per_port = *random.choice(&[1, 4, 1000]).expect("there are some");
        let mut bench = Bench::new(unregistered, per_port);
        let mut wanted = Wanted::new();
        for _ in 0..400 {
            let port = random.u16(1..PORTS);
            let group = [239, 1, random.u8(..12), random.u8(..12)];
            match random.u8(..12) {
                0..5 => {
                    let report = match random.bool() {
                        true => igmp(V2_REPORT, 0, group, STATION),
                        false => igmpv3(&[(TO_EXCLUDE, group, 0)], STATION),
                    };
                    bench.send(port, &report);
                    wanted.insert((port, group), bench.now.0);
                }
                5 => {
                    bench.send(port, &igmp(V2_LEAVE, 0, group, STATION));
                    wanted.remove(&(port, group));
                }
                6 => bench.pass(random.u32(1..40)),
                7 => {
                    bench.send(UPLINK, &igmp(QUERY, random.u8(..), [0; 4], ROUTER));
                    let now = bench.now.0;
                    wanted.retain(|_, at| now - *at < MEMBERSHIP);
                    for ((port, group), at) in &mut wanted {
                        bench.send(*port, &igmp(V2_REPORT, 0, *group, STATION));
                        *at = now;
                    }
                }
                8 => drop(bench.send(port, &igmp(QUERY, random.u8(..), [0; 4], STATION))),
                9 if random.u8(..10) == 0 => {
                    bench.switch.leave(PortId(port));
                    bench.join(port, &VlanRules::default(), Role::Ordinary);
                    // Its station still wants its group.
                }
                _ => check_receivers(&mut bench, &wanted, group),
            }
            let counted: usize =
                bench.switch.group_entries().iter().map(|entry| entry.ports.len()).sum();
            let noted: u32 = (0..PORTS).map(|port| bench.multicast(port).groups).sum();
            assert_eq!(u32::try_from(counted), Ok(noted), "seed {seed}");
        }
    }
}

#[test]
fn learning_concurrent_with_expiry_loses_no_membership() {
    let bench = Bench::quiet_with(Unregistered::Routers, 1000);
    let (switch, policy) = (&bench.switch, &PortPolicy::open());
    let (now, is_done) = (&AtomicU32::new(bench.now.0), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !is_done.load(SeqCst) {
                // Few entries live long.
                let at = Ticks(now.fetch_add(70, SeqCst));
                switch.expire(at);
            }
        });
        let workers: Vec<_> = (1..4_u16)
            .map(|port| {
                scope.spawn(move || {
                    let flood = FloodBudget::new(FloodLimit::NONE, Ticks(0));
                    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
                    let mut random = fastrand::Rng::with_seed(port.into());
                    for _ in 0..if cfg!(miri) { 50 } else { 20_000 } {
                        let group = [239, 1, 1, random.u8(..16)];
                        let at = now.load(SeqCst);
                        let report = frame(&mut pool, &igmp(V2_REPORT, 0, group, STATION), port);
                        let mut batch = FrameBatch::new();
                        batch.push(report);
                        let from = PortId(port);
                        switch.classify(from, policy, &mut batch, Ticks(at), &flood);
                        let data = frame(&mut pool, &data_v4(group), UPLINK);
                        let scope = switch.scope_of(PortId(UPLINK), policy, &data, Verdict::Flood);
                        let hears = scope.has(from);
                        let is_live = now.load(SeqCst) - at < MEMBERSHIP;
                        assert!(hears || !is_live, "port {port} does not hear {group:?}");
                        pool.recycle(data);
                        batch.drain(..).for_each(|frame| pool.recycle(frame));
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> =
            workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_done.store(true, SeqCst);
        assert!(outcomes.iter().all(Result::is_ok));
    });
    // All have aged: nothing is left of them, and no count drifted.
    let end = now.load(SeqCst) + 2 * MEMBERSHIP;
    switch.expire(Ticks(end));
    switch.expire(Ticks(end));
    assert_eq!(switch.group_entries(), []);
    for port in 0..PORTS {
        assert_eq!(bench.multicast(port).groups, 0, "{port}");
    }
}
