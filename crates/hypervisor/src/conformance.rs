//! One suite for every implementation of the hypervisor port.
//!
//! It tests only what the data path relies on. Where Xen reports two refusals alike, the suite does
//! not distinguish them; an implementation that does has its own tests for that.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;

use ringway_sys::SharedPages;
use ringway_wire::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use crate::{
    Access, EventChannel, ForeignMemory, GrantCopy, GrantStatus, GrantTable, GrantedPages,
    Hypervisor, PageCopy,
};

/// How long an event may take. Only a failing test waits this long.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The most deliveries that an end sees without a notification of their own, however late they
/// come: on Xen one may be queued and one more pending behind it, the first of them for the binding
/// itself. The others are for a kernel that raises one again, as when it moves a port to another
/// CPU.
const SURPLUS_MAX: usize = 8;

/// Notifications of a case. An end that sees a delivery for each exceeds [`SURPLUS_MAX`] by far.
const ROUNDS: usize = 100;

/// Two domains, or one that plays both roles.
pub struct Fixture<H> {
    /// The domain that grants.
    pub front: H,
    /// The domain that uses the grants.
    pub back: H,
    /// A domain number that is not in use.
    pub absent: DomId,
}

/// The name of a case, which states what it tests, and its function.
type Case<H> = (&'static str, fn(&Fixture<H>));

/// Runs the suite.
///
/// # Panics
/// When a case fails. The name of each is printed before it runs.
pub fn run<H: Hypervisor>(fixture: &Fixture<H>) {
    let cases: &[Case<H>] = &[
        ("pages are zeroed and in sequence", pages_are_zeroed_and_in_sequence),
        ("copies go both ways", copies_go_both_ways),
        ("a mapped page is shared", a_mapped_page_is_shared),
        ("a read-only grant is not written", a_read_only_grant_is_not_written),
        ("a grant to another domain is refused", a_grant_to_another_domain_is_refused),
        ("a bad operation does not affect others", a_bad_operation_does_not_affect_others),
        ("a grant may occur twice in a batch", a_grant_may_occur_twice_in_a_batch),
        ("an empty copy is accepted", an_empty_copy_is_accepted),
        ("pages are copied to pages", pages_are_copied_to_pages),
        (
            "a mapped page is not given to another domain",
            a_mapped_page_is_not_given_to_another_domain,
        ),
        ("a copy leaves a mapping in place", a_copy_leaves_a_mapping_in_place),
        ("a revoked grant is refused", a_revoked_grant_is_refused),
        ("an unknown domain has no grants", an_unknown_domain_has_no_grants),
        ("an event reaches the other end", an_event_reaches_the_other_end),
        ("many events are merged", many_events_are_merged),
        ("a port is bound once, by its peer", a_port_is_bound_once_by_its_peer),
        ("a port is bound again after its peer left", a_port_is_bound_again_after_its_peer_left),
    ];
    for (name, case) in cases {
        println!("conformance: {name}");
        case(fixture);
    }
}

fn pages_are_zeroed_and_in_sequence<H: Hypervisor>(fixture: &Fixture<H>) {
    let mut grants = fixture.front.grants().expect("a frontend has grants");
    for _ in 0..2 {
        let shared = grants.share(fixture.back.domid(), 3, Access::ReadOnly);
        let shared = shared.expect("there is memory");
        assert_eq!((shared.pages.len(), shared.grefs.len()), (3 * PAGE_SIZE, 3));
        let mut bytes = [1; 3 * PAGE_SIZE];
        shared.pages.copy_to(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0), "the second time it was written before");
        shared.pages.copy_from(0, &[7; 3 * PAGE_SIZE]);
        for (page, gref) in (0..3u8).zip(&shared.grefs) {
            shared.pages.write(usize::from(page) * PAGE_SIZE, page);
            assert_eq!(read(fixture, *gref, 0, 2), (GrantStatus::Okay, vec![page, 7]));
        }
        grants.end(shared).expect("the copies are over");
    }
}

fn copies_go_both_ways<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::new(fixture, Access::ReadWrite);
    granted.pages().copy_from(100, b"from the guest");
    assert_eq!(read(fixture, granted.gref, 100, 14), (GrantStatus::Okay, b"from the guest".into()));
    assert_eq!(write(fixture, granted.gref, 4087, b"to its end"), GrantStatus::BadCopyArg);
    assert_eq!(write(fixture, granted.gref, 4086, b"to its end"), GrantStatus::Okay);
    let mut bytes = [0; 10];
    granted.pages().copy_to(4086, &mut bytes);
    assert_eq!(&bytes, b"to its end");
    granted.end();
}

fn a_mapped_page_is_shared<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::new(fixture, Access::ReadWrite);
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let mapped = memory.map(fixture.front.domid(), granted.gref, Access::ReadWrite);
    let mapped = mapped.expect("it is granted");
    assert_eq!(mapped.pages().len(), PAGE_SIZE);
    granted.pages().write(8, 0x1234_5678_u32);
    assert_eq!(mapped.pages().read::<u32>(8), 0x1234_5678);
    mapped.pages().write(4092, 0x8765_4321_u32);
    assert_eq!(granted.pages().read::<u32>(4092), 0x8765_4321);
    drop(mapped);
    granted.end();
}

fn a_read_only_grant_is_not_written<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::new(fixture, Access::ReadOnly);
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let front = fixture.front.domid();
    assert_ne!(write(fixture, granted.gref, 0, b"x"), GrantStatus::Okay);
    assert!(memory.map(front, granted.gref, Access::ReadWrite).is_err());
    assert_eq!(granted.pages().read::<u8>(0), 0);
    assert_eq!(read(fixture, granted.gref, 0, 1), (GrantStatus::Okay, vec![0]));
    drop(memory.map(front, granted.gref, Access::ReadOnly).expect("reading is allowed"));
    granted.end();
}

fn a_grant_to_another_domain_is_refused<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::to(fixture, fixture.absent, Access::ReadWrite);
    let mut memory = fixture.back.memory().expect("a backend has memory");
    assert_ne!(read(fixture, granted.gref, 0, 1).0, GrantStatus::Okay);
    assert_ne!(write(fixture, granted.gref, 0, b"x"), GrantStatus::Okay);
    assert!(memory.map(fixture.front.domid(), granted.gref, Access::ReadOnly).is_err());
    assert_eq!(granted.pages().read::<u8>(0), 0);
    granted.end();
}

fn a_bad_operation_does_not_affect_others<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::new(fixture, Access::ReadWrite);
    granted.pages().copy_from(0, &[9; PAGE_SIZE]);
    let good = copy(granted.gref, 4032, 64);
    let bad = [
        GrantCopy { gref: GrantRef(u32::MAX), ..good },
        GrantCopy { gref: GrantRef(0x00FF_FFFF), ..good },
        GrantCopy { offset: 4033, ..good },
        GrantCopy { offset: u16::MAX, len: u16::MAX, ..good },
        GrantCopy { local: 2, ..good },
        GrantCopy { local_offset: 1, ..good },
        GrantCopy { local_offset: u32::MAX, ..good },
    ];
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let front = fixture.front.domid();
    for op in bad {
        let second = GrantCopy { local: 1, ..good };
        let mut locals = [[0u8; 64], [0u8; 64]];
        let mut ops = [good, op, second];
        memory.copy_from_peer(front, &mut ops, &mut locals).expect("the call succeeds");
        let is_okay = ops.map(|op| op.status == GrantStatus::Okay);
        assert_eq!(is_okay, [true, false, true], "reading, {op:?}");
        assert_eq!(locals, [[9; 64], [9; 64]]);

        let mut ops = [good, op, second];
        memory.copy_to_peer(front, &mut ops, &[[9u8; 64], [9; 64]]).expect("the call succeeds");
        let is_okay = ops.map(|op| op.status == GrantStatus::Okay);
        assert_eq!(is_okay, [true, false, true], "writing, {op:?}");
    }
    granted.end();
}

fn a_grant_may_occur_twice_in_a_batch<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::new(fixture, Access::ReadWrite);
    let other = Granted::new(fixture, Access::ReadWrite);
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let front = fixture.front.domid();
    let first = copy(granted.gref, 0, 4);
    let mut ops = [
        first,
        GrantCopy { offset: 4, local_offset: 4, ..first },
        GrantCopy { gref: other.gref, ..first },
        GrantCopy { offset: 8, local_offset: 8, ..first },
    ];
    memory.copy_to_peer(front, &mut ops, &[*b"one two tri "]).expect("the call succeeds");
    assert!(ops.iter().all(|op| op.status == GrantStatus::Okay));
    assert_eq!(read(fixture, granted.gref, 0, 12).1, b"one two tri ");
    assert_eq!(read(fixture, other.gref, 0, 4).1, b"one ");
    granted.end();
    other.end();
}

fn an_empty_copy_is_accepted<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::new(fixture, Access::ReadWrite);
    assert_eq!(read(fixture, granted.gref, 4096, 0), (GrantStatus::Okay, vec![]));
    assert_eq!(write(fixture, granted.gref, 0, b""), GrantStatus::Okay);
    granted.end();
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let no_locals: &mut [[u8; 0]] = &mut [];
    let nothing = memory.copy_from_peer(fixture.front.domid(), &mut [], no_locals);
    nothing.expect("a call without operations succeeds");
}

fn pages_are_copied_to_pages<H: Hypervisor>(fixture: &Fixture<H>) {
    let source = Granted::new(fixture, Access::ReadOnly);
    let target = Granted::new(fixture, Access::ReadWrite);
    source.pages().copy_from(100, b"from page to page");
    let front = fixture.front.domid();
    let good = PageCopy {
        from: front,
        from_gref: source.gref,
        from_offset: 100,
        to_gref: target.gref,
        to_offset: 4079,
        len: 17,
        status: GrantStatus::GeneralError,
    };
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let bad = [
        PageCopy { from: fixture.absent, ..good },
        PageCopy { from_gref: GrantRef(0x00FF_FFFF), ..good },
        PageCopy { from_offset: 4080, ..good },
        PageCopy { to_gref: GrantRef(0x00FF_FFFF), ..good },
        PageCopy { to_gref: source.gref, ..good },
        PageCopy { to_offset: 4080, ..good },
        PageCopy { to_offset: u16::MAX, len: u16::MAX, ..good },
    ];
    for op in bad {
        target.pages().copy_from(0, &[0; PAGE_SIZE]);
        let second = PageCopy { to_offset: 0, ..good };
        let mut ops = [good, op, second];
        memory.copy_between_peers(front, &mut ops).expect("the call succeeds");
        let is_okay = ops.map(|op| op.status == GrantStatus::Okay);
        assert_eq!(is_okay, [true, false, true], "{op:?}");
        for at in [4079, 0] {
            let mut bytes = [0; 17];
            target.pages().copy_to(at, &mut bytes);
            assert_eq!(&bytes, b"from page to page");
        }
    }
    memory.copy_between_peers(front, &mut []).expect("a call without operations succeeds");
    let mut ops = [good];
    memory.copy_between_peers(fixture.absent, &mut ops).expect("the call succeeds");
    assert_ne!(ops[0].status, GrantStatus::Okay);
    source.end();
    target.end();
}

fn a_mapped_page_is_not_given_to_another_domain<H: Hypervisor>(fixture: &Fixture<H>) {
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let granted = Granted::new(fixture, Access::ReadWrite);
        let mut memory = fixture.back.memory().expect("a backend has memory");
        let front = fixture.front.domid();
        let mapped = memory.map(front, granted.gref, access).expect("it is granted");
        let again = memory.map(front, granted.gref, Access::ReadWrite).expect("it is granted");
        granted.pages().write(0, 0x1234_5678_u32);
        let Granted { mut grants, shared, .. } = granted;
        // Whether it is refused or delayed, the page must not be reused.
        let _ = grants.end(shared);
        drop(again);
        let others = [(); 8].map(|()| Granted::new(fixture, Access::ReadWrite));
        for other in &others {
            other.pages().copy_from(0, &[9; PAGE_SIZE]);
        }
        assert_eq!(mapped.pages().read::<u32>(0), 0x1234_5678);
        drop(mapped);
        others.into_iter().for_each(Granted::end);
    }
}

fn a_copy_leaves_a_mapping_in_place<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::new(fixture, Access::ReadWrite);
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let mapped = memory.map(fixture.front.domid(), granted.gref, Access::ReadOnly);
    let mapped = mapped.expect("it is granted");
    assert_eq!(read(fixture, granted.gref, 0, 1).0, GrantStatus::Okay);
    assert_eq!(write(fixture, granted.gref, 0, b"x"), GrantStatus::Okay);
    assert_eq!(mapped.pages().read::<u8>(0), b'x');
    drop(mapped);
    granted.end();
}

fn a_revoked_grant_is_refused<H: Hypervisor>(fixture: &Fixture<H>) {
    let granted = Granted::new(fixture, Access::ReadWrite);
    let gref = granted.gref;
    assert_eq!(write(fixture, gref, 0, b"x"), GrantStatus::Okay);
    granted.end();
    assert_ne!(write(fixture, gref, 0, b"y"), GrantStatus::Okay);
    assert_ne!(read(fixture, gref, 0, 1).0, GrantStatus::Okay);
    let mut memory = fixture.back.memory().expect("a backend has memory");
    assert!(memory.map(fixture.front.domid(), gref, Access::ReadOnly).is_err());
}

fn an_unknown_domain_has_no_grants<H: Hypervisor>(fixture: &Fixture<H>) {
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let mut ops = [copy(GrantRef(8), 0, 1), copy(GrantRef(9), 0, 1)];
    let absent = fixture.absent;
    memory.copy_from_peer(absent, &mut ops, &mut [[0u8; 1]]).expect("the call succeeds");
    assert!(ops.iter().all(|op| op.status != GrantStatus::Okay));
    assert!(memory.map(absent, GrantRef(8), Access::ReadOnly).is_err());
}

fn an_event_reaches_the_other_end<H: Hypervisor>(fixture: &Fixture<H>) {
    let (front, back) = bound(fixture);
    assert_reach(&front, &back);
    assert_reach(&back, &front);
}

fn many_events_are_merged<H: Hypervisor>(fixture: &Fixture<H>) {
    let (front, back) = bound(fixture);
    for _ in 0..ROUNDS {
        front.notify().expect("the other end is there");
    }
    assert_readable(&back);
    let count = (0..ROUNDS).take_while(|_| back.ack().expect("it can be read")).count();
    assert!((1..=SURPLUS_MAX).contains(&count), "{count} deliveries of {ROUNDS} notifications");
    assert_reach(&front, &back);
}

fn a_port_is_bound_once_by_its_peer<H: Hypervisor>(fixture: &Fixture<H>) {
    let (front, back) = (&fixture.front, &fixture.back);
    let absent = fixture.absent;
    let offered = front.alloc_unbound(back.domid()).expect("there is a port");
    let not_ours = front.alloc_unbound(absent).expect("there is a port");
    assert_ne!(offered.port(), not_ours.port());

    let bound = back.bind_interdomain(front.domid(), offered.port()).expect("it is for us");
    let again = back.bind_interdomain(front.domid(), offered.port());
    assert_refused(again, ErrorKind::AddrInUse);
    let refused = back.bind_interdomain(front.domid(), not_ours.port());
    assert_refused(refused, ErrorKind::PermissionDenied);
    for port in [EvtchnPort(0), EvtchnPort(1_000_000)] {
        assert_refused(back.bind_interdomain(front.domid(), port), ErrorKind::NotFound);
    }
    assert_refused(back.bind_interdomain(absent, offered.port()), ErrorKind::NotFound);

    let port = offered.port();
    drop((bound, offered));
    assert_refused(back.bind_interdomain(front.domid(), port), ErrorKind::NotFound);
}

fn a_port_is_bound_again_after_its_peer_left<H: Hypervisor>(fixture: &Fixture<H>) {
    let (front, back) = bound(fixture);
    drop(back);
    let unheard = front.notify().map_err(|error| error.kind());
    assert!(matches!(unheard, Ok(()) | Err(ErrorKind::NotConnected)));

    let back = fixture.back.bind_interdomain(fixture.front.domid(), front.port());
    let back = back.unwrap_or_else(|error| panic!("it was left: {error}"));
    assert_reach(&front, &back);
    assert_reach(&back, &front);
}

/// One page of the frontend, granted.
struct Granted<G> {
    grants: G,
    shared: GrantedPages,
    gref: GrantRef,
}

impl<G: GrantTable> Granted<G> {
    fn new<H: Hypervisor<Grants = G>>(fixture: &Fixture<H>, access: Access) -> Granted<G> {
        Granted::to(fixture, fixture.back.domid(), access)
    }

    fn to<H: Hypervisor<Grants = G>>(
        fixture: &Fixture<H>,
        peer: DomId,
        access: Access,
    ) -> Granted<G> {
        let mut grants = fixture.front.grants().expect("a frontend has grants");
        let shared = grants.share(peer, 1, access).expect("there is memory");
        let gref = shared.grefs[0];
        Granted { grants, shared, gref }
    }

    fn pages(&self) -> &SharedPages {
        &self.shared.pages
    }

    fn end(mut self) {
        self.grants.end(self.shared).expect("it is not in use any more");
    }
}

fn copy(gref: GrantRef, offset: u16, len: u16) -> GrantCopy {
    GrantCopy { gref, offset, len, local: 0, local_offset: 0, status: GrantStatus::GeneralError }
}

fn read<H: Hypervisor>(
    fixture: &Fixture<H>,
    gref: GrantRef,
    offset: u16,
    len: u16,
) -> (GrantStatus, Vec<u8>) {
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let mut ops = [copy(gref, offset, len)];
    let mut locals = [vec![0; usize::from(len)]];
    let call = memory.copy_from_peer(fixture.front.domid(), &mut ops, &mut locals);
    call.expect("the call succeeds");
    let ([op], [bytes]) = (ops, locals);
    (op.status, bytes)
}

fn write<H: Hypervisor>(
    fixture: &Fixture<H>,
    gref: GrantRef,
    offset: u16,
    bytes: &[u8],
) -> GrantStatus {
    let mut memory = fixture.back.memory().expect("a backend has memory");
    let len = u16::try_from(bytes.len()).expect("a test writes less than a page");
    let mut ops = [copy(gref, offset, len)];
    let call = memory.copy_to_peer(fixture.front.domid(), &mut ops, &[bytes]);
    call.expect("the call succeeds");
    ops[0].status
}

/// A channel. Its ends may be pending already, because events may have been lost before they were
/// bound.
fn bound<H: Hypervisor>(fixture: &Fixture<H>) -> (H::Event, H::Event) {
    let front = fixture.front.alloc_unbound(fixture.back.domid()).expect("there is a port");
    let back = fixture.back.bind_interdomain(fixture.front.domid(), front.port());
    let back = back.unwrap_or_else(|error| panic!("the port is for us: {error}"));
    (front, back)
}

/// Each of many notifications is followed by a delivery to the other end, and not by one to its
/// sender.
///
/// A few deliveries of what was before may come at any time, so an end is never taken for quiet.
/// What is asserted is that no more come than can be left from before, in as many rounds as show a
/// difference: the delivery of each round orders it behind the round before.
#[track_caller]
fn assert_reach(sender: &impl EventChannel, receiver: &impl EventChannel) {
    // Takes what has come, so that it does not stand for the first delivery.
    let _ = (0..SURPLUS_MAX).find(|_| !receiver.ack().expect("it can be read"));
    let mut echoes = 0;
    for _ in 0..ROUNDS {
        sender.notify().expect("the other end is there");
        assert_readable(receiver);
        assert!(receiver.ack().expect("it can be read"), "no event came");
        echoes += usize::from(sender.ack().expect("it can be read"));
    }
    assert!(echoes <= SURPLUS_MAX, "the sender saw {echoes} deliveries of {ROUNDS} of its own");
    let falls_silent = (0..=SURPLUS_MAX).any(|_| {
        let was_pending = receiver.ack().expect("it can be read");
        // waits: not at all: deliveries may still come, but only so many.
        receiver.waker().map_or(!was_pending, |fd| !is_readable(fd, NOW))
    });
    assert!(falls_silent, "more deliveries of {ROUNDS} notifications than those and a few");
}

/// An end without a descriptor is not polled: its event is pending already, or will never be.
#[track_caller]
fn assert_readable(event: &impl EventChannel) {
    assert!(event.waker().is_none_or(|fd| is_readable(fd, PATIENCE)), "no event came");
}

fn is_readable(fd: BorrowedFd<'_>, wait: Timespec) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    retry_on_intr(|| poll(&mut fds, Some(&wait))).expect("the descriptor is ours");
    fds[0].revents().contains(PollFlags::IN)
}

/// Xen reports any bad port as `EINVAL`.
fn assert_refused<T>(result: io::Result<T>, kind: ErrorKind) {
    let refusal = result.err().map(|error| error.kind());
    assert!(refusal == Some(kind) || refusal == Some(ErrorKind::InvalidInput), "{refusal:?}");
}
