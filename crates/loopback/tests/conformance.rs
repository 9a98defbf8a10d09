//! The machine passes the suite that every implementation of the hypervisor port passes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ringway_hypervisor::conformance::{self, Fixture};
use ringway_loopback::{Fault, FaultPoint, Holdings, Limits, Loopback, LoopbackDomain};
use ringway_wire::DomId;

fn pair(front: LoopbackDomain, back: LoopbackDomain) -> Fixture<LoopbackDomain> {
    Fixture { front, back, absent: DomId(99) }
}

#[test]
fn two_domains_pass_the_suite_and_leak_nothing() {
    let machine = Loopback::new();
    let domain = |domid| machine.create_domain(domid, Limits::default()).expect("it is new");
    conformance::run(&pair(domain(DomId(7)), domain(DomId(0))));
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
    conformance::run(&pair(both.clone(), both));
}

/// Runs the suite on a machine where events of these numbers have this fault, and returns whether
/// it passed. One domain has both roles, so its next port is that of the sender.
fn passes_with(point: FaultPoint, faulty: impl IntoIterator<Item = u64>) -> bool {
    let machine = Loopback::new();
    let both = machine.create_domain(DomId(0), Limits::default()).expect("it is new");
    for nth in faulty {
        machine.add_fault(Fault { domid: DomId(0), point, nth });
    }
    let pair = pair(both.clone(), both);
    catch_unwind(AssertUnwindSafe(|| conformance::run(&pair))).is_ok()
}

#[test]
fn events_may_arrive_twice() {
    assert!(passes_with(FaultPoint::DoubledEvent, 1..1000));
}

#[test]
fn no_event_may_be_lost_or_arrive_at_its_sender() {
    for nth in [1, 2, 3, 100, 101, 200] {
        assert!(!passes_with(FaultPoint::LostEvent, [nth]), "event {nth} was lost unnoticed");
    }
    assert!(!passes_with(FaultPoint::SpuriousEvent, 1..1000));
}
