//! Vifs whose network devices another process keeps, and passes to this one.

use ringway_host::{Event, Followed, Host, Kernel as _, Made, Passed, Phase, Purpose};
use ringway_sim::SimTap;
use ringway_xenbus::Device;

use crate::ovs::CONNECT;
use crate::world::{Act, Cable, Machine, wanted};
use crate::xen::{VIF, connect, device};
use crate::{AT_ONCE, machine};

fn isolated() -> Machine {
    let mut machine = machine();
    machine.without_netlink();
    machine
}

fn vm1() -> Purpose {
    Purpose::Virtio("vm1".to_owned())
}

fn add(machine: &mut Machine) {
    machine.add(wanted("vm1", Some("br0")), Phase::Serving).expect("its keeper knows the bridge");
}

/// A new device on the bridge br0, as its keeper describes it.
fn made(machine: &Machine, mtu: u32) -> Passed<SimTap<Cable>> {
    let tap = machine.kernel.clone().open_tap("tap1", 2).expect("the name is free");
    Passed::Made(Made { queues: 2, mtu, attached_to: "br0".to_owned() }, tap)
}

/// The largest MTU that the front-end of `vm1` is offered.
fn mtu_offered(machine: &Machine) -> u16 {
    let said = machine.vif().session.said.as_ref().expect("it is connected");
    said.offer().mtu_max()
}

#[test]
fn a_virtio_vif_is_served_as_soon_as_its_device_is_passed() {
    let mut machine = isolated();
    add(&mut machine);
    let error = |machine: &mut Machine| machine.status().error.expect("it is not served");
    assert_eq!(error(&mut machine), "its network device is not made yet");
    machine.pass(&vm1(), Passed::NotMade("br0 is missing".to_owned()));
    machine.turn_after(AT_ONCE);
    assert_eq!(error(&mut machine), "br0 is missing");
    assert!(machine.vif().is_closed());
    let device = made(&machine, 1400);
    machine.pass(&vm1(), device);
    machine.turn_after(AT_ONCE);
    assert!(!machine.vif().is_closed());
    machine.front_end(&CONNECT);
    let status = machine.status();
    assert_eq!((status.attached_to.as_str(), status.queues.len(), status.error), ("br0", 1, None));
    assert_eq!((machine.host.shared.ports_in_use(), mtu_offered(&machine)), (2, 1400));
    machine.on(Event::DeviceMtu(vm1(), 9000));
    machine.front_end(&[Act::Leave, Act::Connect(8)]);
    assert_eq!(mtu_offered(&machine), 9000);

    // What was passed stays until its keeper removes it.
    machine.on(Event::Removed("vm1".to_owned()));
    add(&mut machine);
    machine.front_end(&CONNECT);
    assert_eq!((machine.status().queues.len(), mtu_offered(&machine)), (1, 9000));
    machine.on(Event::Removed("vm1".to_owned()));
    machine.act(|_, _, parts| parts.devices.forget(&vm1()));
    add(&mut machine);
    assert!(machine.vif().is_closed());
}

#[test]
fn a_device_that_is_passed_again_replaces_the_deleted_one_under_its_guest() {
    let mut machine = isolated();
    let device = made(&machine, 1500);
    machine.pass(&vm1(), device);
    add(&mut machine);
    machine.front_end(&CONNECT);
    machine.kernel.remove("tap1").expect("it exists");
    let gone = machine.status().error;
    assert_eq!(gone.as_deref(), Some("its network device was deleted"));
    let attached = machine.engines.patched.len();
    let device = made(&machine, 1500);
    machine.pass(&vm1(), device);
    assert_eq!(machine.act(Host::follow_devices), Some(Followed::Done));
    assert_eq!(machine.engines.patched.len(), attached + 1);
    let status = machine.status();
    assert_eq!((status.queues.len(), status.error), (1, None));
    assert_eq!(machine.host.shared.ports_in_use(), 2);
}

#[test]
fn a_vif_of_xen_on_a_bridge_waits_for_its_device_and_one_on_the_switch_for_nothing() {
    let mut machine = isolated();
    machine.make(&device());
    machine.turn_all();
    let shown = machine.shown("vif1.0");
    assert_eq!((shown.state.as_str(), shown.attached_to.as_str()), ("InitWait", "switch"));

    let mut machine = isolated();
    machine.make(&Device { bridge: Some("br0".to_owned()), ..device() });
    let missing = Passed::NotMade("br0 is missing".to_owned());
    for (passed, reason) in [
        (None, "its network device is not made yet"),
        (Some(Passed::Nothing), "its network device is not made yet"),
        (Some(missing), "br0 is missing"),
    ] {
        if let Some(passed) = passed {
            machine.pass(&Purpose::Xen(VIF), passed);
        }
        machine.turn_all();
        let shown = machine.shown("vif1.0");
        assert_eq!((shown.state.as_str(), shown.error.as_deref()), ("Closed", Some(reason)));
    }
    let device = made(&machine, 1500);
    machine.pass(&Purpose::Xen(VIF), device);
    machine.turn_all();
    let shown = machine.shown("vif1.0");
    assert_eq!((shown.state.as_str(), shown.attached_to.as_str()), ("InitWait", "br0"));
    let _events = connect(&mut machine);
    let shown = machine.shown("vif1.0");
    assert_eq!((shown.state.as_str(), shown.error), ("Connected", None));
    assert_eq!(machine.host.shared.ports_in_use(), 2);
}
