//! What a host decides about vifs of Xen, whose guests set up rings without frames.

use std::sync::Arc;
use std::time::Duration;

use ringway_calls::{BackendRequest, Reconnect};
use ringway_datapath::MacAddr;
use ringway_host::{Charged, Event, Host, Note, Notes as _, panic_line};
use ringway_hypervisor::{Access, EventChannel as _, GrantTable as _, Hypervisor as _};
use ringway_loopback::{Limits, LoopbackEvent};
use ringway_sim::{KeptNotes, SimKernel};
use ringway_switch::Claim;
use ringway_wire::DomId;
use ringway_xenbus::{Device, Vif};
use ringway_xenstore::Watched;

use crate::world::Machine;
use crate::{LATER, MAC, machine};

pub(crate) const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(1), handle: 0 };

/// That of the whole workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn device() -> Device {
    Device::new(VIF, MacAddr(MAC))
}

/// A node of XenStore gets this value.
fn set(machine: &mut Machine, path: &str, value: &str) {
    machine.act(|_, _, parts| parts.store.write(path, value)).expect("domain 0 may");
}

/// A toolstack or a guest writes keys in a directory of the vif, and the host finds them.
fn write(machine: &mut Machine, dir: &str, keys: &[(&str, u32)]) {
    for (key, value) in keys {
        set(machine, &format!("{dir}/{key}"), &value.to_string());
    }
    machine.on(Event::Watch(Watched::Overflow));
    machine.turn_all();
}

/// The guest of the vif is made, and its driver connects by one queue, whose events the result is
/// for.
pub(crate) fn connect(machine: &mut Machine) -> LoopbackEvent {
    connect_with(machine, &[])
}

/// As [`connect`], with more keys of the guest.
fn connect_with(machine: &mut Machine, more: &[(&str, u32)]) -> LoopbackEvent {
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
    write(machine, &VIF.frontend_dir(), &[more, &keys[..]].concat());
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

#[test]
fn the_status_of_a_vif_of_xen_shows_its_guest_and_what_that_has_asked_for() {
    let mut machine = machine();
    let second = Vif { handle: 2, ..VIF };
    set(&mut machine, "/local/domain/1/name", "web");
    for vif in [VIF, second] {
        machine.make(&Device { vif, ..device() });
    }
    machine.turn_all();
    let _events = connect_with(&mut machine, &[("xdp-headroom", 256)]);
    let shown = machine.shown("vif1.2");
    assert_eq!((shown.kind.as_str(), shown.guest.as_deref()), ("xen", Some("web")));
    assert_eq!((shown.domid, shown.handle, shown.max_queues), (Some(1), 2, 1));
    assert_eq!((shown.state.as_str(), shown.headroom), ("InitWait", 0));
    assert_eq!((shown.locking_mode.as_str(), shown.limits.offloads.as_str()), ("default", "auto"));
    assert_eq!((shown.version.as_str(), shown.attached_to.as_str()), (VERSION, "switch"));
    let shown = machine.shown("vif1.0");
    assert_eq!((shown.state.as_str(), shown.headroom), ("Connected", 256));
    assert_eq!((shown.error, shown.error_kind, shown.is_down), (None, None, false));
}

#[test]
fn the_groups_of_a_guest_are_shown_once_it_gets_no_others() {
    for (requested, expected) in [(0, None), (1, Some(Vec::new()))] {
        let mut machine = machine();
        machine.make(&device());
        machine.turn_all();
        let _events = connect_with(&mut machine, &[("request-multicast-control", requested)]);
        let shown = machine.shown("vif1.0");
        assert_eq!((shown.state.as_str(), shown.groups_wanted), ("Connected", expected));
    }
}

#[test]
fn a_vif_says_that_its_script_is_waited_for_and_how_long() {
    let mut machine = machine();
    machine.make(&device());
    let dir = VIF.backend_dir();
    set(&mut machine, &format!("{dir}/script"), "/etc/xen/scripts/vif-bridge");
    machine.turn_all();
    let _events = connect(&mut machine);
    machine.now += Duration::from_millis(1500);
    let shown = machine.shown("vif1.0");
    assert_eq!((shown.state.as_str(), shown.queues.len()), ("InitWait", 1));
    let [wait] = &shown.waits[..] else { panic!("{:?}", shown.waits) };
    assert_eq!((wait.kind.as_str(), wait.milliseconds), ("script", 1500));
    assert!(wait.reason.contains("hotplug script has not reported"), "{}", wait.reason);
    set(&mut machine, &format!("{dir}/hotplug-status"), "connected");
    machine.on(Event::Watch(Watched::Overflow));
    machine.turn_all();
    let shown = machine.shown("vif1.0");
    assert_eq!((shown.state.as_str(), shown.waits), ("Connected", Vec::new()));
}

#[test]
fn a_vif_of_xen_with_two_panics_is_closed_until_it_is_released() {
    let mut notes = KeptNotes::default();
    let line = panic_line(0, &Charged::Xen(VIF));
    notes.write(&Note::Panics, line.repeat(2).as_bytes()).expect("there is room");
    let mut machine = Machine::start(SimKernel::default(), notes);
    machine.make(&device());
    machine.turn_all();
    let shown = machine.shown("vif1.0");
    assert_eq!((shown.state.as_str(), shown.error_kind.as_deref()), ("Closed", Some("fault")));
    assert!(shown.error.is_some_and(|error| error.contains("is quarantined")));
    let [wait] = &shown.waits[..] else { panic!("{:?}", shown.waits) };
    assert_eq!(wait.kind, "quarantine");
    let release = BackendRequest::Release { vif: "vif1.0".to_owned() };
    machine.call(&release).expect("it is");
    machine.turn_all();
    let shown = machine.shown("vif1.0");
    assert_eq!((shown.state.as_str(), shown.error, shown.waits), ("InitWait", None, Vec::new()));
    let again = machine.call(&release).expect_err("it is no more");
    assert!(again.contains("is not quarantined"), "{again}");
}
