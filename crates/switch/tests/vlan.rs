//! VLANs and private ports: which ports receive whose frames.

use ringway_datapath::{
    DropReason, Frame, FrameBatch, FramePool, FrameVlan, MacAddr, PoolBudget, Vid, VlanRules,
};
use ringway_switch::fdb::Assigned;
use ringway_switch::{PortId, PortPolicy, Role, Switch, SwitchConfig, Ticks, Verdict};

const PORTS: u16 = 8;
const ALL: MacAddr = MacAddr::BROADCAST;
const NOW: Ticks = Ticks(0);

fn vid(number: u16) -> Vid {
    Vid::new(number).expect("a VLAN")
}

fn access(number: u16) -> VlanRules {
    VlanRules { untagged: Some(vid(number)), tagged: Vec::new() }
}

fn trunk(native: Option<u16>, tagged: &[u16]) -> VlanRules {
    VlanRules { untagged: native.map(vid), tagged: tagged.iter().copied().map(vid).collect() }
}

fn mac(number: u16) -> MacAddr {
    let [high, low] = number.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

struct Bench {
    switch: Switch,
    policies: Vec<PortPolicy>,
    pool: FramePool,
}

/// The result for a frame: its verdict, its VLAN, and its length.
type Outcome = (Verdict, FrameVlan, usize);

impl Bench {
    /// Ports 0, 1, ... with these rules and roles.
    fn new(ports: &[(VlanRules, Role)]) -> Bench {
        let switch = Switch::new(SwitchConfig {
            addresses_per_port_max: 8,
            ..SwitchConfig::unlimited(64, PORTS, 0x5eed_0060)
        });
        let mut bench =
            Bench { switch, policies: Vec::new(), pool: FramePool::new(PoolBudget::new(1 << 20)) };
        for (number, (rules, role)) in (0..).zip(ports) {
            let vlan = bench.switch.join(PortId(number), rules, *role).expect("there is room");
            bench.policies.push(PortPolicy::open().in_vlans(vlan));
        }
        bench
    }

    fn ordinary(ports: &[VlanRules]) -> Bench {
        let ports: Vec<_> = ports.iter().map(|rules| (rules.clone(), Role::Ordinary)).collect();
        Bench::new(&ports)
    }

    fn send(&mut self, from: u16, dst: MacAddr, src: MacAddr, tag: &[u8]) -> Outcome {
        let mut bytes = [dst.0, src.0].concat();
        bytes.extend(tag);
        bytes.extend([0x88, 0xb5]);
        bytes.resize(60, 0);
        let mut frame: Frame = self.pool.take(bytes.len()).expect("there is memory");
        frame.bytes_mut().copy_from_slice(&bytes);
        let mut batch = FrameBatch::new();
        batch.push(frame);
        let flood = self.switch.flood_budget(NOW);
        let policy = &self.policies[usize::from(from)];
        self.switch.classify(PortId(from), policy, &mut batch, NOW, &flood);
        let frame = batch.pop().expect("one came in");
        let outcome = (frame.verdict, frame.vlan, frame.len());
        self.pool.recycle(frame);
        outcome
    }

    /// The ports that hear a broadcast, those that get a tag with a +.
    fn receivers(&mut self, from: u16, tag: &[u8]) -> String {
        let (verdict, vlan, _) = self.send(from, ALL, mac(from), tag);
        if verdict != Verdict::Flood {
            return format!("{verdict:?}");
        }
        let scope = self.switch.scope(PortId(from), &self.policies[usize::from(from)], vlan);
        let hear = (0..PORTS).filter(|port| scope.has(PortId(*port)));
        hear.map(|port| match scope.wants_tag(PortId(port)) {
            true => format!("{port}+"),
            false => format!("{port}"),
        })
        .collect::<Vec<_>>()
        .join(" ")
    }
}

fn tag(number: u16) -> Vec<u8> {
    [0x8100, number].map(u16::to_be_bytes).concat()
}

const FOREIGN: &str = "Drop(Vlan)";

#[test]
fn a_broadcast_stays_in_its_vlan_and_is_tagged_as_each_port_requires() {
    let none = VlanRules::default();
    let mut bench = Bench::ordinary(&[
        access(10),
        access(10),
        access(20),
        trunk(None, &[10, 20]),
        trunk(Some(10), &[20]),
        none.clone(),
        none,
    ]);
    assert_eq!(bench.receivers(0, &[]), "1 3+ 4");
    assert_eq!(bench.receivers(2, &[]), "3+ 4+");
    assert_eq!(bench.receivers(3, &tag(10)), "0 1 4");
    assert_eq!(bench.receivers(3, &tag(0x6000 | 20)), "2 4+", "whatever its priority");
    assert_eq!(bench.receivers(4, &[]), "0 1 3+");
    assert_eq!(bench.receivers(4, &tag(20)), "2 3+");
    // Ports in no VLAN hear each other, and carry tags as they are.
    assert_eq!(
        (bench.receivers(5, &[]), bench.receivers(5, &tag(10))),
        ("6 7".into(), "6 7".into())
    );
}

#[test]
fn a_tag_of_a_foreign_vlan_is_dropped() {
    let mut bench = Bench::ordinary(&[access(10), trunk(None, &[10]), trunk(Some(10), &[20])]);
    // Not even its own: a guest on an access port does not use VLANs.
    for number in [10, 20, 4095] {
        assert_eq!(bench.receivers(0, &tag(number)), FOREIGN, "{number}");
    }
    assert_eq!(bench.receivers(1, &[]), FOREIGN, "a trunk without a VLAN for frames without a tag");
    assert_eq!(bench.receivers(1, &tag(20)), FOREIGN);
    assert_eq!(bench.receivers(2, &tag(10)), FOREIGN, "it is in 10 without a tag");
    let service = [0x88a8, 10].map(u16::to_be_bytes).concat();
    assert_eq!(bench.receivers(1, &service), FOREIGN);
    // A priority is not a VLAN: the frame counts as untagged, and loses the tag.
    assert_eq!(bench.receivers(0, &tag(0)), "1+ 2");
    let (_, vlan, len) = bench.send(0, ALL, mac(0), &tag(0xe000));
    assert_eq!((vlan, len), (FrameVlan::Untagged(vid(10)), 56));
    assert_eq!(bench.receivers(0, &[tag(0), tag(20)].concat()), FOREIGN, "another tag behind it");
    assert_eq!(bench.receivers(0, &[tag(0), tag(0)].concat()), FOREIGN);
    assert_eq!(bench.receivers(1, &tag(0)), FOREIGN);
}

#[test]
fn one_address_may_be_at_different_ports_in_two_vlans() {
    let mut bench = Bench::ordinary(&[access(10), access(20), access(10), access(20)]);
    let same = mac(77);
    bench.send(0, ALL, same, &[]);
    bench.send(1, ALL, same, &[]);
    assert_eq!(bench.send(2, same, mac(2), &[]).0, Verdict::Unicast(PortId(0)));
    assert_eq!(bench.send(3, same, mac(3), &[]).0, Verdict::Unicast(PortId(1)));
    for (port, vlan) in [(2, 10), (3, 20)] {
        let own = Assigned { own: &[mac(9)], addresses_max: 1, ..Assigned::default() };
        assert_eq!(bench.switch.assign(PortId(port), &own, NOW), [], "{vlan}");
    }
    assert_eq!(bench.send(0, mac(9), same, &[]).0, Verdict::Unicast(PortId(2)));
    assert_eq!(bench.send(1, mac(9), same, &[]).0, Verdict::Unicast(PortId(3)));
    let vlans: Vec<_> = bench.switch.entries(NOW).iter().map(|(vlan, _)| *vlan).collect();
    assert_eq!(vlans.iter().filter(|vlan| **vlan == Some(vid(10))).count(), 3, "{vlans:?}");
    assert!(bench.switch.fdb().is_empty());
}

#[test]
fn a_port_that_changes_its_vlan_leaves_no_entries_behind() {
    let mut bench = Bench::ordinary(&[access(10), access(10)]);
    bench.send(0, ALL, mac(0), &[]);
    assert_eq!(bench.send(1, mac(0), mac(1), &[]).0, Verdict::Unicast(PortId(0)));
    let vlan = bench.switch.join(PortId(0), &access(20), Role::Ordinary).expect("there is room");
    bench.policies[0] = PortPolicy::open().in_vlans(vlan);
    assert_eq!(bench.send(1, mac(0), mac(1), &[]).0, Verdict::Flood);
    assert_eq!((bench.receivers(0, &[]), bench.receivers(1, &[])), (String::new(), String::new()));
    bench.switch.leave(PortId(0));
    bench.switch.leave(PortId(1));
    assert!(bench.switch.entries(NOW).is_empty());
}

#[test]
fn the_number_of_vlans_is_bounded_and_unused_ones_are_freed() {
    let bench = Bench::ordinary(&[]);
    let list = |from: u16| -> Vec<u16> { (from..from + 64).collect() };
    for (port, first) in [(0, 1), (1, 65), (2, 129), (3, 193)] {
        bench.switch.join(PortId(port), &trunk(None, &list(first)), Role::Ordinary).expect("room");
    }
    let refused = bench.switch.join(PortId(4), &access(300), Role::Ordinary).expect_err("full");
    assert!(refused.to_string().contains("256"), "{refused}");
    bench.switch.join(PortId(4), &access(256), Role::Ordinary).expect("it is there");
    bench.switch.leave(PortId(0));
    bench.switch.join(PortId(4), &access(300), Role::Ordinary).expect("there is room");
    // A port needs no room for what it alone leaves.
    for first in [300, 400] {
        bench.switch.join(PortId(4), &trunk(None, &list(first)), Role::Ordinary).expect("room");
    }
    let more: Vec<u16> = (400..465).collect();
    bench.switch.join(PortId(4), &trunk(None, &more), Role::Ordinary).expect_err("one too many");
}

#[test]
fn a_private_port_reaches_uplinks_only() {
    let none = VlanRules::default;
    let mut bench = Bench::new(&[
        (none(), Role::Uplink),
        (none(), Role::Private),
        (none(), Role::Private),
        (none(), Role::Ordinary),
        (none(), Role::Ordinary),
    ]);
    assert_eq!(bench.receivers(0, &[]), "1 2 3 4 5 6 7");
    assert_eq!((bench.receivers(1, &[]), bench.receivers(2, &[])), ("0".into(), "0".into()));
    assert_eq!(
        (bench.receivers(3, &[]), bench.receivers(4, &[])),
        ("0 4 5 6 7".into(), "0 3 5 6 7".into())
    );
    let isolated = Verdict::Drop(DropReason::Isolated);
    for (from, to, expected) in [
        (1, 0, Verdict::Unicast(PortId(0))),
        (0, 1, Verdict::Unicast(PortId(1))),
        (1, 2, isolated),
        (1, 3, isolated),
        (3, 1, isolated),
        (3, 4, Verdict::Unicast(PortId(4))),
    ] {
        assert_eq!(bench.send(from, mac(to), mac(from), &[]).0, expected, "{from} to {to}");
    }
}

fn random_port(random: &mut fastrand::Rng) -> (VlanRules, Role) {
    let untagged = (random.u8(..4) > 0).then(|| 1 + random.u16(..3));
    let tagged: Vec<u16> = (1..5).filter(|_| random.u8(..3) == 0).collect();
    let rules = match random.u8(..3) {
        0 => VlanRules::default(),
        1 => access(1 + random.u16(..3)),
        _ => trunk(untagged, &tagged),
    };
    let role = [Role::Ordinary, Role::Ordinary, Role::Private, Role::Uplink];
    (rules, role[random.usize(..4)])
}

/// The VLAN of a frame that enters by a port, from the rules alone, as its tag says or 0 without
/// one: `None` where there are no VLANs, `Some(None)` for a frame that belongs to none.
fn vlan_of(rules: &VlanRules, number: u16) -> Option<Option<u16>> {
    match (rules.is_none(), number == 0) {
        (true, _) => None,
        (false, true) => Some(rules.untagged.map(Vid::get)),
        // If the port is in a VLAN both tagged and untagged, both forms are accepted.
        (false, false) => Some(rules.tagged.contains(&vid(number)).then_some(number)),
    }
}

/// In each world: a frame goes only where its VLAN is, and never past a private port.
#[test]
#[cfg_attr(miri, ignore = "too many frames for Miri")]
fn frames_never_leave_their_vlan() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(0x5eed_0061 + seed);
        let ports: Vec<_> = (0..PORTS).map(|_| random_port(&mut random)).collect();
        let mut bench = Bench::new(&ports);
        for _ in 0..400 {
            let (from, number) = (random.u16(..PORTS), random.u16(..6));
            let (rules, role) = &ports[usize::from(from)];
            let sent = if random.bool() { tag(number) } else { Vec::new() };
            let vlan = vlan_of(rules, if sent.is_empty() { 0 } else { number });
            let is_member = |port: u16| {
                let rules = &ports[usize::from(port)].0;
                match vlan {
                    None => rules.is_none(),
                    Some(None) => false,
                    Some(Some(number)) => {
                        rules.untagged == Vid::new(number) || rules.tagged.contains(&vid(number))
                    }
                }
            };
            let may_exchange = |port: u16| {
                let other = ports[usize::from(port)].1;
                let is_kept = |one, two| one == Role::Private && two != Role::Uplink;
                !is_kept(*role, other) && !is_kept(other, *role)
            };
            let dst = if random.bool() { ALL } else { mac(random.u16(..PORTS)) };
            let (verdict, frame_vlan, _) = bench.send(from, dst, mac(from), &sent);
            match verdict {
                Verdict::Unicast(to) => {
                    assert!(is_member(to.0) && may_exchange(to.0), "seed {seed}: {from} to {to}");
                }
                Verdict::Flood | Verdict::Routers => {
                    let policy = &bench.policies[usize::from(from)];
                    let scope = bench.switch.scope(PortId(from), policy, frame_vlan);
                    for port in 0..PORTS {
                        let expected = port != from && is_member(port) && may_exchange(port);
                        assert_eq!(
                            scope.has(PortId(port)),
                            expected,
                            "seed {seed}: {from}, {port}"
                        );
                    }
                }
                Verdict::Drop(DropReason::Vlan) => {
                    assert_eq!(vlan, Some(None), "seed {seed}: {from} {sent:?}");
                }
                Verdict::Drop(_) => {}
            }
        }
    }
}
