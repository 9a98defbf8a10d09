//! Devices for bridges of Open vSwitch.

use ringway_host::{Joining, Kernel as _};

use crate::place::{Place, bridged};

/// With a bridge of Linux and one of Open vSwitch, whose ports can be asked for.
fn place() -> Place {
    let place = Place { joining: Some(Joining::Possible), ..Place::with(&["br0"]) };
    place.net.add_ovs_bridge("br-int").expect("a bridge");
    place
}

#[test]
fn a_device_for_open_vswitch_is_on_no_bridge_and_up() {
    let mut place = place();
    let mut device = place.made(&bridged("vm1", "br-int.7:8", Some(9000))).expect("made");
    let found = place.link("vm1");
    assert_eq!((found.master, found.is_up, found.mtu), (None, true, 9000));
    let shown = |device: &crate::place::Device, place: &Place| {
        device.place(Some(&place.net.all())).attached_to
    };
    assert_eq!(shown(&device, &place), "br-int.7:8");
    // As Linux shows a port of Open vSwitch, and that it is one no longer.
    place.net.add_bridge("ovs-system").expect("a bridge");
    for master in [Some("ovs-system"), None] {
        place.put("vm1", master);
        place.follow(&mut device);
        assert_eq!((shown(&device, &place).as_str(), &device.fault), ("br-int.7:8", &None));
        assert_eq!(place.master("vm1").as_deref(), master, "it is left alone");
    }
    // A device that was deleted is made again.
    let index = device.index;
    place.net.remove("vm1").expect("it exists");
    place.follow(&mut device);
    assert!(device.index != index && device.is_detached);
    assert_eq!((place.link("vm1").mtu, place.link("vm1").is_up), (9000, true));
}

#[test]
fn the_next_process_takes_it_over_also_while_open_vswitch_is_restarted() {
    let mut place = place();
    let index = place.made(&bridged("vm1", "br-int", None)).expect("made").index;
    place.net.set_up("vm1", false).expect("it outlives its process");
    place.net.remove("br-int").expect("it exists");
    for bridge in ["br-int", "br-int.7"] {
        let next = place.made(&bridged("vm1", bridge, None)).expect("taken over");
        assert_eq!((next.index, place.link("vm1").is_up), (index, false), "it is as it was");
    }
    let refusal = place.made(&bridged("vm2", "br-int.7", None)).err().expect("there is no bridge");
    assert!(refusal.to_string().contains("there is no interface br-int: make"), "{refusal}");
    assert_eq!(place.net.find("vm2"), None);
    place.net.add_ovs_bridge("br-int").expect("a bridge");
    let next = place.made(&bridged("vm1", "br-int", Some(1400))).expect("taken over");
    assert_eq!((next.index, place.link("vm1").mtu), (index, 1400), "the description has changed");
}

#[test]
fn a_device_changes_between_bridges_of_both_kinds() {
    let mut place = place();
    let first = place.made(&bridged("vm1", "br0", None)).expect("made").index;
    let second = place.made(&bridged("vm1", "br-int", None)).expect("made").index;
    assert_ne!(first, second, "a port of a Linux bridge cannot be one of Open vSwitch");
    assert_eq!(place.master("vm1"), None);
    let third = place.made(&bridged("vm1", "br0", None)).expect("made").index;
    assert_eq!((third, place.master("vm1").as_deref()), (second, Some("br0")));
}

#[test]
fn vlans_are_only_for_open_vswitch_whose_ports_can_be_asked_for() {
    let mut place = place();
    place.net.add_bridge("br0.7").expect("a bridge");
    place.made(&bridged("vm1", "br0.7", None)).expect("a Linux bridge may have a dot in its name");
    assert_eq!(place.master("vm1").as_deref(), Some("br0.7"));
    place.net.add_other("eth0").expect("a link");
    let refusal = |place: &mut Place, bridge: &str| {
        place.made(&bridged("vm2", bridge, None)).err().expect("refused").to_string()
    };
    for (bridge, part) in [
        ("br0:7", "br0 is not a bridge of Open vSwitch"),
        ("eth0.7", "eth0 is not a bridge of Open vSwitch"),
        ("eth0", "eth0 is not a bridge"),
    ] {
        let refused = refusal(&mut place, bridge);
        assert!(refused.contains(part), "{refused}");
    }
    // As a userspace datapath has its bridges.
    let _bridge = place.net.clone().open_tap("br-dpdk", 1).expect("a device");
    for bridge in
        ["br-int:0", "br-int:7:x", "br-none:4095", "br-int.5000", "br-int.7.8", "br-dpdk.0"]
    {
        let refused = refusal(&mut place, bridge);
        let expected = format!("on bridge {bridge}: correct `bridge`: {bridge:?} names no bridge");
        assert!(refused.contains(&expected), "{refused}");
    }
    let linux = refusal(&mut place, "br0.lan");
    assert!(linux.contains("there is no interface br0.lan: make that bridge"), "{linux}");
    for (joining, part) in [
        (Joining::Isolated, "a tenant's may give none, because its guest may have taken it over"),
        (Joining::WithoutVsctl, "there is no ovs-vsctl"),
    ] {
        place.joining = Some(joining);
        for (bridge, what) in [
            ("br-int", "br-int is a bridge of Open vSwitch, and "),
            ("br-int.7", "br-int is a bridge of Open vSwitch, and "),
            ("br-dpdk", "br-dpdk is not a bridge of Linux, and "),
        ] {
            let refused = refusal(&mut place, bridge);
            assert!(refused.contains(what) && refused.contains(part), "{refused}");
        }
    }
    assert_eq!(place.net.find("vm2"), None);
}
