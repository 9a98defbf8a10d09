//! A description that is read again: what of it applies, and what stays.

use std::collections::BTreeSet;

use ringway_calls::{BackendRequest, Reconnect};
use ringway_datapath::{LockingMode, MacAddr, PortRules, Vid, VlanRules};
use ringway_host::{
    AddedVirtio, Change, Defaults, DescriptionChanges, KEYS, Note, Notes as _, Phase, UplinkRules,
    VifChanges, VirtioWanted,
};
use ringway_sim::{KeptNotes, SimKernel};
use ringway_switch::PortId;
use ringway_wire::DomId;
use ringway_xenbus::{Device, Vif, VifLimits};

use crate::world::{Act, Front, Machine, wanted};
use crate::{bridged, machine};

/// A machine with the vifs `vm1`, which is connected, and `vm2`.
fn pair() -> Machine {
    let mut machine = machine();
    for name in ["vm1", "vm2"] {
        machine.add(wanted(name, None), Phase::Start).expect("it can be");
    }
    machine.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Apply]);
    machine
}

fn add_at_run_time(machine: &mut Machine, wanted: VirtioWanted) {
    let phase = Phase::Serving;
    let added = AddedVirtio { wanted, at_run_time: true, phase };
    let added =
        machine.act(|host, now, parts| host.add_virtio(added, || Ok(Front::default()), now, parts));
    added.expect("it can be");
}

fn reload(machine: &mut Machine, described: &[VirtioWanted]) -> Result<DescriptionChanges, String> {
    let described = described.to_vec();
    machine.act(|host, now, parts| host.reload(described, None, now, parts))
}

fn set_defaults(machine: &mut Machine, defaults: Defaults) {
    let set = machine.act(|host, now, parts| host.set_defaults(defaults, now, parts));
    set.expect("XenStore is there");
}

fn weighted(name: &str, weight: u16) -> VirtioWanted {
    let limits = VifLimits { weight: Some(weight), ..VifLimits::default() };
    VirtioWanted { limits, ..wanted(name, None) }
}

fn port(machine: &Machine) -> Option<PortId> {
    machine.vif().state.connection.as_ref().map(|connection| connection.port)
}

fn names(machine: &Machine) -> Vec<&str> {
    machine.host.virtio().map(|vif| vif.state.name.as_str()).collect()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn an_unchanged_description_changes_nothing_and_a_changed_one_keeps_each_connection() {
    let mut machine = pair();
    let before = port(&machine);
    let same = [wanted("vm1", None), wanted("vm2", None)];
    assert_eq!(reload(&mut machine, &same), Ok(DescriptionChanges::default()));
    let rules = PortRules {
        vlan: VlanRules { untagged: Vid::new(7), tagged: Vec::new() },
        is_private: true,
        ..PortRules::default()
    };
    let changed = VirtioWanted { rules: rules.clone(), ..weighted("vm1", 3) };
    let changes = reload(&mut machine, &[changed, wanted("vm2", None)]).expect("it can be");
    let of_vif = VifChanges {
        vif: "vm1".to_owned(),
        changed: words(&["vlan", "private", "weight"]),
        ..VifChanges::default()
    };
    assert_eq!(changes, DescriptionChanges { vifs: vec![of_vif], ..Default::default() });
    assert_eq!(changes.to_string(), "changed vlan, private, weight of vm1");
    assert!(changes.kept().is_empty());
    let state = &machine.vif().state;
    assert_eq!((&state.rules.wanted, state.limited.wanted.weight), (&rules, Some(3)));
    assert!(before.is_some() && port(&machine) == before, "its guest stays connected");
    assert_eq!(machine.vif().session.rings.taken_back, 0);
    // Without the keys, the defaults apply again.
    reload(&mut machine, &same).expect("it can be");
    let state = &machine.vif().state;
    assert_eq!(state.rules.wanted, PortRules::default());
    assert_eq!(state.limited.wanted.weight, None);
}

#[test]
fn what_a_front_end_relies_on_is_named_and_stays() {
    let mut machine = pair();
    let described = VirtioWanted {
        queues: 8,
        mac: Some(MacAddr([2, 0, 0, 0, 0, 9])),
        others: vec![("socket", "/run/other".to_owned())],
        ..weighted("vm1", 2)
    };
    for _ in 0..2 {
        let changes = reload(&mut machine, &[described.clone(), wanted("vm2", None)]);
        let kept = changes.expect("it can be").kept();
        let kept: Vec<&str> = kept.iter().map(String::as_str).collect();
        let [line] = kept[..] else { panic!("{kept:?}") };
        let expected = "kept as it was: socket, mac, queues of vm1 cannot change while the vif";
        assert!(line.starts_with(expected), "{line}");
    }
    assert_eq!(machine.vif().state.limited.wanted.weight, Some(2), "the rest applies");
    assert_eq!(machine.vif().state.rules.mac, None);
    assert_eq!(machine.status().virtio.expect("it is").max_queues_next, 4);
}

#[test]
fn rules_of_another_network_wait_for_it() {
    let mut machine = bridged();
    let rules = PortRules { is_private: true, ..PortRules::default() };
    let described = VirtioWanted { rules, ..weighted("vm1", 2) };
    let changes = reload(&mut machine, &[described]).expect("it can be");
    let [of_vif] = &changes.vifs[..] else { panic!("{changes:?}") };
    assert_eq!(of_vif.kept, words(&["bridge", "private", "weight"]));
    assert!(of_vif.changed.is_empty());
    assert!(!machine.vif().state.rules.wanted.is_private);
}

#[test]
fn what_is_not_described_any_more_is_gone_and_what_is_new_is_left_to_the_caller() {
    let mut machine = bridged();
    let weight = ("vm1".to_owned(), "weight".to_owned(), "5".to_owned());
    let (vif, limit, value) = weight;
    machine.call(&BackendRequest::SetLimit { vif, limit, value }).expect("it can be");
    add_at_run_time(&mut machine, wanted("added", None));
    let changes = reload(&mut machine, &[wanted("vm3", None)]).expect("it can be");
    assert_eq!(changes.to_string(), "added vm3; removed vm1");
    assert_eq!(names(&machine), ["added"]);
    assert_eq!(machine.host.shared.ports_in_use(), 0);
    assert!(machine.kernel.find("vm1").is_none());
    assert!(machine.notes.read(&Note::Settings("vm1".to_owned()), 1 << 10).is_empty());
}

#[test]
fn a_description_that_cannot_be_applied_changes_nothing() {
    let mut machine = pair();
    machine.attach_uplink();
    let mac = Some(MacAddr([2, 0, 0, 0, 0, 1]));
    add_at_run_time(&mut machine, VirtioWanted { mac, ..wanted("added", None) });
    let mirror = |port: &str| PortRules {
        mirror: ringway_datapath::Mirrored::parse_list(port).expect("good"),
        ..PortRules::default()
    };
    let wrong = [
        (wanted("added", None), "a vif added exists already, and is not of the description"),
        (wanted("ringway0", None), "ringway0 is the name of the uplink"),
        (VirtioWanted { mac, ..wanted("vm3", None) }, "mac 02:00:00:00:00:01 is that of added"),
        (VirtioWanted { rules: mirror("vm3"), ..wanted("vm3", None) }, "its own copies"),
    ];
    let before = port(&machine);
    for (wrong, part) in wrong {
        // One of those before it would change, the other one would end.
        let refusal = reload(&mut machine, &[weighted("vm1", 9), wrong]).expect_err("refused");
        assert!(refusal.contains(part), "{refusal}");
        assert_eq!(names(&machine), ["vm1", "vm2", "added"]);
        assert_eq!(machine.vif().state.limited.wanted.weight, None);
        assert_eq!(port(&machine), before);
    }
}

#[test]
fn more_new_vifs_than_the_switch_has_ports_for_are_refused_with_that_limit() {
    let mut machine = pair();
    add_at_run_time(&mut machine, wanted("added", None));
    // The switch has 8 ports. Guests that disable a queue take two of them.
    let one_queue = |name: &str| VirtioWanted { queues: 1, ..wanted(name, None) };
    let too_many = [weighted("vm1", 9), wanted("vm2", None), wanted("vm3", None), one_queue("vm4")];
    let refusal = reload(&mut machine, &too_many).expect_err("one too many");
    assert!(refusal.contains("needs up to 9 ports, and it has 8, which is the limit"), "{refusal}");
    assert_eq!(names(&machine), ["vm1", "vm2", "added"]);
    assert_eq!(machine.vif().state.limited.wanted.weight, None);
    // Ports of vifs that end are free, and one on a bridge has another one for its device.
    let instead = |name| [weighted("vm1", 9), wanted("vm3", None), one_queue(name)];
    let bridged = VirtioWanted { bridge: Some("br0".to_owned()), ..one_queue("vm5") };
    let mut described = instead("vm4").to_vec();
    described.push(bridged);
    let refusal = reload(&mut machine, &described).expect_err("one too many");
    assert!(refusal.contains("up to 9 ports"), "{refusal}");
    let changes = reload(&mut machine, &instead("vm4")).expect("there are enough");
    assert_eq!(changes.added, words(&["vm3", "vm4"]));
    assert_eq!(changes.removed, words(&["vm2"]));
}

#[test]
fn ports_of_vifs_of_xen_and_of_the_uplink_count_as_well() {
    let mut machine = machine();
    machine.attach_uplink();
    machine.kernel.add_bridge("br0").expect("a bridge");
    let vif = Vif { backend: DomId(0), frontend: DomId(1), handle: 0 };
    let bridge = Some("br0".to_owned());
    machine.make(&Device { bridge, ..Device::new(vif, MacAddr([2, 0, 0, 0, 0, 1])) });
    machine.turn_all();
    // Of 8 ports, one is the uplink's, and that vif and its device need two.
    let with_last = |queues| {
        let last = VirtioWanted { queues, ..wanted("vm3", None) };
        [wanted("vm1", None), wanted("vm2", None), last]
    };
    let refusal = reload(&mut machine, &with_last(2)).expect_err("one too many");
    assert!(refusal.contains("up to 9 ports"), "{refusal}");
    reload(&mut machine, &with_last(1)).expect("there are enough");
}

#[test]
fn more_vlans_than_the_switch_has_are_refused_with_that_limit() {
    let mut machine = machine();
    let trunk = |name: &str, first: u16, count: u16| {
        let tagged = (first..first + count).filter_map(Vid::new).collect();
        let vlan = VlanRules { untagged: None, tagged };
        let rules = PortRules { vlan, ..PortRules::default() };
        VirtioWanted { queues: 1, rules, ..wanted(name, None) }
    };
    let four = ["vm1", "vm2", "vm3", "vm4"].into_iter().zip([1, 65, 129, 193]);
    let mut all: Vec<VirtioWanted> = four.map(|(name, first)| trunk(name, first, 64)).collect();
    for wanted in &all {
        machine.add(wanted.clone(), Phase::Start).expect("it can be");
    }
    all.push(trunk("vm5", 256, 1));
    assert_eq!(reload(&mut machine, &all).expect("all VLANs are known").added, words(&["vm5"]));
    all[4] = trunk("vm5", 256, 2);
    all[0].limits.weight = Some(2);
    let refusal = reload(&mut machine, &all).expect_err("one too many");
    assert!(refusal.contains("in 257 VLANs, and 256 is the limit"), "{refusal}");
    assert_eq!(machine.vif().state.limited.wanted.weight, None);
    all.remove(3);
    reload(&mut machine, &all).expect("there are fewer without vm4");
}

#[test]
fn vlans_of_the_uplink_count_as_they_are_described() {
    let mut machine = machine();
    machine.attach_uplink();
    let vlans = |first: u16, count: u16| {
        let tagged = (first..first + count).filter_map(Vid::new).collect();
        VlanRules { untagged: None, tagged }
    };
    let vif = |first, count| {
        let rules = PortRules { vlan: vlans(first, count), ..PortRules::default() };
        VirtioWanted { queues: 1, rules, ..wanted("vm1", None) }
    };
    machine.add(vif(201, 56), Phase::Start).expect("it can be");
    machine.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Apply]);
    let again = |machine: &mut Machine, described: VirtioWanted, (first, count): (u16, u16)| {
        let uplink = UplinkRules::without_limits(vlans(first, count));
        machine.act(|host, now, parts| host.reload(vec![described], Some(&uplink), now, parts))
    };
    again(&mut machine, vif(201, 56), (1, 200)).expect("256 are possible");
    let heavy = VirtioWanted { limits: weighted("vm1", 2).limits, ..vif(201, 56) };
    let refusal = again(&mut machine, heavy, (301, 201)).expect_err("one too many");
    assert!(refusal.contains("in 257 VLANs, and 256 is the limit"), "{refusal}");
    assert_eq!(machine.vif().state.limited.wanted.weight, None);
    assert_eq!(machine.host.shared.switch.vlans_of_uplinks().len(), 200);
    // What one leaves is there for the other.
    for (described, uplink) in [(vif(401, 64), (301, 192)), (vif(201, 56), (1, 200))] {
        let changes = again(&mut machine, described, uplink).expect("256 again");
        assert!(changes.kept().is_empty(), "{changes:?}");
        assert_eq!(machine.host.shared.switch.vlans_of_uplinks().len(), usize::from(uplink.1));
    }
}

#[test]
fn what_a_vif_keeps_is_not_given_to_another_one() {
    let address = |last| MacAddr([2, 0, 0, 0, 0, last]);
    let with = |vif: VirtioWanted, last| VirtioWanted { mac: Some(address(last)), ..vif };
    let mut machine = machine();
    for vif in [wanted("vm1", None), wanted("vm2", Some("br0"))].into_iter().zip([1, 2]) {
        machine.add(with(vif.0, vif.1), Phase::Start).expect("it can be");
    }
    let rules = PortRules { allowed_macs: vec![address(1)], ..PortRules::default() };
    let allowed = VirtioWanted { rules, queues: 1, ..wanted("vm3", None) };
    let new = |bridge, last| with(VirtioWanted { queues: 1, ..wanted("vm3", bridge) }, last);
    let moved = [with(weighted("vm1", 9), 9), with(wanted("vm2", None), 2)];
    for (new, owner) in [(new(None, 1), "vm1"), (allowed, "vm1"), (new(Some("br0"), 2), "vm2")] {
        let described = [&moved[..], &[new]].concat();
        let refusal = reload(&mut machine, &described).expect_err("refused");
        let part = format!("of vm3 is that of {owner}, which keeps its mac and its bridge");
        assert!(refusal.contains(&part), "{refusal}");
        assert_eq!(machine.vif().state.limited.wanted.weight, None);
    }
    let elsewhere = [&moved[..], &[new(Some("br1"), 1)]].concat();
    reload(&mut machine, &elsewhere).expect("their frames do not meet");
    // Two that swap addresses keep theirs.
    let swapped = [with(wanted("vm1", None), 2), with(wanted("vm2", Some("br0")), 1)];
    reload(&mut machine, &swapped).expect("both are as they were");
}

#[test]
fn a_vif_that_conflicts_with_another_since_its_start_may_stay_as_it_is() {
    let mut machine = pair();
    let mac = Some(MacAddr([2, 0, 0, 0, 0, 1]));
    add_at_run_time(&mut machine, VirtioWanted { mac, ..wanted("added", None) });
    let conflicting = VirtioWanted { mac, ..wanted("vm3", None) };
    machine.add(conflicting.clone(), Phase::Start).expect("it is served as far as possible");
    let described = [weighted("vm1", 9), wanted("vm2", None), conflicting];
    reload(&mut machine, &described).expect("it did not change");
}

#[test]
fn what_a_user_has_set_stays_until_the_description_says_something_else() {
    let mut machine = pair();
    let mut set = |limit: &str, value: &str| {
        let (vif, limit, value) = ("vm1".to_owned(), limit.to_owned(), value.to_owned());
        machine.call(&BackendRequest::SetLimit { vif, limit, value }).expect("it can be");
    };
    set("weight", "5");
    set("flood-rate", "77");
    let vm2 = wanted("vm2", None);
    let private = |vif: VirtioWanted| VirtioWanted {
        rules: PortRules { is_private: true, ..PortRules::default() },
        ..vif
    };
    reload(&mut machine, &[private(wanted("vm1", None)), vm2.clone()]).expect("it can be");
    let limits = |machine: &Machine| machine.vif().state.limited.wanted;
    assert_eq!(limits(&machine).weight, Some(5), "another key has changed");
    reload(&mut machine, &[private(weighted("vm1", 3)), vm2.clone()]).expect("it can be");
    assert_eq!((limits(&machine).weight, limits(&machine).flood.rate), (Some(3), Some(77)));
    reload(&mut machine, &[private(wanted("vm1", None)), vm2]).expect("it can be");
    assert_eq!((limits(&machine).weight, limits(&machine).flood.rate), (None, Some(77)));
    // The next process knows the same.
    let note = machine.notes.read(&Note::Settings("vm1".to_owned()), 1 << 10);
    let note = String::from_utf8(note).expect("text");
    assert!(note.contains("flood-rate") && !note.contains("weight"), "{note}");
}

#[test]
fn a_vif_without_settings_of_its_own_follows_those_of_all() {
    let mut machine = pair();
    let of_vm2 = |machine: &mut Machine| {
        let vm2 = machine.shown("vm2");
        (vm2.limits.flood_frames_per_second, vm2.locking_mode, vm2.addresses_max)
    };
    assert_eq!(of_vm2(&mut machine), (None, "default".to_owned(), 64));
    let before = (port(&machine), machine.engines.policies);
    let flood = ringway_switch::FloodLimit::per_second(7, 0);
    let storm = ringway_switch::StormLimits::NONE;
    let defaults = Defaults { flood, storm, locking: None, addresses_max: 3, queues_max: 4 };
    set_defaults(&mut machine, defaults);
    assert_eq!(of_vm2(&mut machine), (Some(7), "default".to_owned(), 3));
    assert_eq!((port(&machine), machine.engines.policies), (before.0, before.1 + 1));
    // One that has its own settings is as before, and one that comes later follows, too.
    let rules = PortRules {
        locking: Some(LockingMode::Unlocked),
        addresses_max: Some(9),
        ..PortRules::default()
    };
    let own = VirtioWanted { rules, ..wanted("vm1", None) };
    reload(&mut machine, &[own, wanted("vm2", None)]).expect("it can be");
    let policies = machine.engines.policies;
    let defaults = Defaults { locking: Some(LockingMode::Locked), addresses_max: 4, ..defaults };
    set_defaults(&mut machine, defaults);
    assert_eq!(machine.engines.policies, policies, "vm1 has its own, and vm2 no guest");
    machine.add(wanted("vm3", None), Phase::Serving).expect("it can be");
    let vm3 = machine.shown("vm3");
    assert_eq!((vm3.locking_mode.as_str(), vm3.addresses_max), ("locked", 4));
    assert_eq!(vm3.limits.flood_frames_per_second, Some(7));
    let budget = |name: &str| {
        let vif = machine.host.virtio().find(|vif| vif.state.name == name).expect("it exists");
        format!("{:?}", vif.state.limited.flood)
    };
    assert_eq!(budget("vm3"), budget("vm1"), "they may flood as much");
}

#[test]
fn guests_of_xen_are_offered_the_queues_of_all_unless_their_vif_has_its_own() {
    let mut machine = Machine::start(SimKernel::default(), KeptNotes::default());
    let vif = |guest| Vif { backend: DomId(0), frontend: DomId(guest), handle: 0 };
    for (guest, max_queues) in [(1, None), (2, Some(3)), (3, None)] {
        let mac = MacAddr([2, 0, 0, 0, 0, guest]);
        machine.make(&Device { max_queues, ..Device::new(vif(guest.into()), mac) });
    }
    machine.turn_all();
    let request = BackendRequest::SetMaxQueues {
        vif: "vif3.0".to_owned(),
        max_queues: 2,
        reconnect: Reconnect::Later,
    };
    machine.call(&request).expect("it can be");
    let offered = |machine: &mut Machine| {
        ["vif1.0", "vif2.0", "vif3.0"].map(|name| machine.shown(name).max_queues)
    };
    assert_eq!(offered(&mut machine), [1, 3, 2]);
    let defaults = Defaults { queues_max: 7, ..machine.host.shared.defaults() };
    set_defaults(&mut machine, defaults);
    assert_eq!(offered(&mut machine), [7, 3, 2]);
    let node = format!("{}/multi-queue-max-queues", vif(1).backend_dir());
    let written = machine.act(|_, _, parts| parts.store.read(&node)).expect("domain 0 may");
    assert_eq!(written.as_deref(), Some("7"));
}

#[test]
fn each_key_is_listed_once() {
    let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.len(), KEYS.len());
    assert!(KEYS.iter().any(|key| key.name == "socket" && key.change == Change::Later));
}
