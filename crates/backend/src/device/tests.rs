use std::io;

use ringway_control::RunDir;
use ringway_datapath::MacAddr;
use ringway_wire::DomId;

use super::*;
use crate::stale::delete_stale;

/// A network namespace of the calling thread, and a run directory; `None` without permission.
pub(crate) fn place() -> Option<(Netlink, tempfile::TempDir)> {
    if let Err(error) = ringway_sys::namespace::unshare_network() {
        println!("SKIPPED: {error}");
        return None;
    }
    if let Err(error) = Tap::create_multi_queue("probe", 1) {
        println!("SKIPPED: {error}");
        return None;
    }
    Some((Netlink::open().expect("netlink"), tempfile::tempdir().expect("a directory")))
}

/// What a process of a host knows at its start.
fn notes(place: &tempfile::TempDir) -> AppliedNotes {
    AppliedNotes::read(&RunDir::new(place.path()), "/run/ringway/here")
}

fn bridged(name: &str, bridge: &str, mtu: Option<u16>) -> Bridged {
    Bridged {
        purpose: Purpose::Virtio(name.to_owned()),
        name: name.to_owned(),
        bridge: bridge.to_owned(),
        queues: 1,
        mtu,
        mtu_min: 0,
        low_mtu: LowMtu::Refuse,
    }
}

fn made(net: &mut Netlink, place: &tempfile::TempDir, wanted: &Bridged) -> io::Result<HostDevice> {
    HostDevice::make_bridged(net, &mut notes(place), wanted)
}

fn uplink(addresses: &[&str], mtu: u32) -> Uplink {
    Uplink {
        name: "up0".to_owned(),
        mac: MacAddr([2, 0, 0, 0, 0, 7]),
        addresses: addresses.iter().map(|it| (it.parse().expect("an address"), 24)).collect(),
        queues: 1,
        mtu,
        vlan: ringway_datapath::VlanRules::default(),
        multicast_router: ringway_datapath::MulticastRouter::Always,
        storm: ringway_switch::StormLimits::NONE,
    }
}

#[test]
fn a_virtio_vif_takes_over_no_foreign_interface_and_needs_a_bridge() {
    let Some((mut net, place)) = place() else { return };
    let theirs = Tap::create_multi_queue("vm1", 1).expect("a device");
    let refusal = |net: &mut Netlink, name: &str, bridge: &str| {
        let made = made(net, &place, &bridged(name, bridge, None));
        made.err().expect("refused").to_string()
    };
    assert!(refusal(&mut net, "vm2", "lo").ends_with(": lo is not a bridge"));
    assert!(refusal(&mut net, "vm2", "vm1").ends_with(": vm1 is not a bridge"));
    assert!(refusal(&mut net, "vm2", "br0").contains("br0"));
    net.add_bridge("br0").expect("a bridge");
    let taken = refusal(&mut net, "vm1", "br0");
    assert!(taken.contains("an interface vm1 exists already"), "{taken}");
    drop(theirs);
    made(&mut net, &place, &bridged("vm1", "br0", None)).expect("the name is free");
}

#[test]
fn the_next_process_takes_a_device_over_as_it_is() {
    let Some((mut net, place)) = place() else { return };
    for bridge in ["br0", "br1"] {
        net.add_bridge(bridge).expect("a bridge");
    }
    let before = made(&mut net, &place, &bridged("vm1", "br0", None)).expect("made");
    let index = before.index;
    drop(before);
    let as_set = [LinkSetting::Down, LinkSetting::Name("web0"), LinkSetting::TxQueueLen(77)];
    net.set("vm1", &as_set).expect("it outlives its process");
    net.set("web0", &[LinkSetting::Master("br1"), LinkSetting::Mtu(1400)]).expect("set");
    drop(made(&mut net, &place, &bridged("vm1", "br0", None)).expect("taken over"));
    let found = net.link("web0").expect("it keeps its name");
    let other = net.link("br1").expect("a bridge").index;
    assert_eq!((found.index, found.master, found.mtu), (index, Some(other), 1400));
    assert_eq!((found.is_up, found.tx_queue_len), (false, 77));
    net.link("vm1").expect_err("there is no second one");

    // Another bridge in the description.
    drop(made(&mut net, &place, &bridged("vm1", "br1", None)).expect("taken over"));
    net.set("web0", &[LinkSetting::NoMaster]).expect("set");
    drop(made(&mut net, &place, &bridged("vm1", "br1", None)).expect("taken over"));
    assert_eq!(net.link("web0").expect("it is there").master, None, "an administrator's will");
    drop(made(&mut net, &place, &bridged("vm1", "br0", None)).expect("taken over"));
    let bridge = |net: &mut Netlink| Some(net.link("br0").expect("a bridge").index);
    assert_eq!(net.link("web0").expect("it is there").master, bridge(&mut net));

    // Its bridge is made again.
    net.delete("br0").expect("deleted");
    made(&mut net, &place, &bridged("vm1", "br0", None)).err().expect("there is no bridge");
    net.add_bridge("br0").expect("a bridge");
    let last = made(&mut net, &place, &bridged("vm1", "br0", None)).expect("taken over");
    let found = net.link("web0").expect("it is there");
    assert_eq!((found.index, found.master), (index, bridge(&mut net)));

    last.remove(&mut notes(&place)).expect("removed");
    net.link("web0").expect_err("it goes with its vif");
    assert_eq!(notes(&place).of(&Purpose::Virtio("vm1".to_owned())), None);
}

/// Follows what has become of a device.
fn follow(net: &mut Netlink, place: &tempfile::TempDir, device: &mut HostDevice) {
    let now = HostLinks::read(net).expect("read");
    let done = device.follow(&now, net, &mut notes(place));
    device.show(done);
}

#[test]
fn a_device_that_was_deleted_or_has_lost_its_bridge_is_as_before() {
    let Some((mut net, place)) = place() else { return };
    net.add_bridge("br0").expect("a bridge");
    let mut device = made(&mut net, &place, &bridged("vm1", "br0", None)).expect("made");
    let fresh = net.bridge_ports().expect("read").remove(&device.index).expect("a port");
    let isolate = || {
        std::process::Command::new("bridge")
            .args("link set dev vm1 isolated on learning off".split(' '))
            .status()
    };
    assert!(isolate().expect("iproute2").success());
    let address = "10.9.0.1".parse().expect("one");
    net.add_address("vm1", address, 24).expect("added");
    net.set("vm1", &[LinkSetting::Mtu(2000), LinkSetting::TxQueueLen(77)]).expect("set");
    follow(&mut net, &place, &mut device);
    let set = net.bridge_ports().expect("read").remove(&device.index).expect("a port");
    assert_ne!(set, fresh);
    let is_as_before = |net: &mut Netlink, device: &HostDevice| {
        let link = net.link("vm1").expect("it exists");
        let bridge = net.link("br0").expect("it exists").index;
        assert_eq!((link.index, link.master), (device.index, Some(bridge)));
        assert_eq!((link.mtu, link.tx_queue_len, link.is_up), (2000, 77, true));
        let ports = net.bridge_ports().expect("read");
        assert_eq!(ports.get(&link.index), Some(&set));
        let addresses = net.addresses().expect("read");
        let addresses = addresses.into_iter().filter(|(index, ..)| *index == link.index);
        assert_eq!(addresses.collect::<Vec<_>>(), [(link.index, address, 24)]);
        assert_eq!((&device.fault, device.tap.is_deleted()), (&None, false));
    };

    for _ in 0..2 {
        let index = device.index;
        net.delete("vm1").expect("deleted");
        follow(&mut net, &place, &mut device);
        assert!(device.index != index && std::mem::take(&mut device.is_detached));
        is_as_before(&mut net, &device);
    }
    // Another one with its name is not ours.
    net.delete("vm1").expect("deleted");
    net.add_bridge("vm1").expect("a bridge");
    let now = HostLinks::read(&mut net).expect("read");
    let refused = device.follow(&now, &mut net, &mut notes(&place)).expect_err("refused");
    assert!(refused.to_string().contains("an interface vm1 exists already"), "{refused}");
    net.delete("vm1").expect("deleted");
    follow(&mut net, &place, &mut device);
    is_as_before(&mut net, &device);

    // The bridge is deleted and made again, also together with the device, and renamed.
    for with_device in [false, true] {
        net.delete("br0").expect("deleted");
        if with_device {
            net.delete("vm1").expect("deleted");
        }
        follow(&mut net, &place, &mut device);
        let fault = device.fault.as_deref().expect("it waits");
        assert_eq!(fault, "the bridge br0 was deleted: waiting for one of that name");
        follow(&mut net, &place, &mut device);
        net.add_bridge("br0").expect("a bridge");
        follow(&mut net, &place, &mut device);
        follow(&mut net, &place, &mut device);
        is_as_before(&mut net, &device);
    }
    net.set("br0", &[LinkSetting::Name("br1")]).expect("renamed");
    net.add_bridge("br0").expect("a bridge");
    follow(&mut net, &place, &mut device);
    let renamed = net.link("br1").expect("it exists").index;
    assert_eq!(net.link("vm1").expect("it exists").master, Some(renamed));
    assert_eq!(device.place(&net.links().expect("read")), ("br1".to_owned(), false));
    net.delete("br0").expect("deleted");
    net.set("br1", &[LinkSetting::Name("br0")]).expect("renamed");
    follow(&mut net, &place, &mut device);
    is_as_before(&mut net, &device);
}

#[test]
fn what_an_administrator_does_to_a_device_is_respected_whatever_happens_later() {
    let Some((mut net, place)) = place() else { return };
    for bridge in ["br0", "br1"] {
        net.add_bridge(bridge).expect("a bridge");
    }
    let wanted = bridged("vm1", "br0", None);
    let mut device = made(&mut net, &place, &wanted).expect("made");
    let master = |net: &mut Netlink| net.link("vm1").expect("it exists").master;
    // Taken off, which may be a quarantine: its bridge is made again, and so is its process.
    net.set("vm1", &[LinkSetting::NoMaster, LinkSetting::Down]).expect("set");
    follow(&mut net, &place, &mut device);
    assert_eq!(device.place(&net.links().expect("read")), ("vm1".to_owned(), true));
    for _ in 0..2 {
        net.delete("br0").expect("deleted");
        follow(&mut net, &place, &mut device);
        net.add_bridge("br0").expect("a bridge");
        follow(&mut net, &place, &mut device);
        assert_eq!((master(&mut net), device.fault.as_deref()), (None, None));
        drop(device);
        device = made(&mut net, &place, &wanted).expect("taken over");
    }
    assert!(!net.link("vm1").expect("it exists").is_up);
    // Deleted, it is made again without a bridge, and down.
    net.delete("vm1").expect("deleted");
    follow(&mut net, &place, &mut device);
    assert_eq!(master(&mut net), None);
    assert!(!net.link("vm1").expect("it exists").is_up);

    // On another bridge, to which it returns.
    net.set("vm1", &[LinkSetting::Master("br1")]).expect("set");
    follow(&mut net, &place, &mut device);
    net.delete("br1").expect("deleted");
    follow(&mut net, &place, &mut device);
    assert!(device.fault.as_deref().is_some_and(|fault| fault.contains("br1")));
    drop(device);
    let mut device = made(&mut net, &place, &wanted).expect("taken over");
    net.add_bridge("br1").expect("a bridge");
    follow(&mut net, &place, &mut device);
    let other = net.link("br1").expect("it exists").index;
    assert_eq!(master(&mut net), Some(other));
}

#[test]
fn a_device_never_lowers_the_mtu_of_its_bridge() {
    let Some((mut net, place)) = place() else { return };
    net.add_bridge("br0").expect("a bridge");
    net.add_veth("port", "far").expect("a pair");
    net.set("port", &[LinkSetting::Mtu(9000), LinkSetting::Master("br0")]).expect("set");
    let mtu = |net: &mut Netlink, name: &str| net.link(name).expect("a link").mtu;
    assert_eq!(mtu(&mut net, "br0"), 9000, "as Linux has it");
    let device = made(&mut net, &place, &bridged("vm1", "br0", None)).expect("made");
    assert_eq!((device.mtu, mtu(&mut net, "vm1"), mtu(&mut net, "br0")), (9000, 9000, 9000));
    let low = || bridged("vm2", "br0", Some(1500));
    let refused = made(&mut net, &place, &low()).err().expect("refused").to_string();
    assert!(refused.contains("mtu is 1500") && refused.contains("9000 of bridge br0"), "{refused}");
    net.link("vm2").expect_err("nothing is made");
    let warned = Bridged { low_mtu: LowMtu::Warn, ..low() };
    assert_eq!(made(&mut net, &place, &warned).expect("made").mtu, 9000);
    assert_eq!(mtu(&mut net, "br0"), 9000);

    // A vif that is served is not refused when its bridge comes back with more.
    net.add_bridge("br1").expect("a bridge");
    let mut served = made(&mut net, &place, &bridged("vm3", "br1", Some(1500))).expect("made");
    net.delete("br1").expect("deleted");
    follow(&mut net, &place, &mut served);
    net.add_bridge("br1").expect("a bridge");
    net.set("port", &[LinkSetting::Master("br1")]).expect("set");
    follow(&mut net, &place, &mut served);
    let bridge = net.link("br1").expect("a bridge");
    assert_eq!((bridge.mtu, mtu(&mut net, "vm3")), (9000, 9000));
    assert_eq!(net.link("vm3").expect("a link").master, Some(bridge.index));
    assert_eq!(served.fault, None);
}

#[test]
fn an_uplink_is_taken_over_with_what_an_administrator_did_and_what_the_description_changed() {
    let Some((mut net, place)) = place() else { return };
    let open = |net: &mut Netlink, uplink: &Uplink| {
        open_uplink(net, &mut notes(&place), uplink).map(drop).map_err(|error| error.to_string())
    };
    net.add_bridge("up0").expect("a bridge");
    let taken = open(&mut net, &uplink(&[], 1500)).expect_err("refused");
    assert!(taken.contains("an interface up0 exists already"), "{taken}");
    let obstacle = |net: &mut Netlink| uplink_obstacle(net, "up0", &notes(&place).owner);
    assert_eq!(obstacle(&mut net).expect("asked"), Some(taken));
    net.delete("up0").expect("deleted");
    assert_eq!(obstacle(&mut net).expect("asked"), None);

    let wanted = uplink(&["10.9.0.1", "10.9.1.1"], 9000);
    open(&mut net, &wanted).expect("made");
    assert_eq!(obstacle(&mut net).expect("asked"), None);
    let first = net.link("up0").expect("it outlives its process");
    assert_eq!((first.address, first.mtu), (Some(wanted.mac.0), 9000));
    let addresses = |net: &mut Netlink| -> Vec<String> {
        let of_it = net.addresses().expect("listed").into_iter();
        let of_it = of_it.filter(|(index, address, _)| *index == first.index && address.is_ipv4());
        of_it.map(|(_, address, _)| address.to_string()).collect()
    };
    assert_eq!(addresses(&mut net), ["10.9.0.1", "10.9.1.1"]);

    // An administrator moves an address elsewhere, and sets an MTU and another address.
    net.remove_address("up0", "10.9.0.1".parse().expect("one"), 24).expect("removed");
    net.add_address("up0", "10.9.2.1".parse().expect("one"), 24).expect("added");
    net.set("up0", &[LinkSetting::Mtu(1400)]).expect("set");
    open(&mut net, &wanted).expect("taken over");
    let found = net.link("up0").expect("it is there");
    assert_eq!((found.index, found.address, found.mtu), (first.index, first.address, 1400));
    assert_eq!(addresses(&mut net), ["10.9.1.1", "10.9.2.1"]);

    open(&mut net, &uplink(&["10.9.0.1", "10.9.3.1"], 9000)).expect("taken over");
    assert_eq!(addresses(&mut net), ["10.9.2.1", "10.9.3.1"], "only what has changed");
    open(&mut net, &uplink(&["10.9.3.1"], 2000)).expect("taken over");
    assert_eq!(net.link("up0").expect("it is there").mtu, 2000);
    let mac = MacAddr([2, 0, 0, 0, 0, 8]);
    let renamed = Uplink { name: "up1".to_owned(), mac, ..uplink(&["10.9.3.1"], 2000) };
    open(&mut net, &renamed).expect("made");
    net.link("up0").expect_err("the description names another one");
    assert_eq!(net.link("up1").expect("made").address, Some(mac.0));

    // Deleted by an administrator: made again with its address.
    net.delete("up1").expect("deleted");
    open(&mut net, &renamed).expect("made again");
    assert_eq!(net.link("up1").expect("made").address, Some(mac.0));
}

#[test]
fn only_what_is_not_wanted_and_has_our_note_is_deleted() {
    let Some((mut net, place)) = place() else { return };
    net.add_bridge("br0").expect("a bridge");
    let owner = notes(&place).owner;
    for name in ["vm1", "vm2"] {
        drop(made(&mut net, &place, &bridged(name, "br0", None)).expect("made"));
    }
    drop(open_uplink(&mut net, &mut notes(&place), &uplink(&[], 1500)).expect("made"));
    for (name, note) in [("b", "ringway /run/other uplink"), ("c", "mine"), ("d", "")] {
        let tap = Tap::create_multi_queue(name, 1).expect("a device");
        net.set(name, &[LinkSetting::Alias(note)]).expect("set");
        tap.set_lifetime(Lifetime::Persistent).expect("set");
    }
    let vm1 = Purpose::Virtio("vm1".to_owned());
    let kept = |purpose: &Purpose, _: &Link| *purpose == vm1;
    let deleted = delete_stale(&mut net, &owner, kept).expect("deleted");
    let mut names: Vec<&str> = deleted.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["up0", "vm2"]);
    for name in ["vm1", "b", "c", "d", "br0"] {
        net.link(name).expect("it stays");
    }
}

#[test]
fn a_note_is_recognized_only_by_its_owner() {
    let vif = Vif { backend: DomId(0), frontend: DomId(7), handle: 1 };
    for purpose in [Purpose::Xen(vif), Purpose::Virtio("vm1".to_owned()), Purpose::Uplink] {
        let text = purpose.note("/run/ringway/a b");
        assert_eq!(Purpose::of_note("/run/ringway/a b", &text), Some(purpose.clone()));
        for owner in ["/run/ringway/a", "/run/ringway/b", "/run/ringway/a b uplink"] {
            assert_eq!(Purpose::of_note(owner, &text), None, "{owner} {text}");
        }
        // The kernel keeps 255 bytes; a run directory is shorter, as it fits a socket's address.
        assert!(purpose.note(&"x".repeat(108)).len() <= 255);
    }
    let text = Purpose::Xen(vif).note("/run/a");
    for text in [
        "ringway /run/a",
        "ringway /run/a /local/domain/0/backend/vif/7",
        &format!("{text}/state"),
        "",
    ] {
        assert_eq!(Purpose::of_note("/run/a", text), None, "{text}");
    }
}
