//! The rights of domains, and their limits.

use std::io::ErrorKind;

use ringway_emu::{
    DomainEvent, DomainInfo, DomainState, EmuHypervisor, GUEST_PORTS_MAX, MEMORY_BYTES_MAX,
    NewDomain, Role,
};
use ringway_hypervisor::{Access, EventChannel, ForeignMemory, GrantCopy, GrantStatus, Hypervisor};
use ringway_wire::{DomId, GrantRef};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::host::Host;

const GUEST: NewDomain = NewDomain { domid: None, memory_bytes: 8192, role: Role::Guest };

#[test]
fn domain_0_creates_lists_and_destroys() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let chosen = toolstack.create_domain(GUEST).expect("there is room");
    let seventh = NewDomain { domid: Some(DomId(7)), role: Role::DriverDomain, ..GUEST };
    assert_eq!(toolstack.create_domain(seventh).expect("it is free"), DomId(7));
    assert_eq!(host.next_event(), DomainEvent::Created(chosen));
    assert_eq!(host.next_event(), DomainEvent::Created(DomId(7)));

    let guest = host.connect(chosen);
    let listed = toolstack.domains().expect("we are domain 0");
    let (waiting, running) = (DomainState::Waiting, DomainState::Running);
    let (memory_bytes, driver) = (8192, Role::DriverDomain);
    assert_eq!(
        listed,
        [
            DomainInfo { domid: DomId(0), state: running, memory_bytes: 0, role: driver },
            DomainInfo { domid: chosen, state: running, memory_bytes, role: Role::Guest },
            DomainInfo { domid: DomId(7), state: waiting, memory_bytes, role: driver },
        ]
    );

    toolstack.destroy_domain(chosen).expect("it is there");
    assert_eq!(host.next_event(), DomainEvent::Died(chosen));
    assert_eq!(host.next_event(), DomainEvent::Destroyed(chosen));
    assert!(guest.alloc_unbound(DomId(0)).is_err(), "it lost its connection");
    toolstack.destroy_domain(DomId(7)).expect("it is there");
    assert_eq!(host.next_event(), DomainEvent::Destroyed(DomId(7)));
    assert_eq!(toolstack.domains().expect("we are domain 0").len(), 1);
}

#[test]
fn a_domain_number_is_not_reused_at_once() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let first = toolstack.create_domain(GUEST).expect("there is room");
    toolstack.destroy_domain(first).expect("it is there");
    assert_ne!(toolstack.create_domain(GUEST).expect("there is room"), first);
}

#[test]
fn an_invalid_domain_is_not_created() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let seventh = NewDomain { domid: Some(DomId(7)), ..GUEST };
    toolstack.create_domain(seventh).expect("it is free");
    let refused = |new| toolstack.create_domain(new).map_err(|error| error.kind());
    assert_eq!(refused(seventh), Err(ErrorKind::AlreadyExists));
    let numbered = |domid| NewDomain { domid: Some(DomId(domid)), ..GUEST };
    assert_eq!(refused(numbered(0)), Err(ErrorKind::AlreadyExists));
    assert_eq!(refused(numbered(0x7FF0)), Err(ErrorKind::InvalidInput));
    for memory_bytes in [0, 4095, MEMORY_BYTES_MAX + 4096, u64::MAX] {
        let odd = NewDomain { memory_bytes, ..GUEST };
        assert_eq!(refused(odd), Err(ErrorKind::InvalidInput));
    }
    let destroyed = |domid| toolstack.destroy_domain(domid).map_err(|error| error.kind());
    assert_eq!(destroyed(DomId(0)), Err(ErrorKind::PermissionDenied));
    assert_eq!(destroyed(DomId(8)), Err(ErrorKind::NotFound));
}

#[test]
fn a_guest_may_not_use_other_domains_grants() {
    let host = Host::start();
    let victim = host.connect(host.create(Role::Guest));
    let guest = host.connect(host.create(Role::Guest));
    let mut grants = victim.grants().expect("a guest has grants");
    let page = grants.alloc_pages(1).expect("there is memory");
    let gref = grants.grant(guest.domid(), page.first_frame, Access::ReadWrite);
    let gref = gref.expect("there is an entry");

    let mut memory = guest.memory().expect("a handle is always made");
    let mapped = memory.map(victim.domid(), gref, Access::ReadOnly);
    assert_eq!(kind(mapped), Some(ErrorKind::PermissionDenied));
    let status = GrantStatus::GeneralError;
    let op = GrantCopy { gref, offset: 0, len: 1, local: 0, local_offset: 0, status };
    let copied = memory.copy_from_peer(victim.domid(), &mut [op], &mut [[0u8; 1]]);
    assert_eq!(kind(copied), Some(ErrorKind::PermissionDenied));
}

#[test]
fn a_peer_is_kept_while_a_page_is_mapped() {
    let host = Host::start();
    let guest = host.connect(host.create(Role::Guest));
    let mut grants = guest.grants().expect("a guest has grants");
    let page = grants.alloc_pages(1).expect("there is memory");
    let gref = grants.grant(DomId(0), page.first_frame, Access::ReadWrite);
    let gref = gref.expect("there is an entry");
    let backend = host.toolstack();
    let [mut one, mut other] = [(); 2].map(|()| backend.memory().expect("it is always made"));
    let first = one.map(guest.domid(), gref, Access::ReadWrite).expect("it is granted");
    backend.forget(guest.domid());
    let second = other.map(guest.domid(), gref, Access::ReadWrite).expect("it is granted");
    drop(second);
    assert!(grants.end_access(gref).is_err(), "the first mapping is left");
    drop(first);
    grants.end_access(gref).expect("no peer uses it");
}

#[test]
fn a_driver_domain_has_no_toolstack_rights() {
    let host = Host::start();
    let driver = host.connect(host.create(Role::DriverDomain));
    let refused = Some(ErrorKind::PermissionDenied);
    assert_eq!(kind(driver.create_domain(GUEST)), refused);
    assert_eq!(kind(driver.destroy_domain(driver.domid())), refused);
    assert_eq!(kind(driver.domains()), refused);
}

#[test]
fn a_guest_has_no_more_ports_than_xen_would_give_it() {
    // Each port takes two descriptors here and two in the broker, which is this process too.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("it is allowed");
    let host = Host::start();
    let guest = host.connect(host.create(Role::Guest));
    let alloc = |_| guest.alloc_unbound(DomId(0)).expect("there is a port");
    let mut ports = (0..GUEST_PORTS_MAX).map(alloc).collect::<Vec<_>>();
    assert_eq!(kind(guest.alloc_unbound(DomId(0))), Some(ErrorKind::QuotaExceeded));
    host.toolstack().alloc_unbound(guest.domid()).expect("the quota is each domain's own");
    let freed = ports.swap_remove(500).port();
    assert_eq!(guest.alloc_unbound(DomId(0)).expect("there is one again").port(), freed);
}

#[test]
fn memory_can_be_exhausted_and_freed() {
    let host = Host::start();
    let guest = host.connect(host.create(Role::Guest));
    let mut grants = guest.grants().expect("a guest has grants");
    assert_eq!(kind(grants.alloc_pages(65)), Some(ErrorKind::OutOfMemory));
    assert_eq!(kind(grants.alloc_pages(0)), Some(ErrorKind::InvalidInput));
    let runs = [20, 20, 24].map(|count| grants.alloc_pages(count).expect("there is memory"));
    assert_eq!(kind(guest.grants().expect("shared").alloc_pages(1)), Some(ErrorKind::OutOfMemory));
    let [first, middle, last] = runs;
    let frame = middle.first_frame;
    grants.free_pages(&middle);
    let error = grants.alloc_pages(21).expect_err("no run is that long");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let cause = "no 21 free pages in a row; 20 of the domain's 64 are free: give it more memory";
    assert_eq!(error.to_string(), cause);
    let one = grants.alloc_pages(1).expect("there is memory");
    assert_eq!(one.first_frame, frame, "the first run that is long enough");
    grants.free_pages(&first);
    assert_eq!(grants.alloc_pages(20).expect("there is memory").first_frame, 0);
    grants.free_pages(&last);
    grants.free_pages(&one);
    assert_eq!(grants.alloc_pages(44).expect("there is memory").first_frame, 20);
}

#[test]
fn grants_can_be_exhausted_and_freed() {
    let host = Host::start();
    let guest = host.connect(host.create(Role::Guest));
    let mut grants = guest.grants().expect("a guest has grants");
    let grant = |grants: &mut ringway_emu::EmuGrants| grants.grant(DomId(0), 0, Access::ReadOnly);
    let all = (8..32_768).map(|_| grant(&mut grants).expect("there is an entry"));
    let all = all.collect::<std::collections::BTreeSet<GrantRef>>();
    assert_eq!((all.first(), all.len()), (Some(&GrantRef(8)), 32_760));
    assert_eq!(kind(grant(&mut grants)), Some(ErrorKind::OutOfMemory));
    grants.end_access(GrantRef(700)).expect("no peer uses it");
    grants.end_access(GrantRef(700)).expect("it is not granted");
    assert_eq!(grant(&mut grants).expect("there is an entry"), GrantRef(700));
    assert_eq!(kind(grant(&mut grants)), Some(ErrorKind::OutOfMemory));
    grants.end_access(GrantRef(u32::MAX)).expect("it is not granted");
    let elsewhere = grants.grant(DomId(0), 64, Access::ReadOnly);
    assert_eq!(kind(elsewhere), Some(ErrorKind::InvalidInput));
}

#[test]
fn domain_0_has_no_memory_to_grant() {
    let host = Host::start();
    assert_eq!(kind(host.toolstack().grants()), Some(ErrorKind::Unsupported));
}

#[test]
fn a_domain_lives_as_long_as_its_last_handle() {
    let host = Host::start();
    let guest: EmuHypervisor = host.connect(host.create(Role::Guest));
    let domid = guest.domid();
    let grants = guest.grants().expect("a guest has grants");
    drop(guest);
    host.settle();
    let state = host.toolstack().domains().expect("we are domain 0")[1].state;
    assert_eq!(state, DomainState::Running);
    drop(grants);
    assert_eq!(host.next_event(), DomainEvent::Died(domid));
}

fn kind<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}
