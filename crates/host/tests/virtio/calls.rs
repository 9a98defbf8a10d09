//! Calls of administrators, and what follows for the switch.

use ringway_calls::{BackendRequest, BackendStatus, Reconnect};
use ringway_datapath::{MacAddr, Mirrored, PortRules};
use ringway_host::{CallReply, Event, Host, Phase, VirtioWanted};
use ringway_switch::MIRRORS_MAX;

use crate::world::{Act, Machine, wanted};
use crate::{MAC, bridged, machine};

fn limit(vif: &str, limit: &str, value: &str) -> BackendRequest {
    let (vif, limit, value) = (vif.to_owned(), limit.to_owned(), value.to_owned());
    BackendRequest::SetLimit { vif, limit, value }
}

pub(crate) fn status(machine: &mut Machine) -> BackendStatus {
    match machine.call(&BackendRequest::Status) {
        Ok(CallReply::Status(status)) => *status,
        other => panic!("{other:?} is no status"),
    }
}

/// Adds a vif whose front-end serves one pair.
fn connect(machine: &mut Machine, wanted: VirtioWanted) {
    let name = wanted.name.clone();
    machine.add(wanted, Phase::Serving).expect("it can be");
    for act in [Act::Connect(7), Act::Start(0, true), Act::Apply] {
        machine.on(Event::Session(name.clone(), act));
    }
}

/// Follows what has changed at the ports, as each turn of a process does.
fn follow_ports(machine: &mut Machine) {
    machine.act(|host: &mut Host<_>, _, _| host.follow_ports());
}

fn linked(name: &str, to: &str) -> VirtioWanted {
    let rules = PortRules { link_local_to: Some(to.to_owned()), ..PortRules::default() };
    VirtioWanted { rules, ..wanted(name, None) }
}

fn mirror(name: &str, of: &str) -> VirtioWanted {
    let mirror = Mirrored::parse_list(of).expect("ports are named");
    let rules = PortRules { mirror, ..PortRules::default() };
    VirtioWanted { rules, ..wanted(name, None) }
}

#[test]
fn a_call_of_a_test_disturbs_the_engine_of_the_vif_that_it_names() {
    let mut machine = machine();
    connect(&mut machine, wanted("vm1", None));
    let panic = |vif: &str| BackendRequest::Panic { vif: vif.to_owned() };
    machine.call(&panic("vm1")).expect("it is connected");
    for asleep in [false, true] {
        let stall = BackendRequest::Stall { vif: "vm1".to_owned(), asleep };
        machine.call(&stall).expect("it is connected");
    }
    assert_eq!(machine.engines.disturbed, ["Panic", "Loop", "Sleep"]);
    let refused = machine.call(&panic("vm9")).expect_err("it does not exist");
    assert_eq!(refused, "there is no vif \"vm9\"; there is vm1");
}

#[test]
fn frames_are_captured_of_a_vif_that_is_connected() {
    let mut machine = machine();
    machine.add(wanted("vm1", None), Phase::Serving).expect("it can be");
    let capture = BackendRequest::Capture { vif: "vm1".to_owned(), snap_len: 96 };
    let refused = machine.call(&capture).expect_err("there are no frames");
    assert_eq!(refused, "vm1 is not connected, so it has no frames");
    machine.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Apply]);
    let Ok(CallReply::Capture(capture, name, snap_len)) = machine.call(&capture) else {
        panic!("it is connected")
    };
    assert_eq!((name.as_str(), snap_len, capture.is_open()), ("vm1", 96, true));
}

#[test]
fn the_guest_of_a_virtio_vif_chooses_its_queues_itself() {
    let mut machine = bridged();
    let mut refused = |max_queues| {
        let vif = "vm1".to_owned();
        let call = BackendRequest::SetMaxQueues { vif, max_queues, reconnect: Reconnect::Later };
        machine.call(&call).expect_err("it cannot be")
    };
    assert!(refused(2).contains("its guest chooses with `ethtool -L`"));
    assert_eq!(refused(0), "max-queues is 0, expected 1 or more");
}

#[test]
fn a_bridge_floods_by_itself_and_has_no_mirrors() {
    let mut machine = bridged();
    for (name, value) in [("flood-rate", "1"), ("broadcast-mbit", "1")] {
        let refused = machine.call(&limit("vm1", name, value)).expect_err("the bridge floods");
        assert!(refused.contains("on the bridge br0, which floods its frames itself"), "{refused}");
    }
    machine.call(&limit("vm1", "weight", "3")).expect("a limit of engines");
    let refused = machine.add(mirror("out", "vm1"), Phase::Serving).expect_err("of a bridge");
    assert!(refused.contains("br0, and only ports of the switch are mirrored"), "{refused}");
}

#[test]
fn an_uplink_is_no_output_of_a_mirror() {
    let mut machine = machine();
    machine.add(wanted("vm1", None), Phase::Serving).expect("it can be");
    machine.attach_uplink();
    let mut call = |vif, key, value| machine.call(&limit(vif, key, value));
    let refused = call("ringway0", "mirror", "vm1").expect_err("it has other frames");
    assert!(refused.ends_with("carries only copies: expected a vif"), "{refused}");
    call("vm1", "mirror", "ringway0").expect("its frames are copied");
}

#[test]
fn the_description_changes_an_uplink_and_no_call_does() {
    let mut machine = machine();
    machine.attach_uplink();
    let mut refused = |request| machine.call(&request).expect_err("it is no vif");
    for known in ["broadcast-rate", "unknown-mbit", "vlan", "multicast-router"] {
        let expected = format!(
            "ringway0 is the uplink: change `{known}` in [uplink] of the description, and reload \
             that (SIGHUP)"
        );
        assert_eq!(refused(limit("ringway0", known, "1")), expected);
    }
    for unknown in ["weight", "flood-rate", "locking-mode"] {
        let found = refused(limit("ringway0", unknown, "1"));
        assert!(found.starts_with("ringway0 is the uplink, which has no "), "{found}");
        assert!(found.ends_with("unknown-mbit, vlan, trunk, multicast-router"), "{found}");
    }
    let (vif, reconnect) = ("ringway0".to_owned(), Reconnect::Later);
    let queues = refused(BackendRequest::SetMaxQueues { vif, max_queues: 2, reconnect });
    assert!(
        queues.ends_with("change `queues` in [uplink] of the description, and restart the host")
    );
}

#[test]
fn the_address_of_a_vif_is_at_its_port_while_it_is_connected() {
    let mut machine = machine();
    connect(&mut machine, VirtioWanted { mac: Some(MacAddr(MAC)), ..wanted("vm1", None) });
    let shown = status(&mut machine).fdb;
    let [entry] = &shown[..] else { panic!("{shown:?}") };
    let at = (entry.port.as_str(), entry.mac.as_str(), entry.vlan, entry.is_static);
    assert_eq!(at, ("vm1", "52:54:00:00:00:01", None, true));
    machine.front_end(&[Act::Leave]);
    assert!(status(&mut machine).fdb.is_empty());
}

#[test]
fn a_link_is_there_while_both_its_ends_are_connected_and_name_each_other() {
    let mut machine = machine();
    connect(&mut machine, linked("vm1", "vm2"));
    follow_ports(&mut machine);
    assert!(!machine.host.shared.switch.has_links(), "the other end is missing");
    connect(&mut machine, linked("vm2", "vm1"));
    follow_ports(&mut machine);
    assert!(machine.host.shared.switch.has_links());
    machine.on(Event::Removed("vm2".to_owned()));
    follow_ports(&mut machine);
    assert!(!machine.host.shared.switch.has_links());
    connect(&mut machine, linked("vm2", "vm3"));
    follow_ports(&mut machine);
    assert!(!machine.host.shared.switch.has_links(), "vm2 names another one");
}

#[test]
fn a_mirror_copies_to_its_output_what_it_names_and_ends_with_that() {
    let mut machine = machine();
    connect(&mut machine, wanted("vm1", None));
    connect(&mut machine, mirror("out", "vm1:tx"));
    follow_ports(&mut machine);
    let port = |name: &str| {
        let vif = machine.host.virtio().find(|vif| vif.state.name == name);
        vif.and_then(|vif| vif.state.connection.as_ref()).expect("it is connected").port
    };
    let (mirrored, output) = (port("vm1"), port("out"));
    let active = machine.host.shared.switch.mirrors().active();
    let active = active.map(|(to, it)| (to, it.has_ingress(mirrored), it.has_egress(mirrored)));
    assert_eq!(active.collect::<Vec<_>>(), [(output, true, false)]);
    machine.on(Event::Removed("out".to_owned()));
    follow_ports(&mut machine);
    assert!(!machine.host.shared.switch.mirrors().is_active());
}

#[test]
fn there_are_so_many_mirrors_and_each_copies_while_it_is_connected() {
    let mut machine = machine();
    connect(&mut machine, wanted("vm1", None));
    for number in 0..MIRRORS_MAX {
        machine.add(mirror(&format!("out{number}"), "vm1"), Phase::Serving).expect("it can be");
    }
    let refused = machine.add(mirror("last", "vm1"), Phase::Serving).expect_err("one too many");
    assert!(refused.contains("which is the limit"), "{refused}");
    follow_ports(&mut machine);
    assert!(!machine.host.shared.switch.mirrors().is_active(), "no output is connected");
    for act in [Act::Connect(7), Act::Start(0, true), Act::Apply] {
        machine.on(Event::Session("out1".to_owned(), act));
    }
    follow_ports(&mut machine);
    assert!(machine.host.shared.switch.mirrors().is_active());
    machine.on(Event::Removed("out1".to_owned()));
    follow_ports(&mut machine);
    assert!(!machine.host.shared.switch.mirrors().is_active());
}
