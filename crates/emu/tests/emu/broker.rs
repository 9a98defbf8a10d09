//! The life cycle of the broker.

use std::fs;
use std::io::ErrorKind;

use ringway_emu::{Broker, DomainEvent, EmuHypervisor, Role};
use ringway_hypervisor::Hypervisor;
use ringway_wire::DomId;

use crate::host::Host;

#[test]
fn a_directory_has_one_broker() {
    let host = Host::start();
    let second = Broker::bind(host.dir()).map(drop).map_err(|error| error.kind());
    assert_eq!(second, Err(ErrorKind::AddrInUse));
    host.settle();
}

#[test]
fn a_broker_removes_the_sockets_that_a_killed_one_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let left = dir.path().join("dom-0.sock");
    let not_ours = dir.path().join("xenstored.sock");
    fs::write(&left, "").and_then(|()| fs::write(&not_ours, "")).expect("it can be written");
    let broker = Broker::bind(dir.path()).expect("the directory is free");
    drop(broker);
    assert!(!left.exists() && not_ours.exists());
}

#[test]
fn a_broker_that_is_stopped_before_it_runs_ends_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Broker::bind(dir.path()).expect("the directory is free");
    broker.handle().stop();
    broker.run().expect("it ends well");
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
}

#[test]
fn a_process_notices_that_its_broker_has_ended() {
    let host = Host::start();
    let guest = host.connect(host.create(Role::Guest));
    let event = guest.alloc_unbound(DomId(0)).expect("there is a port");
    drop(host);
    let refused = guest.alloc_unbound(DomId(0)).map(drop).map_err(|error| error.kind());
    assert!(matches!(refused, Err(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)));
    drop(event);
}

#[test]
fn a_second_process_for_the_same_guest_is_refused() {
    let host = Host::start();
    let domid = host.create(Role::Guest);
    let guest = host.connect(domid);
    let second = EmuHypervisor::connect(host.dir(), domid).map_err(|error| error.kind());
    assert_eq!(second.map(drop), Err(ErrorKind::AddrInUse));
    guest.alloc_unbound(DomId(0)).expect("the first is not disturbed");
    drop(guest);
    assert_eq!(host.next_event(), DomainEvent::Died(domid));
}
