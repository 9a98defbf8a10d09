//! What a host decides about vifs of Xen, whose guests set up rings without frames.

use std::sync::Arc;

use ringway_calls::{BackendRequest, Reconnect};
use ringway_datapath::MacAddr;
use ringway_host::{Event, Host, Note, Notes as _};
use ringway_hypervisor::{Access, EventChannel as _, GrantTable as _, Hypervisor as _};
use ringway_loopback::{Limits, LoopbackEvent};
use ringway_switch::Claim;
use ringway_wire::DomId;
use ringway_xenbus::{Device, Vif};
use ringway_xenstore::Watched;

use crate::world::Machine;
use crate::{LATER, MAC, machine};

pub(crate) const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(1), handle: 0 };

pub(crate) fn device() -> Device {
    Device::new(VIF, MacAddr(MAC))
}

/// A toolstack or a guest writes keys in a directory of the vif, and the host finds them.
fn write(machine: &mut Machine, dir: &str, keys: &[(&str, u32)]) {
    for (key, value) in keys {
        let (path, value) = (format!("{dir}/{key}"), value.to_string());
        machine.act(|_, _, parts| parts.store.write(&path, &value)).expect("domain 0 may");
    }
    machine.on(Event::Watch(Watched::Overflow));
    machine.turn_all();
}

/// The guest of the vif is made, and its driver connects by one queue, whose events the result is
/// for.
pub(crate) fn connect(machine: &mut Machine) -> LoopbackEvent {
    let guest = machine.loopback.create_domain(VIF.frontend, Limits::default()).expect("the first");
    let mut grants = guest.grants().expect("it has some");
    let rings = grants.share(VIF.backend, 2, Access::ReadWrite).expect("there is room");
    let events = guest.alloc_unbound(VIF.backend).expect("there is room");
    let keys = [
        ("tx-ring-ref", rings.grefs[0].0),
        ("rx-ring-ref", rings.grefs[1].0),
        ("event-channel", events.port().0),
        ("request-rx-copy", 1),
        ("state", 4),
    ];
    write(machine, &VIF.frontend_dir(), &keys);
    events
}

#[test]
fn a_guest_of_xen_is_announced_when_it_is_connected_and_soon_again() {
    let mut machine = machine();
    machine.make(&device());
    machine.turn_all();
    assert_eq!(machine.host.counts(), (1, 0));
    let _events = connect(&mut machine);
    assert_eq!(machine.shown("vif1.0").state, "Connected");
    assert_eq!(machine.host.counts(), (1, 1));
    let own = Claim { mac: MacAddr(MAC), ip: None }.announcement(false);
    assert_eq!(std::mem::take(&mut machine.engines.announced), std::slice::from_ref(&own));
    machine.now = machine.host.due().expect("a round follows");
    machine.act(|host: &mut Host<_>, now, _| host.note_due(now));
    machine.turn_all();
    assert_eq!(machine.engines.announced, [own]);
    assert!(machine.host.due().is_some_and(|due| due > machine.now));
}

#[test]
fn vifs_whose_guests_exchange_frames_are_noted_for_the_next_process() {
    let mut machine = machine();
    machine.make(&device());
    machine.turn_all();
    let _events = connect(&mut machine);
    let noted = |machine: &mut Machine| {
        machine.act(Host::housekeep);
        String::from_utf8(machine.notes.read(&Note::Traffic, 1 << 10)).expect("text")
    };
    assert_eq!(noted(&mut machine), "", "there were none");
    let connection = machine.host.vif(VIF).and_then(|vif| vif.state.connection.as_ref());
    let queue = Arc::clone(&connection.expect("it is connected").queues[0]);
    queue.add_rx(2, 120);
    machine.now += LATER;
    assert_eq!(noted(&mut machine), format!("{}\n", VIF.backend_dir()));
}

#[test]
fn queues_that_a_device_or_a_connected_guest_cannot_have_are_refused() {
    let mut machine = machine();
    machine.kernel.add_bridge("br0").expect("a bridge");
    machine.make(&Device { bridge: Some("br0".to_owned()), ..device() });
    machine.turn_all();
    let set = |machine: &mut Machine, max_queues, reconnect| {
        let vif = "vif1.0".to_owned();
        machine.call(&BackendRequest::SetMaxQueues { vif, max_queues, reconnect })
    };
    let refused = set(&mut machine, 2, Reconnect::Later).expect_err("its device has one");
    assert!(refused.contains("expected at most 1: the TAP device of vif1.0 on br0"), "{refused}");
    set(&mut machine, 1, Reconnect::Now).expect("it has no guest");
    let _events = connect(&mut machine);
    assert_eq!(machine.shown("vif1.0").state, "Connected");
    let refused = set(&mut machine, 1, Reconnect::Now).expect_err("it would stay away");
    assert!(refused.contains("would not reconnect"), "{refused}");
    set(&mut machine, 1, Reconnect::Later).expect("it keeps its queues");
}
