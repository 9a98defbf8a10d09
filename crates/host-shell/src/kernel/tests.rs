//! What the host's decisions about devices rest on, by Linux itself. The decisions are tested over
//! a simulated kernel.

use ringway_control::RunDir;
use ringway_host::{
    Bridged, HostDevice, HostLinks, Keeper, LinkSetting as Change, LowMtu, Purpose,
};

use super::*;
use crate::notes::NoteFiles;

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

fn notes(place: &tempfile::TempDir) -> NoteFiles {
    NoteFiles::new(&RunDir::new(place.path()))
}

/// What a process of a host knows at its start.
fn keeper(place: &tempfile::TempDir) -> Keeper<HostKernel> {
    let net = HostKernel::open().expect("netlink");
    Keeper::new(net, "/run/ringway/here", &mut notes(place))
}

fn made(
    place: &tempfile::TempDir,
    (name, bridge): (&str, &str),
    mtu: Option<u16>,
) -> io::Result<HostDevice<HostKernel>> {
    let wanted = Bridged {
        purpose: Purpose::Virtio(name.to_owned()),
        name: name.to_owned(),
        bridge: bridge.to_owned(),
        queues: 1,
        mtu,
        mtu_min: 0,
        low_mtu: LowMtu::Warn,
    };
    HostDevice::make_bridged(&mut keeper(place), &wanted, &mut notes(place))
}

/// Follows what has become of a device.
fn follow(place: &tempfile::TempDir, device: &mut HostDevice<HostKernel>) {
    let mut keeper = keeper(place);
    let now = HostLinks::read(&mut keeper.net).expect("read");
    let done = device.follow(&now, &mut keeper, &mut notes(place));
    device.show(done);
}

#[test]
fn a_device_that_was_deleted_or_has_lost_its_bridge_is_as_before() {
    let Some((mut net, place)) = place() else { return };
    net.add_bridge("br0").expect("a bridge");
    let mut device = made(&place, ("vm1", "br0"), None).expect("made");
    let fresh = net.bridge_ports().expect("read").remove(&device.index).expect("a port");
    let isolate = || {
        std::process::Command::new("bridge")
            .args("link set dev vm1 isolated on learning off".split(' '))
            .status()
    };
    assert!(isolate().expect("iproute2").success());
    let address = "10.9.0.1".parse().expect("one");
    net.add_address("vm1", address, 24).expect("added");
    keeper(&place).net.set("vm1", &[Change::Mtu(2000), Change::TxQueueLen(77)]).expect("set");
    follow(&place, &mut device);
    let set = net.bridge_ports().expect("read").remove(&device.index).expect("a port");
    assert_ne!(set, fresh);
    let is_as_before = |net: &mut Netlink, device: &HostDevice<HostKernel>| {
        let link = net.link("vm1").expect("it exists");
        let bridge = net.link("br0").expect("it exists").index;
        assert_eq!((link.index, link.master), (device.index, Some(bridge)));
        assert_eq!((link.mtu, link.tx_queue_len, link.is_up), (2000, 77, true));
        assert_eq!(
            (link.address, link.gso_max_size),
            (Some([0xfe, 255, 255, 255, 255, 255]), 65535)
        );
        let ports = net.bridge_ports().expect("read");
        assert_eq!(ports.get(&link.index), Some(&set));
        let addresses = net.addresses().expect("read");
        let addresses = addresses.into_iter().filter(|(index, ..)| *index == link.index);
        assert_eq!(addresses.collect::<Vec<_>>(), [(link.index, address, 24)]);
        assert_eq!((&device.fault, device.tap.0.is_deleted()), (&None, false));
    };
    is_as_before(&mut net, &device);
    net.delete("vm1").expect("deleted");
    assert!(device.tap.0.is_deleted());
    follow(&place, &mut device);
    assert!(std::mem::take(&mut device.is_detached));
    is_as_before(&mut net, &device);
    net.delete("br0").expect("deleted");
    follow(&place, &mut device);
    assert!(device.fault.is_some());
    net.add_bridge("br0").expect("a bridge");
    follow(&place, &mut device);
    is_as_before(&mut net, &device);

    // The next process takes it over, and removes it.
    drop(device);
    let next = made(&place, ("vm1", "br0"), None).expect("taken over");
    is_as_before(&mut net, &next);
    next.remove(&mut keeper(&place), &mut notes(&place)).expect("removed");
    net.link("vm1").expect_err("it goes with its vif");
}

#[test]
fn a_device_never_lowers_the_mtu_of_its_bridge() {
    let Some((mut net, place)) = place() else { return };
    net.add_bridge("br0").expect("a bridge");
    net.add_veth("port", "far").expect("a pair");
    net.set("port", &[Setting::Mtu(9000), Setting::Master("br0")]).expect("set");
    let mtu = |net: &mut Netlink, name: &str| net.link(name).expect("a link").mtu;
    assert_eq!(mtu(&mut net, "br0"), 9000, "as Linux has it");
    let device = made(&place, ("vm1", "br0"), Some(1500)).expect("made");
    assert_eq!((device.mtu, mtu(&mut net, "vm1"), mtu(&mut net, "br0")), (9000, 9000, 9000));
}
