//! Processes that are killed, without a chance to clean up.

use std::env;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ringway_emu::{
    DomainEvent, DomainState, EmuGrants, EmuHypervisor, EmuMemory, NewDomain, OwnPages, Role,
};
use ringway_hypervisor::{Access, EventChannel, ForeignMemory, GrantCopy, GrantStatus, Hypervisor};
use ringway_wire::grant::RESERVED_ENTRIES;
use ringway_wire::{DomId, EvtchnPort, GrantRef};

use crate::host::{Host, wait_for};

/// The broker's directory, in a process that a test has started; otherwise unset.
const DIR: &str = "RINGWAY_EMU_TEST_DIR";
const PEER: &str = "RINGWAY_EMU_TEST_PEER";
const PORT: &str = "RINGWAY_EMU_TEST_PORT";

/// The first grant of a domain.
const FIRST_GRANT: GrantRef = GrantRef(RESERVED_ENTRIES);

#[test]
fn a_killed_backend_leaves_no_port_and_no_mapping() {
    let host = Host::start();
    let guest = host.connect(host.create(Role::Guest));
    let (mut grants, _) = granted_page(&guest);
    let event = guest.alloc_unbound(DomId(0)).expect("there is a port");

    let mut backend = Process::start(&host, "backend_process", guest.domid(), event.port());
    wait_for(&event);
    let toolstack = host.toolstack();
    let bind = || toolstack.bind_interdomain(guest.domid(), event.port());
    assert_eq!(bind().map(drop).map_err(|e| e.kind()), Err(io::ErrorKind::AddrInUse));
    assert!(grants.end_access(FIRST_GRANT).is_err());

    backend.kill();
    let bound = bind().expect("its port was closed");
    grants.end_access(FIRST_GRANT).expect("its mapping has ended");
    bound.notify().expect("the guest is there");
    wait_for(&event);
}

#[test]
fn marks_of_a_killed_backend_remain_until_the_last_backend_of_its_domain_ends() {
    let host = Host::start();
    let mut served = [(); 2].map(|()| {
        let guest = host.connect(host.create(Role::Guest));
        let (grants, _) = granted_page(&guest);
        let event = guest.alloc_unbound(DomId(0)).expect("there is a port");
        let backend = Process::start(&host, "backend_process", guest.domid(), event.port());
        wait_for(&event);
        (grants, backend)
    });
    let is_free = |(grants, _): &mut (EmuGrants, Process)| grants.end_access(FIRST_GRANT).is_ok();

    served[0].1.kill();
    host.settle();
    assert_eq!(served.each_mut().map(is_free), [false, false]);
    served[1].1.kill();
    host.settle();
    assert_eq!(served.each_mut().map(is_free), [true, true]);
}

#[test]
fn a_killed_guest_is_dead_and_its_number_can_be_reused() {
    let host = Host::start();
    let domid = host.create(Role::Guest);
    let backend = host.toolstack();
    let event = backend.alloc_unbound(domid).expect("there is a port");
    let mut guest = Process::start(&host, "guest_process", domid, event.port());
    wait_for(&event);
    let mut memory = backend.memory().expect("a handle is always made");
    let old = memory.map(domid, FIRST_GRANT, Access::ReadWrite).expect("it is granted");
    assert_eq!(first_byte(&mut memory, domid), (GrantStatus::Okay, b'k'));

    guest.kill();
    assert_eq!(host.next_event(), DomainEvent::Died(domid));
    assert_eq!(old.pages().read::<u8>(0), b'k', "a mapping keeps the memory");
    assert_eq!(backend.domains().expect("we are domain 0")[1].state, DomainState::Dead);
    let mapped = memory.map(domid, FIRST_GRANT, Access::ReadWrite).map(drop);
    assert_eq!(mapped.map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    let again = EmuHypervisor::connect(host.dir(), domid).map(drop);
    assert_eq!(again.map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    event.notify().expect("it is harmless");

    backend.destroy_domain(domid).expect("it is there");
    let new = NewDomain { domid: Some(domid), memory_bytes: 4096, role: Role::Guest };
    backend.create_domain(new).expect("its number is free");
    let guest = host.connect(domid);
    let (mut grants, page) = granted_page(&guest);
    page.pages.write(0, b'n');
    let new = memory.map(domid, FIRST_GRANT, Access::ReadWrite).expect("it is granted");
    assert_eq!(new.pages().read::<u8>(0), b'n');
    assert_eq!(first_byte(&mut memory, domid), (GrantStatus::Okay, b'n'));
    drop(old);
    assert!(grants.end_access(FIRST_GRANT).is_err(), "the new one is still mapped");
    assert_eq!(first_byte(&mut memory, domid), (GrantStatus::Okay, b'n'));
    drop(new);
    grants.end_access(FIRST_GRANT).expect("no peer uses it");
}

/// A page that a guest grants to domain 0, as [`FIRST_GRANT`].
fn granted_page(guest: &EmuHypervisor) -> (EmuGrants, OwnPages) {
    let mut grants = guest.grants().expect("a guest has grants");
    let page = grants.alloc_pages(1).expect("there is memory");
    let gref = grants.grant(DomId(0), page.first_frame, Access::ReadWrite);
    assert_eq!(gref.expect("there is an entry"), FIRST_GRANT);
    (grants, page)
}

/// Not a test: [`Process`] runs it. It maps the first grant of its peer, binds its port, signals
/// through that, and waits to be killed.
#[test]
fn backend_process() {
    let Some((dir, guest, port)) = orders() else { return };
    let hypervisor = EmuHypervisor::connect(&dir, DomId(0)).expect("the broker listens");
    let mut memory = hypervisor.memory().expect("a handle is always made");
    let _mapped = memory.map(guest, FIRST_GRANT, Access::ReadWrite).expect("it is granted");
    let event = hypervisor.bind_interdomain(guest, port).expect("it is for us");
    event.notify().expect("the guest is there");
    wait_to_be_killed();
}

/// Not a test: [`Process`] runs it. It grants a page, and signals through the port that it binds.
#[test]
fn guest_process() {
    let Some((dir, domid, port)) = orders() else { return };
    let hypervisor = EmuHypervisor::connect(&dir, domid).expect("the broker listens");
    let mut grants = hypervisor.grants().expect("a guest has grants");
    let page = grants.alloc_pages(1).expect("there is memory");
    page.pages.write(0, b'k');
    grants.grant(DomId(0), page.first_frame, Access::ReadWrite).expect("there is an entry");
    let event = hypervisor.bind_interdomain(DomId(0), port).expect("it is for us");
    event.notify().expect("the backend is there");
    wait_to_be_killed();
}

/// This test program again, running one of the functions above.
struct Process(Child);

impl Process {
    fn start(host: &Host, role: &str, peer: DomId, port: EvtchnPort) -> Process {
        let mut command = Command::new(env::current_exe().expect("it runs"));
        command.args(["--exact", &format!("killed::{role}")]).stdin(Stdio::piped());
        command.stdout(Stdio::null()).env(DIR, host.dir());
        command.env(PEER, peer.to_string()).env(PORT, port.to_string());
        Process(command.spawn().expect("it can run again"))
    }

    /// When this returns, the kernel has closed everything that the process had open.
    fn kill(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it is ours");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A failed test leaves no process behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn orders() -> Option<(PathBuf, DomId, EvtchnPort)> {
    let dir = PathBuf::from(env::var_os(DIR)?);
    let peer = env::var(PEER).ok()?.parse().ok()?;
    let port = env::var(PORT).ok()?.parse().ok()?;
    Some((dir, DomId(peer), EvtchnPort(port)))
}

fn wait_to_be_killed() {
    let mut nothing = [0];
    // It ends only if the test that started it ends.
    let _ = io::stdin().read(&mut nothing);
}

fn first_byte(memory: &mut EmuMemory, peer: DomId) -> (GrantStatus, u8) {
    let (gref, status) = (FIRST_GRANT, GrantStatus::GeneralError);
    let mut ops = [GrantCopy { gref, offset: 0, len: 1, local: 0, local_offset: 0, status }];
    let mut locals = [[0u8; 1]];
    memory.copy_from_peer(peer, &mut ops, &mut locals).expect("the call is good");
    (ops[0].status, locals[0][0])
}
