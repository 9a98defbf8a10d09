//! What a description says of a vif: where it is shown, and what of it is refused.

use std::collections::BTreeMap;

use ringway_datapath::{DropReason, LockingMode, MacAddr, Mirrored, PortRules, Vid, VlanRules};
use ringway_host::{Event, Host, Phase, VirtioWanted};
use ringway_sim::{KeptNotes, SimKernel};
use ringway_wire::vhost_user::{VHOST_USER_PROTOCOL_F_MQ, VHOST_USER_PROTOCOL_F_RARP};
use ringway_xenbus::limits::LinkState;
use ringway_xenbus::{FloodWish, OffloadWish, Rate, VifLimits};

use crate::world::{Act, Machine, wanted};

fn mac(last: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, last])
}

fn machine() -> Machine {
    Machine::start(SimKernel::default(), KeptNotes::default())
}

/// A vif with these rules.
fn with(name: &str, rules: PortRules) -> VirtioWanted {
    VirtioWanted { rules, ..wanted(name, None) }
}

fn mirror(ports: &str) -> PortRules {
    let mirror = Mirrored::parse_list(ports).expect("ports are named");
    PortRules { mirror, ..PortRules::default() }
}

/// Adds a vif whose front-end serves one pair, as far as it can be beside the others.
fn connect(machine: &mut Machine, wanted: VirtioWanted) {
    let name = wanted.name.clone();
    machine.add(wanted, Phase::Start).expect("it is served as far as possible");
    for act in [Act::Connect(7), Act::Start(0, true), Act::Apply] {
        machine.on(Event::Session(name.clone(), act));
    }
}

fn linked(to: &str) -> PortRules {
    PortRules { link_local_to: Some(to.to_owned()), ..PortRules::default() }
}

#[test]
fn the_status_of_a_vif_shows_what_its_description_says() {
    let rules = PortRules {
        locking: Some(LockingMode::Locked),
        allowed: vec!["10.0.0.5".parse().expect("an address")],
        addresses_max: Some(3),
        allowed_macs: vec![mac(2)],
        shared_macs: vec![mac(3)],
        vlan: VlanRules { untagged: Vid::new(5), tagged: vec![Vid::new(6).expect("a VLAN")] },
        is_private: true,
        ..linked("vm2")
    };
    let limit = |rate| FloodWish { rate: Some(rate), mbit: Some(8) };
    let limits = VifLimits {
        rate: Some(Rate { bytes: 1000, interval_us: 20 }),
        rate_rx: Some(Rate { bytes: 2000, interval_us: 30 }),
        weight: Some(7),
        flood: limit(1),
        broadcast: limit(2),
        multicast: limit(3),
        unknown: limit(4),
        mtu: Some(1400),
        link: None,
        offloads: Some(OffloadWish::All),
    };
    let mut machine = machine();
    let described = VirtioWanted { mac: Some(mac(1)), limits, ..with("vm1", rules) };
    machine.add(described, Phase::Start).expect("it can be");
    machine.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Apply]);
    let shown = machine.status();
    assert_eq!((shown.kind.as_str(), shown.mac), ("virtio", Some(mac(1).to_string())));
    assert_eq!((shown.locking_mode.as_str(), shown.addresses_max), ("locked", 3));
    assert_eq!(shown.allowed_ips, ["10.0.0.5"]);
    assert_eq!(shown.allowed_macs, [mac(2).to_string()]);
    assert_eq!(shown.shared_macs, [mac(3).to_string()]);
    assert_eq!((shown.vlan, shown.trunk), (Some(5), vec![6]));
    assert!(shown.is_private && shown.mirror.is_empty() && shown.refused.is_empty());
    assert_eq!(shown.link_local_to.as_deref(), Some("vm2"));
    assert_eq!(shown.error, None);
    assert!(!shown.offloads.is_empty(), "its guest may leave work");
    let limits = shown.limits;
    assert_eq!(limits.offloads, "all");
    let rates = [limits.rate, limits.rate_rx].map(|rate| rate.map(|it| (it.bytes, it.interval_us)));
    assert_eq!(rates, [Some((1000, 20)), Some((2000, 30))]);
    assert_eq!((limits.weight, limits.frame_len_max), (7, Some(1418)));
    assert_eq!(limits.flood_frames_per_second, Some(1));
    assert_eq!(limits.flood_bytes_per_second, Some(1_000_000));
    let storms = [limits.broadcast, limits.multicast, limits.unknown];
    assert_eq!(storms.map(|it| it.frames_per_second), [Some(2), Some(3), Some(4)]);
    assert!(storms.iter().all(|it| it.bytes_per_second == Some(1_000_000)));
}

#[test]
fn an_address_is_the_first_vifs_and_the_others_when_that_is_gone() {
    let mut machine = machine();
    for name in ["vm1", "vm2"] {
        connect(&mut machine, VirtioWanted { mac: Some(mac(1)), ..wanted(name, None) });
    }
    assert_eq!(machine.shown("vm1").error, None);
    let error = machine.shown("vm2").error.expect("it has no address");
    assert!(error.contains("its mac 52:54:00:00:00:01 is that of vm1"), "{error}");
    machine.on(Event::Removed("vm1".to_owned()));
    machine.act(Host::housekeep);
    assert_eq!(machine.shown("vm2").error, None);
}

#[test]
fn an_address_that_a_vif_shares_is_not_anothers_own() {
    let mut machine = machine();
    let rules = PortRules { shared_macs: vec![mac(3)], ..PortRules::default() };
    connect(&mut machine, VirtioWanted { mac: Some(mac(1)), ..with("vm1", rules) });
    connect(&mut machine, VirtioWanted { mac: Some(mac(3)), ..wanted("vm2", None) });
    assert_eq!(machine.shown("vm1").error, None);
    let error = machine.shown("vm2").error.expect("it is not its own");
    assert!(error.contains("its mac 52:54:00:00:00:03 is in shared-macs of vm1"), "{error}");
}

#[test]
fn frames_that_rules_drop_are_shown_by_reason_over_all_queues() {
    let mut machine = machine();
    machine.add(wanted("vm1", None), Phase::Start).expect("it can be");
    machine.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Start(1, true), Act::Apply]);
    let connection = machine.vif().state.connection.as_ref().expect("it is connected");
    for (queue, frames) in connection.queues.iter().zip([2, 3]) {
        queue.dropped.count(DropReason::BadSource, frames);
        queue.dropped.count(DropReason::RateLimit, 7);
    }
    assert_eq!(machine.status().refused, BTreeMap::from([("bad_source".to_owned(), 5)]));
}

#[test]
fn a_link_that_is_down_is_shown_and_its_guest_is_not_announced() {
    let mut machine = machine();
    let limits = VifLimits { link: Some(LinkState::Down), ..VifLimits::default() };
    connect(&mut machine, VirtioWanted { mac: Some(mac(1)), limits, ..wanted("vm1", None) });
    assert!(machine.status().limits.link_down && machine.engines.announced.is_empty());
    connect(&mut machine, VirtioWanted { mac: Some(mac(2)), ..wanted("vm2", None) });
    assert!(!machine.shown("vm2").limits.link_down && !machine.engines.announced.is_empty());
}

#[test]
fn what_is_offered_of_the_protocol_and_what_is_not_is_shown_of_a_front_end() {
    let mut machine = machine();
    let protocol = VHOST_USER_PROTOCOL_F_MQ | VHOST_USER_PROTOCOL_F_RARP;
    let described = VirtioWanted { protocol, ..wanted("vm1", None) };
    machine.add(described, Phase::Start).expect("it can be");
    let shown = |machine: &mut Machine| {
        let virtio = machine.status().virtio.expect("it is one");
        assert!(virtio.memory_sealed, "its session says so");
        (virtio.protocol_not_taken, virtio.protocol_not_offered)
    };
    assert_eq!(shown(&mut machine), (Vec::new(), Vec::new()), "there is no front-end");
    machine.front_end(&[Act::Connect(7)]);
    let (not_taken, not_offered) = shown(&mut machine);
    assert_eq!(not_taken, ["mq", "rarp"]);
    let others = ["log_shmfd", "reply_ack", "net_mtu", "inflight_shmfd", "reset_device"];
    assert_eq!(not_offered, [&others[..], &["configure_mem_slots", "status"]].concat());
}

#[test]
fn a_mirror_gets_no_copies_of_copies() {
    let mut machine = machine();
    machine.attach_uplink();
    machine.add(wanted("vm1", None), Phase::Serving).expect("it can be");
    machine.add(with("out", mirror("vm1")), Phase::Serving).expect("it can be");
    assert_eq!(machine.shown("out").mirror, ["vm1"]);
    let mut refused =
        |rules, name| machine.add(with(name, rules), Phase::Serving).expect_err("it cannot be");
    let refusal = refused(mirror("own"), "own");
    assert!(refusal.contains("copies of its own copies"), "{refusal}");
    let refusal = refused(mirror("vm1,out"), "other");
    assert!(refusal.contains("out is the output of a mirror"), "{refusal}");
    let refusal = refused(mirror("vm7"), "other");
    assert!(refusal.contains("there is no port \"vm7\""), "{refusal}");
    machine.add(with("second", mirror("vm1,ringway0")), Phase::Serving).expect("another output");
    // What is mirrored already is no output.
    machine.add(with("third", mirror("vm9")), Phase::Start).expect("vm9 may follow");
    let refusal = machine.add(with("vm9", mirror("vm1")), Phase::Start).expect_err("no output");
    assert!(refusal.contains("vm9 is mirrored to third"), "{refusal}");
}

#[test]
fn each_end_of_a_link_names_the_other() {
    let mut machine = machine();
    machine.add(with("vm1", linked("vm2")), Phase::Serving).expect("vm2 may follow");
    let refusal = machine.add(with("vm3", linked("vm1")), Phase::Serving).expect_err("not it");
    assert!(refusal.contains("vm1, which does not name vm3"), "{refusal}");
    let refusal = machine.add(with("vm3", linked("vm3")), Phase::Serving).expect_err("not itself");
    assert!(refusal.contains("vm3 itself"), "{refusal}");
    machine.add(with("vm2", linked("vm1")), Phase::Serving).expect("each names the other");
}
