//! What happens to frames.

use std::sync::Arc;

use ringway_datapath::{
    DropReason, FrameBatch, FramePool, LockingMode, MacAddr, PoolBudget, PortRules, Vid, VlanRules,
};
use ringway_switch::fdb::Assigned;
use ringway_switch::{
    Binding, FloodBudget, FloodLimit, PortId, PortPolicy, Role, Switch, SwitchConfig, Ticks,
    Verdict,
};

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const ALL: [u8; 6] = [0xff; 6];
const PORT_A: PortId = PortId(1);
const PORT_B: PortId = PortId(2);

#[test]
fn an_unknown_destination_is_flooded_until_it_sends() {
    let mut bench = Bench::new(FloodLimit::NONE);
    assert_eq!(bench.send(PORT_A, &[(B, A)]), [Verdict::Flood]);
    assert_eq!(bench.send(PORT_B, &[(A, B)]), [Verdict::Unicast(PORT_A)]);
    assert_eq!(
        bench.send(PORT_A, &[(B, A), (ALL, A), (B, A)]),
        [Verdict::Unicast(PORT_B), Verdict::Flood, Verdict::Unicast(PORT_B),]
    );
}

#[test]
fn a_station_moves_to_a_new_port_once_its_entry_has_aged() {
    let mut bench = Bench::new(FloodLimit::NONE);
    bench.send(PORT_A, &[(ALL, A)]);
    bench.send(PortId(3), &[(ALL, A)]);
    assert_eq!(bench.send(PORT_B, &[(A, B)]), [Verdict::Unicast(PORT_A)]);
    bench.now = Ticks(301);
    bench.send(PortId(3), &[(ALL, A)]);
    assert_eq!(bench.send(PORT_B, &[(A, B)]), [Verdict::Unicast(PortId(3))]);
}

#[test]
fn an_address_that_is_not_seen_ages_out() {
    let mut bench = Bench::new(FloodLimit::NONE);
    bench.send(PORT_A, &[(ALL, A)]);
    bench.now = Ticks(300);
    assert_eq!(bench.send(PORT_B, &[(A, B)]), [Verdict::Unicast(PORT_A)]);
    bench.now = Ticks(301);
    assert_eq!(bench.send(PORT_B, &[(A, B)]), [Verdict::Flood]);
}

#[test]
fn a_removed_port_takes_its_addresses_along() {
    let mut bench = Bench::new(FloodLimit::NONE);
    bench.send(PORT_A, &[(ALL, A)]);
    assert_eq!(bench.switch.fdb().remove_port(PORT_A), 1);
    assert_eq!(bench.send(PORT_B, &[(A, B)]), [Verdict::Flood]);
}

#[test]
fn bad_sources_are_dropped_and_not_learned() {
    let mut bench = Bench::new(FloodLimit::NONE);
    let dropped = Verdict::Drop(DropReason::BadSource);
    for src in [ALL, [0; 6], [0x01, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        assert_eq!(bench.send(PORT_A, &[(B, src)]), [dropped]);
    }
    assert!(bench.switch.fdb().is_empty());
}

#[test]
fn addresses_reserved_for_the_link_are_not_forwarded() {
    let mut bench = Bench::new(FloodLimit::NONE);
    for last in 0..=0x0f {
        let dst = [0x01, 0x80, 0xc2, 0, 0, last];
        assert_eq!(bench.send(PORT_A, &[(dst, A)]), [Verdict::Drop(DropReason::LinkLocal)]);
    }
    assert!(bench.switch.fdb().is_empty());
    assert_eq!(bench.send(PORT_A, &[([0x01, 0x80, 0xc2, 0, 0, 0x10], A)]), [Verdict::Flood]);
}

#[test]
fn frames_for_the_link_pass_between_a_pair_of_ports_except_pause_frames() {
    let mut bench = Bench::new(FloodLimit::NONE);
    let link_local = |last| [0x01, 0x80, 0xc2, 0, 0, last];
    let dropped = [Verdict::Drop(DropReason::LinkLocal)];
    let port_c = PortId(3);
    bench.switch.set_links(&[(PORT_A, PORT_B)]);
    for last in 0..=0x0f {
        let is_pause = last == 1;
        for (from, to) in [(PORT_A, PORT_B), (PORT_B, PORT_A)] {
            let passed = [Verdict::Unicast(to)];
            let expected = if is_pause { dropped } else { passed };
            assert_eq!(bench.send(from, &[(link_local(last), A)]), expected, "{last}");
        }
        assert_eq!(bench.send(port_c, &[(link_local(last), A)]), dropped);
    }
    assert!(bench.switch.fdb().is_empty());
    // What a port may not send at all does not pass here.
    bench.policy = PortPolicy::of_addresses([MacAddr(B)]);
    let refused = [Verdict::Drop(DropReason::BadSource)];
    assert_eq!(bench.send(PORT_A, &[(link_local(0x0e), A)]), refused);
    bench.policy = PortPolicy::open();
    // Private ports, and those in different VLANs, have no link with each other.
    bench.switch.join(PORT_A, &VlanRules::default(), Role::Private).expect("there is room");
    let isolated = [Verdict::Drop(DropReason::Isolated)];
    assert_eq!(bench.send(PORT_B, &[(link_local(0x0e), A)]), isolated);
    let vlan = VlanRules { untagged: Vid::new(7), ..VlanRules::default() };
    bench.switch.join(PORT_A, &vlan, Role::Ordinary).expect("there is room");
    assert_eq!(bench.send(PORT_B, &[(link_local(0x0e), A)]), dropped);
    // The next port with its number is another one.
    bench.switch.leave(PORT_A);
    assert!(!bench.switch.has_links());
    for port in [PORT_A, PORT_B] {
        assert_eq!(bench.send(port, &[(link_local(0x0e), A)]), dropped);
    }
}

#[test]
fn a_frame_to_its_own_port_is_dropped() {
    let mut bench = Bench::new(FloodLimit::NONE);
    bench.send(PORT_A, &[(ALL, A), (ALL, B)]);
    let nowhere = Verdict::Drop(DropReason::NoRoute);
    assert_eq!(bench.send(PORT_A, &[(B, A), (A, A)]), [nowhere, nowhere]);
}

#[test]
fn frames_without_an_ethernet_header_are_malformed() {
    let mut bench = Bench::new(FloodLimit::NONE);
    let mut batch = FrameBatch::new();
    for len in [0, 6, 12, 13, 14] {
        let mut frame = bench.pool.take(len).unwrap();
        frame.bytes_mut().fill(2);
        batch.push(frame);
    }
    let malformed = Verdict::Drop(DropReason::Malformed);
    let verdicts = bench.classify(PORT_A, &mut batch);
    assert_eq!(verdicts[..4], [malformed; 4]);
    assert_ne!(verdicts[4], malformed);
}

#[test]
fn every_flooded_frame_is_charged_even_with_a_cached_verdict() {
    let mut bench =
        Bench::new(FloodLimit { frames_per_tick: 2, burst_frames: 3, ..FloodLimit::NONE });
    let dropped = Verdict::Drop(DropReason::FloodLimit);
    assert_eq!(
        bench.send(PORT_A, &[(ALL, A); 5]),
        [Verdict::Flood, Verdict::Flood, Verdict::Flood, dropped, dropped,]
    );
    // What is not flooded still passes.
    let mut of_b = bench.switch.flood_budget(bench.now);
    std::mem::swap(&mut bench.flood, &mut of_b);
    assert_eq!(bench.send(PORT_B, &[(A, B)]), [Verdict::Unicast(PORT_A)]);
    std::mem::swap(&mut bench.flood, &mut of_b);
    assert_eq!(bench.send(PORT_A, &[(B, A), (ALL, A)]), [Verdict::Unicast(PORT_B), dropped]);
    bench.now = Ticks(1);
    assert_eq!(bench.send(PORT_A, &[(ALL, A); 3]), [Verdict::Flood, Verdict::Flood, dropped]);
}

#[test]
fn a_full_batch_gets_a_verdict_for_each_frame() {
    let mut bench = Bench::new(FloodLimit::NONE);
    assert_eq!(bench.send(PORT_A, &[(ALL, A); 64]), [Verdict::Flood; 64]);
    assert_eq!(bench.send(PORT_A, &[]), []);
}

/// A planned failover of VRRP: the address of a router moves with its next frame, and no other
/// station gets it.
#[test]
fn a_shared_address_moves_with_a_frame_of_those_that_share_it_and_of_an_uplink() {
    const ROUTER: [u8; 6] = [0, 0, 0x5e, 0, 1, 7];
    let mut bench = Bench::new(FloodLimit::NONE);
    let rules = PortRules { shared_macs: vec![MacAddr(ROUTER)], ..PortRules::default() };
    let sharing =
        |own: [u8; 6]| PortPolicy::for_vif(&rules, None, 1, Some(MacAddr(own)), Binding::Static);
    let unlocked = Some(LockingMode::Unlocked);
    let plain = PortPolicy::for_vif(&PortRules::default(), unlocked, 256, None, Binding::None);
    let [port_c, uplink] = [3, 4].map(PortId);
    for (port, own) in [(PORT_A, A), (PORT_B, B)] {
        let (own, shared) = ([MacAddr(own)], &rules.shared_macs);
        let assigned = Assigned { own: &own, shared, addresses_max: 1 };
        assert_eq!(bench.switch.assign(port, &assigned, bench.now), []);
    }
    let refused = |reason| [Verdict::Drop(reason)];
    let taken = refused(DropReason::AddressTaken);
    let mut send = |policy: &PortPolicy, from, dst, src| {
        bench.policy = policy.clone();
        bench.send(from, &[(dst, src)])
    };
    for _ in 0..3 {
        for (own, port) in [(A, PORT_A), (B, PORT_B)] {
            assert_eq!(send(&plain, port_c, ALL, ROUTER), taken);
            assert_eq!(send(&sharing(own), port, ALL, ROUTER), [Verdict::Flood]);
            assert_eq!(send(&plain, port_c, ROUTER, [2; 6]), [Verdict::Unicast(port)]);
        }
        // Another host has it now.
        assert_eq!(send(&PortPolicy::uplink(), uplink, ALL, ROUTER), [Verdict::Flood]);
        assert_eq!(send(&plain, port_c, ROUTER, [2; 6]), [Verdict::Unicast(uplink)]);
        assert_eq!(send(&PortPolicy::uplink(), uplink, ALL, A), [Verdict::Flood]);
        assert_eq!(send(&plain, port_c, A, [2; 6]), [Verdict::Unicast(PORT_A)]);
    }
    assert_eq!(send(&sharing(A), PORT_A, ALL, B), refused(DropReason::BadSource));
    let router = (MacAddr(ROUTER), Some(uplink));
    assert_eq!(bench.switch.taken(port_c, bench.now), Some(router));
    assert_eq!(bench.switch.taken(PORT_A, bench.now), None);
}

struct Bench {
    switch: Switch,
    policy: PortPolicy,
    flood: Arc<FloodBudget>,
    pool: FramePool,
    now: Ticks,
}

impl Bench {
    fn new(flood: FloodLimit) -> Bench {
        let now = Ticks(0);
        let switch = Switch::new(SwitchConfig {
            addresses_per_port_max: 64,
            flood,
            ..SwitchConfig::unlimited(1024, 16, 0x1357_9bdf_0246_8ace)
        });
        let flood = switch.flood_budget(now);
        Bench {
            switch,
            policy: PortPolicy::open(),
            flood,
            pool: FramePool::new(PoolBudget::new(1 << 20)),
            now,
        }
    }

    fn send(&mut self, from: PortId, macs: &[([u8; 6], [u8; 6])]) -> Vec<Verdict> {
        let mut batch = FrameBatch::new();
        for (dst, src) in macs {
            let mut frame = self.pool.take(60).unwrap();
            frame.bytes_mut().fill(0);
            frame.bytes_mut()[..6].copy_from_slice(dst);
            frame.bytes_mut()[6..12].copy_from_slice(src);
            batch.push(frame);
        }
        let verdicts = self.classify(from, &mut batch);
        batch.drain(..).for_each(|frame| self.pool.recycle(frame));
        verdicts
    }

    fn classify(&mut self, from: PortId, batch: &mut FrameBatch) -> Vec<Verdict> {
        let (policy, flood) = (&self.policy, &self.flood);
        self.switch.classify(from, policy, batch, self.now, flood);
        batch.iter().map(|frame| frame.verdict).collect()
    }
}
