//! The suite of every hypervisor port, on real Xen: domain 0 plays both roles. `tests/xen` runs it.

use std::io;

use ringway_hypervisor::conformance::{self, Fixture};
use ringway_wire::DomId;
use ringway_xen::XenHypervisor;

struct Domain0 {
    front: XenHypervisor,
    back: XenHypervisor,
}

impl Fixture for Domain0 {
    type Front = XenHypervisor;
    type Back = XenHypervisor;

    fn front(&self) -> &XenHypervisor {
        &self.front
    }

    fn back(&self) -> &XenHypervisor {
        &self.back
    }

    fn absent(&self) -> DomId {
        DomId(0x7FEF)
    }
}

fn open() -> io::Result<Domain0> {
    let domid = DomId(0);
    Ok(Domain0 { front: XenHypervisor::frontend(domid)?, back: XenHypervisor::backend(domid)? })
}

fn main() -> io::Result<()> {
    conformance::run(&open()?);
    Ok(())
}
