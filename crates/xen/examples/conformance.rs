//! The suite of every hypervisor port, on real Xen: domain 0 plays both roles. `tests/xen` runs it.

use std::io;

use ringway_hypervisor::conformance::{self, Fixture};
use ringway_wire::DomId;
use ringway_xen::XenHypervisor;

fn main() -> io::Result<()> {
    let domid = DomId(0);
    let (front, back) = (XenHypervisor::frontend(domid)?, XenHypervisor::backend(domid)?);
    conformance::run(&Fixture { front, back, absent: DomId(0x7FEF) });
    Ok(())
}
