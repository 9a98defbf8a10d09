//! The device of the uplink, and devices that nothing needs any more.

use ringway_datapath::MacAddr;
use ringway_host::{
    Kernel as _, Link, LinkSetting, Note, Notes as _, PortDevice, Purpose, Tap as _,
    delete_devices, open_port_device, uplink_obstacle,
};

use crate::place::{Device, OWNER, Place, bridged};

fn uplink(addresses: &[&str], mtu: u32) -> PortDevice {
    PortDevice {
        name: "up0".to_owned(),
        mac: MacAddr([2, 0, 0, 0, 0, 7]),
        addresses: addresses.iter().map(|it| (it.parse().expect("an address"), 24)).collect(),
        queues: 1,
        mtu,
    }
}

/// A process makes the device or takes it over.
fn open(place: &mut Place, uplink: &PortDevice) -> Result<Device, String> {
    open_for(Purpose::Uplink, place, uplink)
}

fn open_for(purpose: Purpose, place: &mut Place, wanted: &PortDevice) -> Result<Device, String> {
    let opened = open_port_device(&mut place.keeper(), purpose, wanted, &mut place.notes);
    opened.map_err(|error| error.to_string())
}

#[test]
fn an_uplink_is_taken_over_with_what_an_administrator_did_and_what_the_description_changed() {
    let place = &mut Place::with(&["up0"]);
    let mut net = place.net.clone();
    let taken = open(place, &uplink(&[], 1500)).err().expect("refused");
    assert!(taken.contains("an interface up0 exists already"), "{taken}");
    let obstacle = |place: &Place| uplink_obstacle(&mut place.net.clone(), "up0", OWNER);
    assert_eq!(obstacle(place).expect("asked"), Some(taken));
    net.remove("up0").expect("it exists");
    assert_eq!(obstacle(place).expect("asked"), None);
    let ending = net.open_tap("up0", 1).expect("a device");
    assert!(obstacle(place).expect("asked").is_some());
    net.remove_later("up0");
    assert_eq!(obstacle(place).expect("asked"), None, "it has gone with its process");
    drop(ending);

    let wanted = uplink(&["10.9.0.1", "10.9.1.1"], 9000);
    drop(open(place, &wanted).expect("made"));
    assert_eq!(obstacle(place).expect("asked"), None);
    let first = place.link("up0");
    assert_eq!((first.address, first.mtu, first.is_up), (Some(wanted.mac.0), 9000, true));
    let addresses = |place: &Place, name: &str| -> Vec<String> {
        place.net.addresses_of(name).iter().map(|(address, _)| address.to_string()).collect()
    };
    assert_eq!(addresses(place, "up0"), ["10.9.0.1", "10.9.1.1"]);

    // An administrator moves an address elsewhere, and sets an MTU and another address.
    net.remove_address("up0", "10.9.0.1".parse().expect("one"), 24).expect("removed");
    net.add_address("up0", "10.9.2.1".parse().expect("one"), 24).expect("added");
    place.set("up0", &[LinkSetting::Mtu(1400)]);
    drop(open(place, &wanted).expect("taken over"));
    let found = place.link("up0");
    assert_eq!((found.index, found.address, found.mtu), (first.index, first.address, 1400));
    assert_eq!(addresses(place, "up0"), ["10.9.1.1", "10.9.2.1"]);

    drop(open(place, &uplink(&["10.9.0.1", "10.9.3.1"], 9000)).expect("taken over"));
    assert_eq!(addresses(place, "up0"), ["10.9.2.1", "10.9.3.1"], "only what has changed");
    drop(open(place, &uplink(&["10.9.3.1"], 2000)).expect("taken over"));
    assert_eq!(place.link("up0").mtu, 2000);
    let mac = MacAddr([2, 0, 0, 0, 0, 8]);
    let renamed = PortDevice { name: "up1".to_owned(), mac, ..uplink(&["10.9.3.1"], 2000) };
    drop(open(place, &renamed).expect("made"));
    assert_eq!(net.find("up0"), None, "the description names another one");
    assert_eq!(place.link("up1").address, Some(mac.0));

    // Deleted by an administrator: made again with its address.
    net.remove("up1").expect("it exists");
    drop(open(place, &renamed).expect("made again"));
    assert_eq!(place.link("up1").address, Some(mac.0));
    assert_eq!(addresses(place, "up1"), ["10.9.3.1"]);
}

#[test]
fn the_device_of_a_namespace_is_taken_over_with_its_own_purpose() {
    let place = &mut Place::default();
    let web = || Purpose::Virtio("web".to_owned());
    let wanted = uplink(&["10.9.0.1"], 1500);
    let device = open_for(web(), place, &wanted).expect("made");
    let refused = open_for(Purpose::Virtio("other".to_owned()), place, &wanted).err();
    assert!(refused.is_some_and(|it| it.contains("an interface up0 exists already")));
    let index = device.index;
    drop(device);
    let next = open_for(web(), place, &uplink(&["10.9.0.1"], 9000)).expect("taken over");
    assert_eq!((next.index, place.link("up0").mtu), (index, 9000));
    assert_eq!(place.net.addresses_of("up0").len(), 1);
    // Its namespace has no use for it any more, although a process may have it open.
    next.delete(&mut place.keeper(), &mut place.notes).expect("deleted");
    assert_eq!(place.net.find("up0"), None);
    assert!(place.notes.read(&Note::Devices, 100).is_empty());
}

#[test]
fn only_what_is_not_wanted_and_has_our_note_is_deleted() {
    let place = &mut Place::with(&["br0"]);
    let mut net = place.net.clone();
    for name in ["vm1", "vm2"] {
        drop(place.made(&bridged(name, "br0", None)).expect("made"));
    }
    drop(open(place, &uplink(&[], 1500)).expect("made"));
    for (name, note) in [("b", "ringway /run/other uplink"), ("c", "mine"), ("d", "")] {
        let tap = net.open_tap(name, 1).expect("a device");
        place.set(name, &[LinkSetting::Alias(note)]);
        tap.set_persistent(true).expect("set");
    }
    place.set("br0", &[LinkSetting::Alias(&format!("ringway {OWNER} uplink"))]);
    let vm1 = Purpose::Virtio("vm1".to_owned());
    let kept = |purpose: &Purpose, _: &Link| *purpose == vm1;
    let mut deleted = delete_devices(&mut net, OWNER, kept);
    deleted.sort();
    assert_eq!(deleted, [Purpose::Virtio("vm2".to_owned()), Purpose::Uplink]);
    let names: Vec<String> = net.all().into_iter().map(|link| link.name).collect();
    assert_eq!(names, ["br0", "vm1", "b", "c", "d"]);
}
