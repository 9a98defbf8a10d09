//! The machine passes the suite that every implementation of the hypervisor port passes.

use ringway_hypervisor::conformance::{self, Fixture};
use ringway_loopback::{Holdings, Limits, Loopback, LoopbackDomain};
use ringway_wire::DomId;

struct Pair {
    front: LoopbackDomain,
    back: LoopbackDomain,
}

impl Fixture for Pair {
    type Front = LoopbackDomain;
    type Back = LoopbackDomain;

    fn front(&self) -> &LoopbackDomain {
        &self.front
    }

    fn back(&self) -> &LoopbackDomain {
        &self.back
    }

    fn absent(&self) -> DomId {
        DomId(99)
    }
}

#[test]
fn two_domains_pass_the_suite_and_leak_nothing() {
    let machine = Loopback::new();
    let domain = |domid| machine.create_domain(domid, Limits::default()).expect("it is new");
    conformance::run(&Pair { front: domain(DomId(7)), back: domain(DomId(0)) });
    // One case ends two grants, one after the other, while their page is mapped.
    let kept = Holdings { pages: 2, pages_kept: 2, grants: 2, ..Holdings::default() };
    assert_eq!(machine.holdings(), kept);
    machine.destroy_domain(DomId(7));
    assert_eq!(machine.holdings(), Holdings::default());
}

#[test]
fn a_domain_with_both_roles_passes_the_suite() {
    let machine = Loopback::new();
    let both = machine.create_domain(DomId(0), Limits::default()).expect("it is new");
    conformance::run(&Pair { front: both.clone(), back: both });
}
