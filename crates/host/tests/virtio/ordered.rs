//! Vifs of Xen that a host serves because its supervisor orders that.

use std::collections::BTreeSet;

use ringway_datapath::MacAddr;
use ringway_host::{Event, Scope};
use ringway_wire::DomId;
use ringway_xenbus::{Device, MAX_QUEUES_KEY, Vif};
use ringway_xenstore::Watched;

use crate::machine;
use crate::world::{Act, Machine};

fn vif(guest: u8) -> Vif {
    Vif { backend: DomId(0), frontend: DomId(guest.into()), handle: 0 }
}

/// A machine with two vifs, of which its host serves those that it is ordered to.
fn tenants() -> Machine {
    let mut machine = machine();
    machine.host.scope = Scope::Only(BTreeSet::new());
    for guest in [1, 2] {
        machine.make(&Device::new(vif(guest), MacAddr([2, 0, 0, 0, 0, guest])));
    }
    machine.turn_all();
    machine
}

fn after(machine: &mut Machine, event: Event<Act>) -> Vec<Vif> {
    machine.on(event);
    machine.turn_all();
    machine.host.vifs().map(|(vif, _)| vif).collect()
}

/// A key of the vif changes.
fn write(machine: &mut Machine, vif: Vif, key: &str, value: &str) {
    let path = format!("{}/{key}", vif.backend_dir());
    machine.act(|_, _, parts| parts.store.write(&path, value)).expect("domain 0 may");
}

/// The watched nodes that have changed since the last call.
fn changed(machine: &mut Machine) -> Vec<String> {
    machine.act(|_, _, parts| {
        let events = std::iter::from_fn(|| parts.store.next_watch().expect("XenStore is there"));
        let paths = events.filter_map(|watched| match watched {
            Watched::Node(event) => Some(event.path),
            Watched::Overflow => None,
        });
        paths.collect()
    })
}

#[test]
fn a_vif_is_served_from_its_order_until_it_is_to_be_forgotten() {
    let mut machine = tenants();
    assert_eq!(machine.host.counts(), (0, 0));
    assert_eq!(after(&mut machine, Event::Serve(vif(1))), [vif(1)]);
    assert_eq!(after(&mut machine, Event::Forget(vif(2))), [vif(1)], "it has no such vif");
    assert_eq!(after(&mut machine, Event::Serve(vif(2))), [vif(1), vif(2)]);
    assert_eq!(after(&mut machine, Event::Forget(vif(1))), [vif(2)]);
    changed(&mut machine);
    for guest in [1, 2] {
        write(&mut machine, vif(guest), "online", "1");
    }
    let online = format!("{}/online", vif(2).backend_dir());
    assert_eq!(changed(&mut machine), [online], "the other one is not watched any more");
}

#[test]
fn a_vif_that_is_ordered_again_was_made_again() {
    let mut machine = tenants();
    after(&mut machine, Event::Serve(vif(1)));
    write(&mut machine, vif(1), MAX_QUEUES_KEY, "3");
    let queues = |machine: &mut Machine| machine.shown("vif1.0").max_queues;
    after(&mut machine, Event::Watch(Watched::Overflow));
    assert_eq!(queues(&mut machine), 1, "that is read when a vif is made");
    after(&mut machine, Event::Serve(vif(1)));
    assert_eq!(queues(&mut machine), 3);
}

#[test]
fn a_host_of_all_vifs_takes_no_such_orders() {
    let mut machine = machine();
    machine.make(&Device::new(vif(1), MacAddr([2, 0, 0, 0, 0, 1])));
    machine.turn_all();
    for order in [Event::Forget(vif(1)), Event::Serve(vif(2))] {
        assert_eq!(after(&mut machine, order), [vif(1)]);
    }
    assert_eq!(machine.host.scope, Scope::Domain);
}
