//! Xen vifs that have no port on a bridge of Open vSwitch: each says why, nothing is half made, and
//! no guest has that of another.

use std::net::Ipv4Addr;

use ringway_datapath::MacAddr;
use ringway_e2e::host::{Host, SOON, describe, send};
use ringway_e2e::shared_turn;
use rustix::process::Signal;

use crate::devices::{tool, tool_ok};
use crate::hostile::Hostile;
use crate::openvswitch::{PROGRAMS, Place};
use crate::rules::{arp, refused};

const SCRIPT: (&str, &str) = ("script", "vif-ringway-bridge");

/// Waits until a vif has a reason with these parts, in its `error` node and in the list.
fn expect_reason(host: &Host, guest: &Hostile<'_>, parts: &[&str]) {
    let has_all = |reason: &String| parts.iter().all(|part| reason.contains(part));
    let node = guest.vif().backend_errors()[0].clone();
    let reason = host.wait("the reason", 2 * SOON, |host| host.node(&node).filter(has_all));
    assert!(!reason.contains('\n'), "{reason}");
    host.wait("the reason in the list", SOON, |host| {
        host.vif(&guest.name()).and_then(|vif| vif.error).filter(has_all)
    });
}

#[test]
fn a_vif_without_its_port_says_why_in_its_error_node_and_in_the_list() {
    let Some(_turn) = shared_turn(&[&PROGRAMS[..], &["xenstore-read"]].concat()) else { return };
    let place = Place::start();
    let host = &place.host;
    let on = |bridge: &str| Hostile::with_keys(host, &[SCRIPT, ("bridge", bridge)]);
    for (bridge, parts) in [
        ("br-none", ["bridge br-none: ", "make that bridge, or correct `bridge`"]),
        ("br-none.7", ["there is no interface br-none: ", "make that bridge, or correct `bridge`"]),
        ("br-int:4095", ["correct `bridge`: \"br-int:4095\"", "such as br-int.7:8:9"]),
        ("lo", ["bridge lo: ", "lo is not a bridge of Linux"]),
    ] {
        expect_reason(host, &on(bridge), &parts);
    }
    place.wait_for_ports("");

    // Another program's bridge has a port of that name.
    let mut guest = on("br-int");
    let name = guest.name();
    place.ask("add-br br-ext -- set Bridge br-ext datapath_type=netdev");
    place.ask(&format!("add-port br-ext {name}"));
    guest.connect();
    expect_reason(
        host,
        &guest,
        &[&format!("ovs-vsctl del-port {name}"), "which is not this vif's"],
    );
    assert_eq!(place.ask(&format!("port-to-br {name}")), "br-ext");
    assert_eq!(place.id(&name, "ringway-owner"), "", "it is left alone");
    place.ask(&format!("del-port br-ext {name}"));
    place.wait_for_ports(&name);

    let database = place.switch.database.0.id();
    send(database, Signal::STOP);
    guest.disconnect();
    expect_reason(host, &guest, &["ovs-vsctl has not ended", "was killed"]);
    send(database, Signal::CONT);
    place.wait_for_ports("");
}

#[test]
fn a_vif_on_open_vswitch_names_an_ovs_vsctl_that_is_missing() {
    let Some(_turn) = shared_turn(&["ip", "xenstore-read"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let nothing = place.path().join("nothing");
    let host = Host::start_with(place, &describe("", &[]), &[("PATH", nothing.as_os_str())]);
    let whole = host.pid_of("ringway run");
    // As the bridge of a userspace datapath.
    tool_ok(whole, "ip tuntap add br-int mode tap");
    let guest = Hostile::with_keys(&host, &[SCRIPT, ("bridge", "br-int")]);
    expect_reason(&host, &guest, &["there is no ovs-vsctl", "install Open vSwitch, and start"]);
    assert!(tool(whole, &format!("ip link show {}", guest.name())).is_none(), "it is half made");
}

#[test]
fn a_guest_that_writes_its_own_directory_does_not_choose_its_port() {
    let Some(_turn) = shared_turn(&[&PROGRAMS[..], &["xenstore-read"]].concat()) else { return };
    let place = Place::start();
    let host = &place.host;
    place.ask("add-br br-ext -- set Bridge br-ext datapath_type=netdev");
    let keys = [SCRIPT, ("bridge", "br-int.7"), ("iface-id", "own")];
    let mut guest = Hostile::with_keys(host, &keys);
    let name = guest.name();
    guest.publish(&[
        ("bridge", "br-ext.8"),
        ("iface-id", "theirs"),
        ("vm-uuid", "theirs"),
        ("vifname", "theirs"),
        ("script", "vif-ringway"),
    ]);
    place.wait_for_ports(&name);
    assert_eq!(place.ask("list-ports br-ext"), "");
    assert_eq!(place.ask(&format!("get Port {name} tag")), "7");
    assert_eq!(place.id(&name, "iface-id"), "own");
    assert_ne!(place.id(&name, "vm-uuid"), "theirs");
    assert_eq!(place.id(&name, "attached-mac"), guest.mac().to_string());
}

#[test]
fn a_borrowed_address_is_stopped_before_open_vswitch() {
    let Some(_turn) = shared_turn(&[&PROGRAMS[..], &["xenstore-read"]].concat()) else { return };
    let place = Place::start();
    let host = &place.host;
    let keys = [SCRIPT, ("bridge", "br-int"), ("ip", "10.78.0.66")];
    let mut guest = Hostile::with_keys(host, &keys);
    guest.connect();
    let (own, name) = (guest.mac(), guest.name());
    place.wait_for_ports(&name);
    let (honest, borrowed) = ("arp,arp_spa=10.78.0.66", "arp,arp_spa=10.78.0.77");
    for flow in [honest, borrowed] {
        place.ask_flows(&["add-flow", "br-int", &format!("priority=9,{flow},actions=NORMAL")]);
    }
    let before = place.packets(honest);
    let (other, ip) = (MacAddr([2, 0, 0, 0, 0, 9]), Ipv4Addr::new(10, 78, 0, 77));
    for _ in 0..50 {
        guest.send(&arp(other, (other, ip)));
        guest.send(&arp(own, (own, ip)));
    }
    let refused_of = refused(host, &name, "arp_spoofed", 50);
    assert!(refused_of["bad_source"] >= 50, "{refused_of:?}");
    // What is forwarded in any case is behind what is not.
    host.wait("a frame of its own to pass", SOON, |_| {
        guest.send(&arp(own, (own, Ipv4Addr::new(10, 78, 0, 66))));
        (place.packets(honest) > before).then_some(())
    });
    assert_eq!(place.packets(borrowed), 0);
}
