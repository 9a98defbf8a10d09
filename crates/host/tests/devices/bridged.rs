//! Devices on bridges.

use ringway_host::{Bridged, Kernel as _, LinkSetting, LowMtu, Notes as _, Tap as _};
use ringway_sim::{KeptNotes, PortFlags};

use crate::place::{Device, Place, bridged};

#[test]
fn a_virtio_vif_takes_over_no_foreign_interface_and_needs_a_bridge() {
    let mut place = Place::default();
    let net = place.net.clone();
    net.add_other("lo").expect("a link");
    let theirs = net.clone().open_tap("vm1", 1).expect("a device");
    let mut refusal = |name: &str, bridge: &str| {
        place.made(&bridged(name, bridge, None)).err().expect("refused").to_string()
    };
    // A bridge of Open vSwitch is such a link, too.
    assert!(refusal("vm2", "lo").contains(": lo is not a bridge of Linux"));
    assert!(refusal("vm2", "vm1").contains(": vm1 is not a bridge of Linux"));
    let missing = "network device vm2 on bridge br0: there is no interface br0: make that bridge";
    assert!(refusal("vm2", "br0").starts_with(missing));
    net.add_bridge("br0").expect("a bridge");
    let taken = refusal("vm1", "br0");
    assert!(taken.contains("an interface vm1 exists already"), "{taken}");
    drop(theirs);
    place.made(&bridged("vm1", "br0", None)).expect("the name is free");
}

#[test]
fn a_name_that_is_free_a_moment_later_is_waited_for() {
    let mut place = Place::with(&["br0"]);
    place.net.add_other("vm1").expect("a link");
    place.net.remove_later("vm1");
    place.made(&bridged("vm1", "br0", None)).expect("the name is free");
}

#[test]
fn an_attempt_without_the_bridge_makes_opens_and_changes_nothing() {
    let mut place = Place::default();
    let net = place.net.clone();
    let try_in_vain = |place: &mut Place, wanted: &Bridged| {
        let before = (net.opened(), net.version());
        for _ in 0..3 {
            place.made(wanted).err().expect("there is no bridge");
        }
        assert_eq!((net.opened(), net.version()), before);
    };
    try_in_vain(&mut place, &bridged("vm1", "br0", None));
    net.add_bridge("br0").expect("a bridge");
    drop(place.made(&bridged("vm1", "br0", None)).expect("made"));
    // The device of an earlier process, which others see.
    try_in_vain(&mut place, &bridged("vm1", "br1", None));
    net.remove("br0").expect("it exists");
    try_in_vain(&mut place, &bridged("vm1", "br0", None));
    net.add_bridge("br0").expect("a bridge");
    drop(place.made(&bridged("vm1", "br0", None)).expect("taken over"));
    assert_eq!(place.master("vm1").as_deref(), Some("br0"));
}

#[test]
fn a_device_without_a_note_counts_as_made_from_the_description() {
    let mut place = Place::with(&["br0", "br1", "br2"]);
    drop(place.made(&bridged("vm1", "br0", None)).expect("made"));
    let take_over = |place: &mut Place, bridge: &str| {
        drop(place.made(&bridged("vm1", bridge, None)).expect("taken over"));
        place.master("vm1")
    };
    place.notes = KeptNotes::default();
    assert_eq!(take_over(&mut place, "br1").as_deref(), Some("br0"), "perhaps it was put there");
    assert_eq!(take_over(&mut place, "br1").as_deref(), Some("br0"));
    assert_eq!(take_over(&mut place, "br2").as_deref(), Some("br2"), "the description says so");
}

#[test]
fn the_next_process_takes_a_device_over_as_it_is() {
    let mut place = Place::with(&["br0", "br1"]);
    let net = place.net.clone();
    let before = place.made(&bridged("vm1", "br0", None)).expect("made");
    let index = before.index;
    drop(before);
    net.set_up("vm1", false).expect("it outlives its process");
    net.rename("vm1", "web0").expect("the name is free");
    place.put("web0", Some("br1"));
    place.set("web0", &[LinkSetting::TxQueueLen(77), LinkSetting::Mtu(1400)]);
    drop(place.made(&bridged("vm1", "br0", None)).expect("taken over"));
    let found = place.link("web0");
    assert_eq!((found.index, found.mtu), (index, 1400), "it keeps its name");
    assert_eq!(place.master("web0").as_deref(), Some("br1"));
    assert_eq!((found.is_up, found.tx_queue_len), (false, 77));
    assert_eq!(net.find("vm1"), None, "there is no second one");

    // Another bridge in the description.
    drop(place.made(&bridged("vm1", "br1", None)).expect("taken over"));
    place.put("web0", None);
    drop(place.made(&bridged("vm1", "br1", None)).expect("taken over"));
    assert_eq!(place.master("web0"), None, "an administrator's will");
    drop(place.made(&bridged("vm1", "br0", None)).expect("taken over"));
    assert_eq!(place.master("web0").as_deref(), Some("br0"));

    // Its bridge is made again.
    net.remove("br0").expect("it exists");
    place.made(&bridged("vm1", "br0", None)).err().expect("there is no bridge");
    net.add_bridge("br0").expect("a bridge");
    let last = place.made(&bridged("vm1", "br0", None)).expect("taken over");
    assert_eq!(place.link("web0").index, index);
    assert_eq!(place.master("web0").as_deref(), Some("br0"));

    last.remove(&mut place.keeper(), &mut place.notes).expect("removed");
    assert_eq!(net.find("web0"), None, "it goes with its vif");
    assert_eq!(place.notes.read(&ringway_host::Note::Devices, 100), b"");
}

#[test]
fn the_mtu_of_a_description_is_set_once_and_then_an_administrators() {
    let mut place = Place::with(&["br0"]);
    drop(place.made(&bridged("vm1", "br0", Some(9000))).expect("made"));
    place.set("vm1", &[LinkSetting::Mtu(8000)]);
    drop(place.made(&bridged("vm1", "br0", Some(9000))).expect("taken over"));
    assert_eq!(place.link("vm1").mtu, 8000);
    for _ in 0..2 {
        drop(place.made(&bridged("vm1", "br0", Some(9100))).expect("taken over"));
        assert_eq!(place.link("vm1").mtu, 9100, "the description has changed");
    }
}

#[test]
fn a_device_that_was_deleted_or_has_lost_its_bridge_is_as_before() {
    let mut place = Place::with(&["br0"]);
    let net = place.net.clone();
    let mut device = place.made(&bridged("vm1", "br0", None)).expect("made");
    let set = PortFlags { is_isolated: true };
    net.set_flags("vm1", set).expect("it exists");
    let address = ("10.9.0.1".parse().expect("one"), 24);
    net.clone().add_address("vm1", address.0, address.1).expect("added");
    place.set("vm1", &[LinkSetting::Mtu(2000), LinkSetting::TxQueueLen(77)]);
    place.follow(&mut device);
    let is_as_before = |place: &Place, device: &Device| {
        let link = place.link("vm1");
        assert_eq!((link.index, place.master("vm1").as_deref()), (device.index, Some("br0")));
        assert_eq!((link.mtu, link.tx_queue_len, link.is_up), (2000, 77, true));
        assert_eq!(net.clone().bridge_ports().expect("read").get(&link.index), Some(&set));
        assert_eq!(net.addresses_of("vm1"), [address]);
        assert_eq!((&device.fault, device.tap.is_deleted()), (&None, false));
    };

    for _ in 0..2 {
        let index = device.index;
        net.remove("vm1").expect("it exists");
        place.follow(&mut device);
        assert!(device.index != index && std::mem::take(&mut device.is_detached));
        is_as_before(&place, &device);
    }
    // Another one with its name is not ours.
    net.remove("vm1").expect("it exists");
    net.add_bridge("vm1").expect("a bridge");
    place.follow(&mut device);
    let refused = device.fault.clone().expect("refused");
    assert!(refused.starts_with("its network device was deleted: "), "{refused}");
    assert!(refused.contains("an interface vm1 exists already"), "{refused}");
    net.remove("vm1").expect("it exists");
    place.follow(&mut device);
    is_as_before(&place, &device);

    // The bridge is deleted and made again, also together with the device, and renamed.
    for with_device in [false, true] {
        net.remove("br0").expect("it exists");
        if with_device {
            net.remove("vm1").expect("it exists");
        }
        place.follow(&mut device);
        let fault = device.fault.as_deref().expect("it waits");
        assert_eq!(fault, "the bridge br0 was deleted: waiting for one of that name");
        place.follow(&mut device);
        net.add_bridge("br0").expect("a bridge");
        place.follow(&mut device);
        place.follow(&mut device);
        is_as_before(&place, &device);
    }
    net.rename("br0", "br1").expect("the name is free");
    net.add_bridge("br0").expect("a bridge");
    place.follow(&mut device);
    assert_eq!(place.master("vm1").as_deref(), Some("br1"));
    assert_eq!(shown(&device, &place), ("br1".to_owned(), false, None));
    net.remove("br0").expect("it exists");
    net.rename("br1", "br0").expect("the name is free");
    place.follow(&mut device);
    is_as_before(&place, &device);
}

/// Where users see a device, whether it is down, and its fault.
fn shown(device: &Device, place: &Place) -> (String, bool, Option<String>) {
    let found = device.place(Some(&place.net.all()));
    (found.attached_to.clone(), found.is_down, found.fault())
}

#[test]
fn a_deleted_device_is_shown_as_deleted_and_no_bridge_has_an_odd_name() {
    let mut place = Place::with(&["br0"]);
    let net = place.net.clone();
    let mut device = place.made(&bridged("vm1", "br0", None)).expect("made");
    assert_eq!(shown(&device, &place), ("br0".to_owned(), false, None));
    net.remove("vm1").expect("it exists");
    let gone = Some("its network device was deleted".to_owned());
    assert_eq!(shown(&device, &place), ("br0".to_owned(), false, gone.clone()));
    // Also if the links cannot be read, or another process may read them.
    assert_eq!(device.place(None).fault(), gone);
    place.follow(&mut device);
    assert_eq!(shown(&device, &place), ("br0".to_owned(), false, None));
    assert_eq!(device.place(None).fault(), None, "nothing says that it is gone");
}

#[test]
fn what_an_administrator_does_to_a_device_is_respected_whatever_happens_later() {
    let mut place = Place::with(&["br0", "br1"]);
    let net = place.net.clone();
    let wanted = bridged("vm1", "br0", None);
    let mut device = place.made(&wanted).expect("made");
    // Taken off, which may be a quarantine: its bridge is made again, and so is its process.
    place.put("vm1", None);
    net.set_up("vm1", false).expect("it exists");
    place.follow(&mut device);
    assert_eq!(shown(&device, &place), ("vm1".to_owned(), true, None));
    for _ in 0..2 {
        net.remove("br0").expect("it exists");
        place.follow(&mut device);
        net.add_bridge("br0").expect("a bridge");
        place.follow(&mut device);
        assert_eq!((place.master("vm1"), device.fault.as_deref()), (None, None));
        drop(device);
        device = place.made(&wanted).expect("taken over");
    }
    assert!(!place.link("vm1").is_up);
    // Deleted, it is made again without a bridge, and down.
    net.remove("vm1").expect("it exists");
    place.follow(&mut device);
    assert_eq!((place.master("vm1"), place.link("vm1").is_up), (None, false));

    // On another bridge, to which it returns.
    place.put("vm1", Some("br1"));
    place.follow(&mut device);
    net.remove("br1").expect("it exists");
    place.follow(&mut device);
    assert!(device.fault.as_deref().is_some_and(|fault| fault.contains("br1")));
    drop(device);
    let mut device = place.made(&wanted).expect("taken over");
    net.add_bridge("br1").expect("a bridge");
    place.follow(&mut device);
    assert_eq!(place.master("vm1").as_deref(), Some("br1"));
}

#[test]
fn a_device_never_lowers_the_mtu_of_its_bridge() {
    let mut place = Place::with(&["br0"]);
    let net = place.net.clone();
    net.add_other("port").expect("a link");
    place.set("port", &[LinkSetting::Mtu(9000), LinkSetting::Master("br0")]);
    assert_eq!(place.link("br0").mtu, 9000, "as Linux has it");
    let device = place.made(&bridged("vm1", "br0", None)).expect("made");
    let mtus = (device.mtu, place.link("vm1").mtu, place.link("br0").mtu);
    assert_eq!(mtus, (9000, 9000, 9000));
    let low = || bridged("vm2", "br0", Some(1500));
    let refused = place.made(&low()).err().expect("refused").to_string();
    assert!(refused.contains("mtu is 1500") && refused.contains("9000 of bridge br0"), "{refused}");
    assert_eq!(net.find("vm2"), None, "nothing is made");
    let warned = Bridged { low_mtu: LowMtu::Warn, ..low() };
    assert_eq!(place.made(&warned).expect("made").mtu, 9000);
    assert_eq!(place.link("br0").mtu, 9000);

    // A vif that is served is not refused when its bridge comes back with more.
    net.add_bridge("br1").expect("a bridge");
    let mut served = place.made(&bridged("vm3", "br1", Some(1500))).expect("made");
    net.remove("br1").expect("it exists");
    place.follow(&mut served);
    net.add_bridge("br1").expect("a bridge");
    place.put("port", Some("br1"));
    place.follow(&mut served);
    assert_eq!((place.link("br1").mtu, place.link("vm3").mtu), (9000, 9000));
    assert_eq!(place.master("vm3").as_deref(), Some("br1"));
    assert_eq!(served.fault, None);
}

#[test]
fn a_device_returns_to_a_bridge_of_its_last_or_of_its_configured_name() {
    let mut place = Place::with(&["br0"]);
    let net = place.net.clone();
    let mut device = place.made(&bridged("vm1", "br0", None)).expect("made");
    for again in ["br0", "lan0", "br0"] {
        let bridge = place.master("vm1").expect("it is on one");
        // It has that name already the third time.
        let _ = net.rename(&bridge, "lan0");
        place.follow(&mut device);
        net.remove("lan0").expect("it exists");
        place.follow(&mut device);
        assert!(device.fault.as_deref().is_some_and(|fault| fault.contains("lan0")));
        net.add_bridge(again).expect("a bridge");
        place.follow(&mut device);
        assert_eq!((place.master("vm1").as_deref(), &device.fault), (Some(again), &None));
    }
    // It was renamed itself since it was seen.
    net.rename("vm1", "web0").expect("the name is free");
    net.remove("br0").expect("it exists");
    net.add_bridge("br0").expect("a bridge");
    place.follow(&mut device);
    assert_eq!((place.master("web0").as_deref(), &device.fault), (Some("br0"), &None));
}

#[test]
fn a_device_whose_notes_were_lost_returns_to_a_bridge_of_its_configured_name() {
    let mut place = Place::with(&["br0"]);
    let net = place.net.clone();
    drop(place.made(&bridged("vm1", "br0", None)).expect("made"));
    net.rename("br0", "lan0").expect("the name is free");
    place.notes = KeptNotes::default();
    let mut device = place.made(&bridged("vm1", "br0", None)).expect("taken over");
    assert_eq!(place.master("vm1").as_deref(), Some("lan0"), "it is as it was");
    for renamed in ["lan0", "lan1"] {
        // It has that name already the first time.
        let _ = net.rename("br0", renamed);
        place.follow(&mut device);
        net.remove(renamed).expect("it exists");
        place.follow(&mut device);
        assert!(device.fault.as_deref().is_some_and(|fault| fault.contains(renamed)));
        net.add_bridge("br0").expect("a bridge");
        place.follow(&mut device);
        assert_eq!((place.master("vm1").as_deref(), &device.fault), (Some("br0"), &None));
    }
}
