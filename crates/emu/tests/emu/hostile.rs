//! Processes that break the protocol, and guests that write anything where they may.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use ringway_emu::{DomainEvent, Role};
use ringway_hypervisor::{Access, EventChannel, ForeignMemory, GrantCopy, GrantStatus, Hypervisor};
use ringway_sys::SharedPages;
use ringway_wire::grant::{GTF_PERMIT_ACCESS, GTF_READING, GTF_WRITING, GrantEntryV1};
use ringway_wire::{DomId, GrantRef};
use rustix::fs::{OFlags, fcntl_setfl, ftruncate};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown,
    SocketAddrUnix, SocketType, connect, recvmsg, send, shutdown, socket,
};

use crate::host::Host;

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Version 1, operation 1, nothing else.
const HELLO: [u8; 24] = {
    let mut bytes = [0; 24];
    (bytes[0], bytes[2]) = (1, 1);
    bytes
};

/// Operation 4: the first domain from 0.
const NEXT_DOMAIN: [u8; 24] = {
    let mut bytes = HELLO;
    bytes[2] = 4;
    bytes
};

#[test]
fn garbage_ends_only_its_own_connection() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let mut unknown_operation = HELLO;
    unknown_operation[2] = 9;
    let mut other_version = HELLO;
    other_version[0] = 2;
    let mut stray_field = HELLO;
    stray_field[12] = 1;
    let mut longer = [0; 25];
    longer[..24].copy_from_slice(&NEXT_DOMAIN);
    let garbage: [&[u8]; 9] = [
        b"",
        b"x",
        &HELLO[..23],
        &[0xFF; 24],
        &[0xFF; 5000],
        &unknown_operation,
        &other_version,
        &stray_field,
        &longer,
    ];
    for bytes in garbage {
        let raw = Raw::connect(&host, DomId(0));
        raw.send(bytes).expect("the broker listens");
        assert_eq!(raw.receive().0, 0, "it ends without a word: {bytes:?}");
        let raw = Raw::connect(&host, DomId(0));
        raw.send(&HELLO).expect("the broker listens");
        assert_eq!(raw.receive().0, 32);
        raw.send(bytes).expect("the broker listens");
        assert_eq!(raw.receive().0, 0, "it ends without a word: {bytes:?}");
    }
    assert_eq!(toolstack.domains().expect("we are not disturbed").len(), 1);
}

#[test]
fn hello_is_required_first_and_only_once() {
    let host = Host::start();
    let raw = Raw::connect(&host, DomId(0));
    raw.send(&NEXT_DOMAIN).expect("the broker listens");
    assert_eq!(raw.receive().0, 0);
    let raw = Raw::connect(&host, DomId(0));
    raw.send(&HELLO).expect("the broker listens");
    assert_eq!(raw.receive().0, 32);
    raw.send(&HELLO).expect("the broker listens");
    assert_eq!(raw.receive().0, 0);
}

#[test]
fn garbage_from_a_guest_ends_the_guest() {
    let host = Host::start();
    let domid = host.create(Role::Guest);
    let raw = Raw::connect(&host, domid);
    raw.send(&HELLO).expect("the broker listens");
    assert_eq!(raw.receive().0, 32);
    raw.send(b"garbage").expect("the broker listens");
    assert_eq!(host.next_event(), DomainEvent::Died(domid));
}

#[test]
fn a_front_end_that_reads_no_replies_is_disconnected() {
    let host = Host::start();
    let raw = Raw::connect(&host, DomId(0));
    raw.send(&HELLO).expect("the broker listens");
    let is_cut_off = (0..1_000_000).any(|_| raw.send(&NEXT_DOMAIN).is_err());
    assert!(is_cut_off, "the broker keeps no replies");
    host.settle();
}

#[test]
fn a_domain_has_a_bounded_number_of_connections() {
    let host = Host::start();
    let domid = host.create(Role::Guest);
    let callers = (0..100).map(|_| Raw::connect(&host, domid)).collect::<Vec<_>>();
    let (waiting, turned_away) = callers.split_at(64);
    assert!(turned_away.iter().all(|raw| raw.receive().0 == 0));
    waiting[63].send(&HELLO).expect("it may wait");
    assert_eq!(waiting[63].receive().0, 32);
}

/// Runs a call on another thread, and fails if it does not return.
fn at_once<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(act()));
    is_done.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} hangs"))
}

#[test]
fn a_guest_that_makes_its_event_descriptor_blocking_hangs_no_other_domain() {
    let host = Host::start();
    let toolstack = Arc::new(host.toolstack());
    let domid = host.create(Role::Guest);
    let guest = host.connect(domid);
    let of_guest = guest.alloc_unbound(DomId(0)).expect("there are ports");
    let waker = of_guest.waker().expect("it has a descriptor");
    let bind = {
        let (toolstack, port) = (Arc::clone(&toolstack), of_guest.port());
        move || toolstack.bind_interdomain(domid, port).expect("it is free")
    };
    // The guest changes the flags of its own end, and has read none of its events.
    fcntl_setfl(waker, OFlags::empty()).expect("it is its own");
    let backend = bind();
    let backend = at_once("to take events", move || {
        assert!(backend.ack().expect("readable"), "who binds looks");
        assert!(!backend.ack().expect("readable"), "there was one");
        backend
    });
    let backend = at_once("to send more events than fit", move || {
        (0..100_000).for_each(|_| backend.notify().expect("sent"));
        backend
    });
    // The guest fills the other direction, and then the broker adds an event for the next process
    // that binds.
    while send(waker, &[1; 64], SendFlags::DONTWAIT).is_ok() {}
    drop(backend);
    let backend = at_once("the broker", bind);
    let backend = at_once("to take events", move || {
        while backend.ack().expect("readable") {}
        backend
    });
    // It shuts its end down: no more events arrive, and nothing else happens.
    shutdown(waker, Shutdown::Both).expect("it is its own");
    at_once("a channel that was shut", move || {
        backend.notify().expect("no one is there");
        assert!(!backend.ack().expect("readable"));
    });
    host.settle();
}

#[test]
fn another_protocol_is_refused_by_the_socket() {
    let host = Host::start();
    assert!(UnixStream::connect(host.dir().join("dom-0.sock")).is_err());
    host.settle();
}

#[test]
fn a_guest_cannot_resize_memory_that_others_map() {
    let host = Host::start();
    let (_guest, [memory, table]) = hostile_guest(&host, host.create(Role::Guest));
    for fd in [&memory, &table] {
        assert_eq!(ftruncate(fd, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(fd, 1 << 30), Err(Errno::PERM));
    }
    // A write beyond the end would extend it.
    let mut file = std::fs::File::from(memory);
    std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).expect("it can be sought");
    assert!(file.write_all(b"x").is_err());
}

#[test]
fn a_granted_frame_outside_the_guests_memory_is_a_bad_page() {
    let host = Host::start();
    let domid = host.create(Role::Guest);
    let (_guest, table) = hostile_table(&host, domid);
    let backend = host.toolstack();
    let mut memory = backend.memory().expect("a handle is always made");
    let status = GrantStatus::Okay;
    let op = GrantCopy { gref: GrantRef(9), offset: 0, len: 64, local: 0, local_offset: 0, status };
    for frame in [64, 1 << 20, u32::MAX] {
        table.write(9 * 8, GrantEntryV1 { flags: GTF_PERMIT_ACCESS, domid: 0, frame });
        let mut ops = [op];
        memory.copy_from_peer(domid, &mut ops, &mut [[0u8; 64]]).expect("the call is good");
        assert_eq!(ops[0].status, GrantStatus::BadPage);
        memory.copy_to_peer(domid, &mut ops, &[[0u8; 64]]).expect("the call is good");
        assert_eq!(ops[0].status, GrantStatus::BadPage);
        assert!(memory.map(domid, GrantRef(9), Access::ReadWrite).is_err());
        assert_eq!(table.read::<GrantEntryV1>(9 * 8).flags, GTF_PERMIT_ACCESS, "no mark is left");
    }
}

#[test]
fn a_grant_entry_without_permission_is_refused() {
    let host = Host::start();
    let domid = host.create(Role::Guest);
    let (_guest, table) = hostile_table(&host, domid);
    let backend = host.toolstack();
    let mut memory = backend.memory().expect("a handle is always made");
    for flags in [0, 2, 3, GTF_READING, GTF_WRITING | 2] {
        table.write(9 * 8, GrantEntryV1 { flags, domid: 0, frame: 0 });
        assert!(memory.map(domid, GrantRef(9), Access::ReadOnly).is_err());
        assert_eq!(table.read::<GrantEntryV1>(9 * 8).flags, flags, "it is left as it was");
    }
}

/// A guest that sends its own messages, with its memory and grant table.
fn hostile_guest(host: &Host, domid: DomId) -> (Raw, [OwnedFd; 2]) {
    let raw = Raw::connect(host, domid);
    raw.send(&HELLO).expect("the broker listens");
    let (len, fds) = raw.receive();
    assert_eq!(len, 32);
    let fds = <[OwnedFd; 2]>::try_from(fds).expect("memory and grant table");
    (raw, fds)
}

/// A hostile guest, with access to its grant table.
fn hostile_table(host: &Host, domid: DomId) -> (Raw, SharedPages) {
    let (raw, [_, table]) = hostile_guest(host, domid);
    (raw, SharedPages::map(table, 0, 64 * 4096).expect("it is 64 pages"))
}

struct Raw(OwnedFd);

impl Raw {
    fn connect(host: &Host, domid: DomId) -> Raw {
        let path = host.dir().join(format!("dom-{domid}.sock"));
        let raw = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        let address = SocketAddrUnix::new(path).expect("the path is short");
        connect(&raw, &address).expect("the broker listens");
        Raw(raw)
    }

    fn send(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        send(&self.0, bytes, SendFlags::NOSIGNAL)
    }

    /// The length of the next message, 0 at the end, and its descriptors.
    fn receive(&self) -> (usize, Vec<OwnedFd>) {
        let mut bytes = [0; 100];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let len = match recvmsg(&self.0, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            // The broker closed while one of our messages was unread.
            Err(error) => {
                assert_eq!(error, Errno::CONNRESET);
                0
            }
        };
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        (len, rights.flatten().collect())
    }
}
