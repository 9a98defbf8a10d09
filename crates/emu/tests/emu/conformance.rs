//! The emulated hypervisor passes the suite that every port passes.

use ringway_emu::{EmuHypervisor, Role};
use ringway_hypervisor::conformance::{self, Fixture};
use ringway_wire::DomId;

use crate::host::Host;

struct Pair {
    front: EmuHypervisor,
    back: EmuHypervisor,
}

impl Fixture for Pair {
    type Front = EmuHypervisor;
    type Back = EmuHypervisor;

    fn front(&self) -> &EmuHypervisor {
        &self.front
    }

    fn back(&self) -> &EmuHypervisor {
        &self.back
    }

    fn absent(&self) -> DomId {
        DomId(99)
    }
}

#[test]
fn domain_0_and_a_guest_pass_the_suite() {
    let host = Host::start();
    let front = host.connect(host.create(Role::Guest));
    conformance::run(&Pair { front, back: host.toolstack() });
}

#[test]
fn a_driver_domain_and_a_guest_pass_the_suite() {
    let host = Host::start();
    let front = host.connect(host.create(Role::Guest));
    let back = host.connect(host.create(Role::DriverDomain));
    conformance::run(&Pair { front, back });
}
