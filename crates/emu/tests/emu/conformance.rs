//! The emulated hypervisor passes the suite that every port passes.

use ringway_emu::Role;
use ringway_hypervisor::conformance::{self, Fixture};
use ringway_wire::DomId;

use crate::host::Host;

const ABSENT: DomId = DomId(99);

#[test]
fn domain_0_and_a_guest_pass_the_suite() {
    let host = Host::start();
    let front = host.connect(host.create(Role::Guest));
    conformance::run(&Fixture { front, back: host.toolstack(), absent: ABSENT });
}

#[test]
fn a_driver_domain_and_a_guest_pass_the_suite() {
    let host = Host::start();
    let front = host.connect(host.create(Role::Guest));
    let back = host.connect(host.create(Role::DriverDomain));
    conformance::run(&Fixture { front, back, absent: ABSENT });
}
