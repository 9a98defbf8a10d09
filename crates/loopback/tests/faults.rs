//! Faults, grants that are withdrawn, and limits, as far as neither the suite nor the users of the
//! machine show them.

use std::io::ErrorKind;

use ringway_hypervisor::{Access, ForeignMemory, GrantCopy, GrantStatus, GrantTable, Hypervisor};
use ringway_loopback::{Fault, FaultPoint, Limits, Loopback, LoopbackDomain};
use ringway_wire::{DomId, GrantRef};

const HOST: DomId = DomId(0);
const GUEST: DomId = DomId(7);
const OTHER: DomId = DomId(8);

struct Bench {
    machine: Loopback,
    host: LoopbackDomain,
    guest: LoopbackDomain,
}

impl Bench {
    fn new() -> Bench {
        let machine = Loopback::new();
        let [host, guest, _] = [HOST, GUEST, OTHER].map(|domid| {
            machine.create_domain(domid, Limits::default()).expect("the number is free")
        });
        Bench { machine, host, guest }
    }

    /// Grants a page of the guest.
    fn gref(&self) -> GrantRef {
        let mut grants = self.guest.grants().expect("always made");
        grants.share(HOST, 1, Access::ReadWrite).expect("there is memory").grefs[0]
    }

    /// Copies from these pages, and returns the status of each copy.
    fn copy(&self, grefs: &[GrantRef]) -> std::io::Result<Vec<GrantStatus>> {
        let op = |&gref| GrantCopy {
            gref,
            offset: 0,
            len: 8,
            local: 0,
            local_offset: 0,
            status: GrantStatus::Again,
        };
        let mut ops: Vec<GrantCopy> = grefs.iter().map(op).collect();
        self.host.memory()?.copy_from_peer(GUEST, &mut ops, &mut [[0; 8]])?;
        Ok(ops.iter().map(|op| op.status).collect())
    }
}

#[test]
fn the_nth_copy_fails_and_no_other() {
    let bench = Bench::new();
    let gref = bench.gref();
    let (point, domid) = (FaultPoint::Copy, GUEST);
    for nth in [2, 6] {
        bench.machine.add_fault(Fault { domid, point, nth });
    }
    bench.machine.add_fault(Fault { domid: OTHER, point, nth: 1 });
    let (good, bad) = (GrantStatus::Okay, GrantStatus::GeneralError);
    assert_eq!(bench.copy(&[gref; 3]).expect("the call is good"), [good, bad, good]);
    assert_eq!(bench.copy(&[gref; 4]).expect("the call is good"), [good, good, bad, good]);
    assert_eq!(bench.machine.passages(GUEST, point), 7);
    assert_eq!(bench.machine.faults_left(), [Fault { domid: OTHER, point, nth: 1 }]);
}

#[test]
fn a_grant_revoked_while_mapped_does_not_affect_later_ones() {
    let bench = Bench::new();
    let mut grants = bench.guest.grants().expect("always made");
    let shared = grants.share(HOST, 1, Access::ReadWrite).expect("there is memory");
    let gref = shared.grefs[0];
    let mut memory = bench.host.memory().expect("always made");
    let old = memory.map(GUEST, gref, Access::ReadWrite).expect("it is granted");
    bench.machine.revoke(GUEST, gref);
    assert_eq!(bench.copy(&[gref]).expect("the call is good"), [GrantStatus::BadGrantRef]);
    let next = grants.share(HOST, 1, Access::ReadWrite).expect("there is memory");
    assert_eq!(next.grefs, [gref], "the reference is used again");
    let new = memory.map(GUEST, gref, Access::ReadWrite).expect("it is granted");
    drop(old);
    assert!(grants.end(next).is_err(), "the new mapping is not ended by the end of the old one");
    drop(new);
    grants.end(shared).expect("its grant is gone");
    let kept = bench.machine.holdings_of(GUEST);
    assert_eq!((kept.pages, kept.pages_kept, kept.grants), (1, 1, 1));
}

#[test]
fn limits_are_kept() {
    let machine = Loopback::new();
    let limits = Limits { pages_max: 3, grants_max: 2, ports_max: 1 };
    let guest = machine.create_domain(GUEST, limits).expect("the number is free");
    let mut grants = guest.grants().expect("always made");
    assert!(grants.share(HOST, 0, Access::ReadOnly).is_err());
    assert!(grants.share(HOST, 3, Access::ReadOnly).is_err(), "there are two grants");
    let run = grants.share(HOST, 2, Access::ReadOnly).expect("within the limits");
    assert!(grants.share(HOST, 1, Access::ReadOnly).is_err());
    grants.end(run).expect("the page is not in use");
    assert!(grants.share(HOST, 2, Access::ReadOnly).is_ok());
    let port = guest.alloc_unbound(HOST).expect("within the limits");
    assert!(guest.alloc_unbound(HOST).is_err());
    drop(port);
    assert!(guest.alloc_unbound(HOST).is_ok());
    let taken = machine.create_domain(GUEST, limits).err().map(|error| error.kind());
    assert_eq!(taken, Some(ErrorKind::AlreadyExists));
}
