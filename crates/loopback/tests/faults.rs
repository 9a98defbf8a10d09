//! Each fault point has the documented effect, on its domain only, and once.

use std::io::ErrorKind;

use ringway_hypervisor::{
    Access, EventChannel, ForeignMemory, GrantCopy, GrantStatus, GrantTable, Hypervisor, PageCopy,
};
use ringway_loopback::{
    Fault, FaultPoint, Holdings, Limits, Loopback, LoopbackDomain, LoopbackEvent,
};
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

    /// A channel with nothing pending: the guest's end, the host's.
    fn channel(&self) -> (LoopbackEvent, LoopbackEvent) {
        let front = self.guest.alloc_unbound(HOST).expect("there is a port");
        let back = self.host.bind_interdomain(GUEST, front.port()).expect("it is for us");
        assert!(back.ack().expect("never fails"), "a new binding is pending");
        (front, back)
    }
}

fn ack(event: &LoopbackEvent) -> bool {
    event.ack().expect("never fails")
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
fn a_call_of_copies_fails_as_a_whole() {
    let bench = Bench::new();
    let gref = bench.gref();
    bench.machine.fail_next(GUEST, FaultPoint::CopyCall);
    assert!(bench.copy(&[gref; 3]).is_err());
    assert_eq!(bench.machine.passages(GUEST, FaultPoint::Copy), 0, "no operation was made");
    assert!(bench.copy(&[gref; 3]).is_ok());
}

#[test]
fn the_owner_of_a_page_dies_between_two_copies_to_another_domain() {
    let bench = Bench::new();
    let other = bench.machine.create_domain(DomId(9), Limits::default()).expect("it is free");
    let share = |domain: &LoopbackDomain| {
        let mut grants = domain.grants().expect("always made");
        grants.share(HOST, 1, Access::ReadWrite).expect("there is memory")
    };
    let (source, target) = (share(&bench.guest), share(&other));
    source.pages.copy_from(0, &[1; 8]);
    bench.machine.add_fault(Fault { domid: GUEST, point: FaultPoint::Death, nth: 2 });
    let copy = |to_offset| PageCopy {
        from: GUEST,
        from_gref: source.grefs[0],
        from_offset: 0,
        to_gref: target.grefs[0],
        to_offset,
        len: 8,
        status: GrantStatus::Again,
    };
    let mut ops = [copy(0), copy(8)];
    let mut memory = bench.host.memory().expect("always made");
    memory.copy_between_peers(DomId(9), &mut ops).expect("the call is good");
    assert_eq!(ops.map(|op| op.status), [GrantStatus::Okay, GrantStatus::BadDomain]);
    assert!(!bench.machine.is_alive(GUEST) && bench.machine.is_alive(DomId(9)));
    assert_eq!(target.pages.read::<[u8; 16]>(0), [[1; 8], [0; 8]].concat()[..]);
}

#[test]
fn a_mapping_a_share_a_port_and_a_binding_are_refused() {
    let bench = Bench::new();
    let mut memory = bench.host.memory().expect("always made");
    let gref = bench.gref();
    let front = bench.guest.alloc_unbound(HOST).expect("there is a port");
    let before = bench.machine.holdings();
    let points = [FaultPoint::Map, FaultPoint::Share, FaultPoint::OfferPort, FaultPoint::BindPort];
    for point in points {
        bench.machine.fail_next(GUEST, point);
    }
    assert!(memory.map(GUEST, gref, Access::ReadOnly).is_err());
    let mut grants = bench.guest.grants().expect("always made");
    let refused = grants.share(HOST, 1, Access::ReadOnly).map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(ErrorKind::OutOfMemory));
    assert!(bench.guest.alloc_unbound(HOST).is_err());
    assert!(bench.host.bind_interdomain(GUEST, front.port()).is_err());
    assert_eq!(bench.machine.holdings(), before, "what was refused leaves nothing behind");
    assert!(memory.map(GUEST, gref, Access::ReadOnly).is_ok());
    assert!(bench.host.bind_interdomain(GUEST, front.port()).is_ok());
}

#[test]
fn an_event_can_be_refused_lost_or_doubled() {
    let bench = Bench::new();
    let (front, back) = bench.channel();
    bench.machine.fail_next(GUEST, FaultPoint::Notify);
    assert!(front.notify().is_err());
    bench.machine.fail_next(HOST, FaultPoint::LostEvent);
    front.notify().expect("the sender does not see the loss");
    assert!(!ack(&back));
    bench.machine.fail_next(HOST, FaultPoint::DoubledEvent);
    front.notify().expect("the other end is there");
    assert_eq!([ack(&back), ack(&back), ack(&back)], [true, true, false]);
}

#[test]
fn a_spurious_event_arrives_at_another_port() {
    let bench = Bench::new();
    let channels = [bench.channel(), bench.channel(), bench.channel()];
    bench.machine.fail_next(HOST, FaultPoint::SpuriousEvent);
    channels[2].0.notify().expect("the other end is there");
    let ports = [0, 2].map(|channel: usize| channels[channel].1.port());
    assert_eq!(bench.machine.pending_ports(HOST), ports);
    assert!(ack(&channels[0].1) && ack(&channels[2].1));
    bench.machine.raise(HOST, channels[1].1.port());
    assert!(bench.machine.is_pending(HOST, channels[1].1.port()));
    assert!(!bench.machine.is_pending(HOST, channels[0].1.port()));
}

#[test]
fn a_domain_that_dies_takes_its_grants_and_ports_with_it() {
    let bench = Bench::new();
    let gref = bench.gref();
    let mut memory = bench.host.memory().expect("always made");
    let page = memory.map(GUEST, gref, Access::ReadWrite).expect("it is granted");
    page.pages().write(0, 0x1234_5678_u32);
    let (front, back) = bench.channel();
    bench.machine.fail_next(GUEST, FaultPoint::Death);
    let statuses = bench.copy(&[gref; 2]).expect("the call is good");
    assert_eq!(statuses, [GrantStatus::BadDomain; 2]);
    assert!(!bench.machine.is_alive(GUEST));

    assert_eq!(page.pages().read::<u32>(0), 0x1234_5678, "what is mapped stays until unmapped");
    let again = memory.map(GUEST, gref, Access::ReadOnly).err().map(|error| error.kind());
    assert_eq!(again, Some(ErrorKind::NotFound));
    back.notify().expect("an event without another end is dropped");
    assert!(bench.host.bind_interdomain(GUEST, front.port()).is_err());
    let refused = front.notify().map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::NotConnected), "the dead do not call");
    assert!(bench.guest.grants().expect("always made").share(HOST, 1, Access::ReadOnly).is_err());

    assert_eq!(bench.machine.holdings_of(GUEST), Holdings::default());
    drop((page, back));
    assert_eq!(bench.machine.holdings(), Holdings::default());
    let reborn = bench.machine.create_domain(GUEST, Limits::default()).expect("it is free");
    let port = reborn.alloc_unbound(HOST).expect("there is a port");
    drop(front);
    assert_eq!(bench.machine.holdings_of(GUEST).ports, 1, "an old handle closes no new port");
    drop(port);
}

#[test]
fn a_backend_that_dies_releases_its_mappings() {
    let bench = Bench::new();
    let mut grants = bench.guest.grants().expect("always made");
    let shared = grants.share(HOST, 2, Access::ReadWrite).expect("there is memory");
    let mut memory = bench.host.memory().expect("always made");
    let page = memory.map(GUEST, shared.grefs[1], Access::ReadWrite).expect("it is granted");
    assert_eq!(bench.machine.holdings_of(HOST).mappings, 1);
    bench.machine.destroy_domain(HOST);
    grants.end(shared).expect("the page is not in use any more");
    drop(page);
    assert_eq!(bench.machine.holdings(), Holdings::default());
    assert!(bench.copy(&[GrantRef(8)]).is_err(), "the dead do not call");
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
