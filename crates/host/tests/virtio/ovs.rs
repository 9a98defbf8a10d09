//! Vifs on bridges of Open vSwitch.

use ringway_datapath::MacAddr;
use ringway_host::{Event, Host, Phase, PortOrder, Purpose, VirtioWanted};
use ringway_ovs::{Bind, Facts, Ids};

use crate::world::{Act, Machine, wanted};
use crate::{LATER, MAC, machine};

pub(crate) const CONNECT: [Act; 3] = [Act::Connect(7), Act::Start(0, true), Act::Apply];

/// A machine with the vif `vm1` on a bridge of Open vSwitch.
pub(crate) fn on_ovs() -> Machine {
    let mut machine = machine();
    machine.kernel.add_ovs_bridge("br-int").expect("a bridge");
    add(&mut machine);
    machine
}

fn add(machine: &mut Machine) {
    machine.allow_ports();
    let (iface_id, mac) = (Some("lsp1".to_owned()), Some(MacAddr(MAC)));
    let wanted = VirtioWanted { iface_id, mac, ..wanted("vm1", Some("br-int.7")) };
    machine.add(wanted, Phase::Serving).expect("it can be");
}

fn vm1() -> Purpose {
    Purpose::Virtio("vm1".to_owned())
}

fn next(machine: &mut Machine) -> Option<PortOrder> {
    machine.host.shared.ovs.next_order(machine.now)
}

/// The next order is to join, with the present device.
fn expect_join(machine: &mut Machine) {
    let device = machine.kernel.find("vm1").expect("it exists").index;
    match next(machine) {
        Some(PortOrder { wanted: Some(wanted), .. }) if wanted.index == device => {}
        other => panic!("{other:?}"),
    }
}

fn expect_leave(machine: &mut Machine) {
    assert_eq!(next(machine), Some(PortOrder { vif: vm1(), wanted: None }));
    machine.on(Event::PortDone(Ok(Ids::default())));
}

fn done(machine: &mut Machine) {
    machine.on(Event::PortDone(Ok(Ids { iface_id: Some("lsp1".to_owned()), ..Ids::default() })));
}

#[test]
fn a_vif_has_its_port_while_its_guest_is_connected() {
    let mut machine = on_ovs();
    assert_eq!(next(&mut machine), None, "there is no guest");
    machine.front_end(&CONNECT);
    let Some(PortOrder { vif, wanted: Some(wanted) }) = next(&mut machine) else {
        panic!("it joins")
    };
    assert_eq!((vif, wanted.device.as_str()), (vm1(), "vm1"));
    assert_eq!((wanted.bridge.name.as_str(), wanted.bridge.tag), ("br-int", Some(7)));
    let facts = Facts {
        iface_id: Some("lsp1".to_owned()),
        mac: Some(MacAddr(MAC).to_string()),
        vm_name: Some("vm1".to_owned()),
        ..Facts::default()
    };
    assert_eq!(wanted.facts, facts);
    assert_eq!(machine.status().ovs, None, "there is no reply");
    done(&mut machine);
    let status = machine.status();
    assert_eq!(status.attached_to, "br-int.7");
    let port = status.ovs.expect("it has one");
    assert_eq!((port.bridge.as_str(), port.iface_id.as_deref()), ("br-int", Some("lsp1")));

    machine.front_end(&[Act::Stop(0), Act::Start(0, true), Act::Apply]);
    assert_eq!(next(&mut machine), None, "a change of its queues within a turn changes no port");
    machine.front_end(&[Act::Leave]);
    expect_leave(&mut machine);
    assert_eq!(machine.status().ovs, None);
    machine.front_end(&CONNECT);
    expect_join(&mut machine);
    done(&mut machine);
    machine.on(Event::Removed("vm1".to_owned()));
    expect_leave(&mut machine);
    assert_eq!((next(&mut machine), machine.host.due()), (None, None));
}

#[test]
fn a_port_that_cannot_be_is_shown_and_tried_again_and_the_guest_stays_connected() {
    let mut machine = on_ovs();
    machine.front_end(&CONNECT);
    expect_join(&mut machine);
    machine.on(Event::PortDone(Err("no bridge named br-int".to_owned())));
    let status = machine.status();
    assert_eq!(status.error.as_deref(), Some("no bridge named br-int"));
    assert_eq!(status.error_kind.as_deref(), Some("fault"));
    assert_eq!((status.queues.len(), next(&mut machine)), (1, None));
    machine.now = machine.host.due().expect("it is tried again");
    expect_join(&mut machine);
    done(&mut machine);
    let status = machine.status();
    assert_eq!((status.error, status.error_kind), (None, None));
    assert_eq!(machine.host.shared.ovs.due(), None);
}

#[test]
fn a_device_that_is_made_again_joins_again() {
    let mut machine = on_ovs();
    machine.front_end(&CONNECT);
    expect_join(&mut machine);
    done(&mut machine);
    machine.act(Host::follow_devices).expect("it is time");
    machine.kernel.remove("vm1").expect("it exists");
    machine.host.shared.comparison.note_change(machine.now);
    machine.now += LATER;
    machine.act(Host::follow_devices).expect("it is time");
    assert_eq!(machine.status().queues.len(), 1);
    expect_join(&mut machine);
}

#[test]
fn other_ids_in_a_description_apply_while_the_guest_is_connected() {
    let mut machine = on_ovs();
    machine.front_end(&CONNECT);
    expect_join(&mut machine);
    done(&mut machine);
    let ids = [Some("lsp2".to_owned()), Some("c-d".to_owned())];
    let [iface_id, vm_uuid] = ids.clone();
    let mac = Some(MacAddr(MAC));
    let described = VirtioWanted { iface_id, vm_uuid, mac, ..wanted("vm1", Some("br-int.7")) };
    let again = vec![described];
    let changes = machine.act(|host, now, parts| host.reload(again, None, now, parts));
    assert_eq!(changes.expect("it is good").vifs[0].changed, ["iface-id", "vm-uuid"]);
    let Some(PortOrder { wanted: Some(wanted), .. }) = next(&mut machine) else {
        panic!("it joins")
    };
    assert_eq!([wanted.facts.iface_id, wanted.facts.vm_uuid], ids);
}

#[test]
fn a_vif_that_is_bound_when_plugged_has_its_port_without_a_guest() {
    let mut machine = machine();
    machine.kernel.add_ovs_bridge("br-int").expect("a bridge");
    machine.allow_ports();
    let wanted = VirtioWanted { bind: Bind::Plugged, ..wanted("vm1", Some("br-int")) };
    machine.add(wanted, Phase::Serving).expect("it can be");
    expect_join(&mut machine);
    done(&mut machine);
    machine.front_end(&CONNECT);
    machine.front_end(&[Act::Leave]);
    assert_eq!(next(&mut machine), None, "it stays");
    machine.act(Host::follow_devices).expect("it is time");
    machine.kernel.remove("vm1").expect("it exists");
    machine.host.shared.comparison.note_change(machine.now);
    machine.now += LATER;
    machine.act(Host::follow_devices).expect("it is time");
    expect_join(&mut machine);
    done(&mut machine);
    machine.on(Event::Removed("vm1".to_owned()));
    expect_leave(&mut machine);
}

#[test]
fn the_next_process_keeps_the_ports_of_its_vifs_and_removes_those_of_others() {
    let mut machine = on_ovs();
    machine.front_end(&CONNECT);
    let (kernel, notes) = (machine.kernel.clone(), std::mem::take(&mut machine.notes));
    let mut machine = Machine::start(kernel, notes);
    add(&mut machine);
    machine.kernel.add_bridge("br0").expect("a bridge");
    machine.add(wanted("vm2", Some("br0")), Phase::Serving).expect("it can be");
    let paths = ["virtio/vm1", "virtio/vm2", "virtio/vm3", "another text"];
    machine.on(Event::PortsFound(paths.map(str::to_owned).to_vec()));
    // One is on a Linux bridge now, one is gone.
    for gone in ["vm2", "vm3"] {
        let vif = Purpose::Virtio(gone.to_owned());
        assert_eq!(next(&mut machine), Some(PortOrder { vif, wanted: None }));
        machine.on(Event::PortDone(Ok(Ids::default())));
    }
    assert_eq!(next(&mut machine), None, "its guest has yet to return");
    machine.front_end(&CONNECT);
    expect_join(&mut machine);
}

#[test]
fn a_port_of_an_earlier_process_goes_with_a_vif_that_never_had_its_device() {
    let mut machine = on_ovs();
    machine.front_end(&CONNECT);
    let (kernel, notes) = (machine.kernel.clone(), std::mem::take(&mut machine.notes));
    ["vm1", "br-int"].iter().for_each(|link| kernel.remove(link).expect("it exists"));
    let mut machine = Machine::start(kernel, notes);
    machine.allow_ports();
    machine.add(wanted("vm1", Some("br-int.7")), Phase::Start).expect("it waits");
    machine.on(Event::PortsFound(vec!["virtio/vm1".to_owned()]));
    assert_eq!(next(&mut machine), None, "its bridge may come back");
    machine.on(Event::Removed("vm1".to_owned()));
    expect_leave(&mut machine);
}

#[test]
fn an_order_to_a_process_that_was_killed_is_given_again() {
    let mut machine = on_ovs();
    machine.front_end(&CONNECT);
    expect_join(&mut machine);
    assert_eq!(next(&mut machine), None, "one at a time");
    machine.on(Event::PluggerBegun);
    expect_join(&mut machine);
    done(&mut machine);
    machine.on(Event::PluggerBegun);
    assert_eq!(next(&mut machine), None, "it was done");
}
