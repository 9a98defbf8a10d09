//! Rules that a user sets of a virtio vif while it is served.

use std::collections::BTreeSet;

use ringway_calls::BackendRequest;
use ringway_datapath::{DropReason, PortRules, Vid, VlanRules};
use ringway_host::{Phase, Scope, VirtioWanted};

use crate::world::{Act, Machine, wanted};
use crate::{bridged, machine};

fn set(machine: &mut Machine, limit: &str, value: &str) -> Result<(), String> {
    let (vif, limit, value) = ("vm1".to_owned(), limit.to_owned(), value.to_owned());
    machine.call(&BackendRequest::SetLimit { vif, limit, value }).map(drop)
}

fn described() -> VirtioWanted {
    let vlan = VlanRules { untagged: Vid::new(5), tagged: Vec::new() };
    let rules = PortRules { vlan, is_router: true, ..PortRules::default() };
    VirtioWanted { rules, ..wanted("vm1", None) }
}

#[test]
fn rules_that_are_set_apply_at_once_and_are_known_to_the_next_process() {
    let mut machine = machine();
    machine.add(described(), Phase::Start).expect("it can be");
    machine.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Apply]);
    let port = |machine: &Machine| machine.vif().state.connection.as_ref().map(|it| it.port);
    let before = port(&machine);
    for (rule, value) in [
        ("vlan", "7"),
        ("private", "1"),
        ("dhcp-server", "1"),
        ("multicast-router", "always"),
        ("locking-mode", "locked"),
        ("allowed-ips", "10.0.0.5,fd77::5"),
        ("allowed-macs", "52:54:00:00:00:02"),
    ] {
        set(&mut machine, rule, value).expect("it is a rule");
    }
    let shown = |machine: &mut Machine| {
        let status = machine.status();
        let flags = [status.is_private, status.is_router, status.is_dhcp_server];
        (status.vlan, flags, status.multicast_router, status.locking_mode, status.allowed_ips)
    };
    let ips = vec!["10.0.0.5".to_owned(), "fd77::5".to_owned()];
    let expected = (Some(7), [true; 3], "always".to_owned(), "locked".to_owned(), ips);
    assert_eq!(shown(&mut machine), expected);
    assert!(before.is_some() && port(&machine) == before, "its guest stays connected");
    let refused = set(&mut machine, "link-local-to", "vm1").expect_err("it is no link");
    assert_eq!(refused, "link-local-to is vm1 itself: expected another vif");
    let mut next = Machine::start(machine.kernel.clone(), machine.notes.clone());
    next.add(described(), Phase::Start).expect("it can be");
    assert_eq!(shown(&mut next), expected);
    set(&mut next, "vlan", "").expect("none");
    assert_eq!(next.status().vlan, None);
}

#[test]
fn a_disabled_vif_is_shut_in_both_directions_on_the_switch_and_on_a_bridge() {
    let mut on_switch = machine();
    on_switch.add(wanted("vm1", None), Phase::Start).expect("it can be");
    on_switch.front_end(&[Act::Connect(7), Act::Start(0, true), Act::Apply]);
    for mut machine in [on_switch, bridged()] {
        for (mode, reason) in [("disabled", Some(DropReason::PortDisabled)), ("locked", None)] {
            set(&mut machine, "locking-mode", mode).expect("it is a mode");
            assert_eq!(machine.engines.shut.last(), Some(&reason), "{mode}");
        }
    }
}

#[test]
fn a_rule_that_cannot_be_is_refused_and_changes_nothing() {
    let mut machine = bridged();
    let refused = set(&mut machine, "private", "1").expect_err("a bridge decides that");
    assert_eq!(refused, "vm1 is on the bridge br0: expected a vif on the switch");
    set(&mut machine, "private", "0").expect("it is so");
    assert_eq!(machine.status().limits.frame_len_max, None, "so are longer frames");
    set(&mut machine, "locking-mode", "disabled").expect("on a bridge, too");
    let refused = set(&mut machine, "locking-mode", "open").expect_err("no mode");
    assert_eq!(refused, "locking-mode: expected unlocked, locked or disabled, not \"open\"");
    let refused = set(&mut machine, "vlan", "4095").expect_err("no VLAN");
    assert_eq!(refused, "vlan: expected the number of one VLAN, 1 to 4094, not \"4095\"");
    let refused = set(&mut machine, "trunk", "7,4095").expect_err("no VLAN");
    assert!(refused.starts_with("trunk: expected at most 64 numbers of VLANs"), "{refused}");
    let refused = set(&mut machine, "colour", "1").expect_err("no rule");
    assert!(
        refused.contains("weight, ") && refused.ends_with("link-local-to, mirror"),
        "{refused}"
    );
    assert_eq!(machine.status().locking_mode, "disabled");
}

#[test]
fn rules_of_a_tenants_vif_are_those_of_its_trunk() {
    let mut machine = machine();
    machine.add(wanted("vm1", None), Phase::Start).expect("it can be");
    machine.host.scope = Scope::Only(BTreeSet::new());
    let refused = set(&mut machine, "vlan", "7").expect_err("the switch process has others");
    let remedy = "change vlan in the description, and have the host read it again";
    assert!(refused.ends_with(&format!("the process of its tenant: {remedy}")), "{refused}");
    set(&mut machine, "rate", "1000,50000").expect("a limit is no rule");
    assert_eq!(machine.status().vlan, None);
}
