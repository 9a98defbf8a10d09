//! Virtio front-ends and guests that break the protocol. Each loses its port; the reason is
//! reported once, with numbers; and honest guests of both kinds beside them lose no frame, also
//! while another front-end asks questions as fast as it can. `virtio queues hostile` has all that a
//! chain can be.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringway_e2e::host::{Host, Running, SOON, describe};
use ringway_e2e::machine::{ADDRESS, EchoConnection, wait_for_file};
use ringway_e2e::virtio_guest::{Maker, guest_with, keeping_neighbor};
use ringway_sys::poll::wait_readable;
use ringway_vhost::request::Ack;
use ringway_vhost::{Area, Region, RegionKey, Request};
use ringway_vhost_shell::Connection;
use ringway_wire::vhost_user::{
    VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS, VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD, inflight_split,
};
use ringway_wire::virtio::{Features, VIRTIO_F_VERSION_1};
use rustix::event::epoll;
use rustix::fs::{
    CWD, FileType, MemfdFlags, Mode, OFlags, fcntl_getfl, fcntl_setfl, ftruncate, memfd_create,
    mknodat,
};

use crate::virtio::{KEY, LEN, START, await_reply, event, ring_requests};

/// Entries of each ring.
const SIZE: u16 = 256;
/// Addresses of the transmit ring in its memory: descriptors, available and used ring.
const RING: u64 = 0x10000;
const AVAILABLE: u64 = RING + 0x4000;

/// A front-end and its guest.
pub(crate) struct Rogue {
    connection: Connection,
    /// The socket of that connection.
    socket: UnixStream,
    pub(crate) memory: OwnedFd,
    /// The kicks of its rings: of the one that receives, and of the one that transmits.
    room: OwnedFd,
    pub(crate) kick: OwnedFd,
    /// The calls of its rings, if it wants any.
    call: Option<OwnedFd>,
    features: Features,
}

impl Rogue {
    pub(crate) fn new(socket: &Path) -> Rogue {
        let socket = UnixStream::connect(socket).expect("it listens");
        socket.set_nonblocking(true).expect("our own socket");
        let connection = Connection::new(socket.try_clone().expect("a descriptor").into());
        let features = Features::of(&[VIRTIO_F_VERSION_1]);
        let [room, kick] = [event(), event()];
        Rogue { connection, socket, memory: memory(LEN), room, kick, call: None, features }
    }

    pub(crate) fn send(&mut self, request: Request) {
        // The back-end may have closed it after an earlier message.
        let _ = self.connection.send(request.write(Ack::No));
    }

    /// Shares its memory, as `key` describes it.
    fn share(&mut self, key: RegionKey, file: OwnedFd) {
        self.send(Request::SetFeatures(self.features));
        self.send(Request::SetMemTable(vec![Region { key, file }]));
    }

    fn rings(&mut self) {
        for ring in 0..2 {
            let kick = clone(if ring == 1 { &self.kick } else { &self.room });
            for request in ring_requests(ring, self.call.as_ref().map(clone), kick) {
                self.send(request);
            }
        }
    }

    /// The complete set-up of an honest front-end.
    pub(crate) fn begin(&mut self) {
        self.share(KEY, clone(&self.memory));
        self.rings();
    }

    /// Without protocol features, rings are enabled from the start.
    pub(crate) fn enable(&mut self) {
        for ring in 0..2 {
            self.send(Request::SetVringEnable { ring, is_enabled: true });
        }
    }

    /// Waits until the back-end has handled everything so far.
    pub(crate) fn is_handled(&mut self) {
        self.send(Request::GetFeatures);
        await_reply(&mut self.connection);
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) {
        rustix::io::pwrite(&self.memory, bytes, offset).expect("it is memory");
    }

    /// Writes the first descriptor, of a chain of one.
    fn desc(&self, (address, len): (u64, u32)) {
        self.write(&[&address.to_le_bytes()[..], &len.to_le_bytes(), &[0_u8; 4]].concat(), RING);
    }

    /// Makes chains available up to an index; the first has this head.
    fn transmit(&self, head: u16, index: u16) {
        self.write(&head.to_le_bytes(), AVAILABLE + 4);
        self.write(&index.to_le_bytes(), AVAILABLE + 2);
        self.kick(1);
    }

    pub(crate) fn kick(&self, ring: usize) {
        let kick = if ring == 1 { &self.kick } else { &self.room };
        rustix::io::write(kick, &1_u64.to_ne_bytes()).expect("a descriptor");
    }

    /// Has this descriptor in the place of an eventfd of its transmit ring.
    fn with_bell(&mut self, file: OwnedFd, set: fn(u16, Option<OwnedFd>) -> Request) {
        self.share(KEY, clone(&self.memory));
        self.rings();
        self.enable();
        self.send(set(1, Some(file)));
        self.transmit(0, 1);
    }

    /// Transmits one chain of one descriptor.
    fn one(&mut self, buffer: (u64, u32)) {
        self.desc(buffer);
        self.transmit(0, 1);
        self.begin();
    }
}

pub(crate) fn memory(len: u64) -> OwnedFd {
    let memory = memfd_create("rogue", MemfdFlags::CLOEXEC).expect("a file");
    ftruncate(&memory, len).expect("memory");
    memory
}

/// A pipe into which nothing more fits, so that writing to it blocks.
fn full_pipe() -> OwnedFd {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe with a name");
    let mut pipe = File::options().read(true).write(true).open(&path).expect("both ends");
    let flags = fcntl_getfl(&pipe).expect("flags");
    fcntl_setfl(&pipe, flags | OFlags::NONBLOCK).expect("it is ours");
    while pipe.write(&[0; 4096]).is_ok() {}
    fcntl_setfl(&pipe, flags).expect("it is ours");
    pipe.into()
}

fn call(ring: u16, file: Option<OwnedFd>) -> Request {
    Request::SetVringCall { ring, file }
}

fn kick(ring: u16, file: Option<OwnedFd>) -> Request {
    Request::SetVringKick { ring, file }
}

fn clone(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("a descriptor")
}

/// The address and number of its guest's bytes.
const BUFFER: (u64, u32) = (START + 0x40000, 100);

/// An attack, and its expected error message.
type Attack = (&'static str, fn(&mut Rogue), &'static [&'static str]);

const ATTACKS: &[Attack] = &[
    (
        "long-region",
        |it| it.share(RegionKey { size: 2 * LEN, ..KEY }, clone(&it.memory)),
        &["0x200000 bytes", "longer than its file", "0x100000 bytes"],
    ),
    (
        "socket-as-memory",
        |it| it.share(KEY, UnixStream::pair().expect("sockets").0.into()),
        &["SET_MEM_TABLE came with a socket"],
    ),
    (
        "directory-as-memory",
        |it| it.share(KEY, File::open("/").expect("it is there").into()),
        &["SET_MEM_TABLE came with a directory"],
    ),
    (
        "regions-overlap",
        |it| {
            let key = RegionKey { guest_address: START + 0x1000, user_address: 0, ..KEY };
            let files = [clone(&it.memory), clone(&it.memory)];
            let regions = [KEY, key].into_iter().zip(files);
            let regions = regions.map(|(key, file)| Region { key, file }).collect();
            it.send(Request::SetMemTable(regions));
        },
        &["0x100000000", "0x100001000", "overlap"],
    ),
    (
        "rings-outside",
        |it| {
            let key = RegionKey { user_address: START + LEN, ..KEY };
            it.share(key, clone(&it.memory));
            it.rings();
        },
        &["at 0x1000", "are not all in the regions of memory"],
    ),
    (
        "kick-is-a-socket",
        |it| {
            it.share(KEY, clone(&it.memory));
            let file = UnixStream::pair().expect("sockets").0.into();
            it.send(Request::SetVringKick { ring: 1, file: Some(file) });
        },
        &["SET_VRING_KICK came with a socket", "eventfd"],
    ),
    (
        "call-is-a-full-pipe",
        |it| it.with_bell(full_pipe(), call),
        &["SET_VRING_CALL came with a pipe", "eventfd"],
    ),
    (
        "call-is-a-socket",
        |it| it.with_bell(UnixStream::pair().expect("sockets").0.into(), call),
        &["SET_VRING_CALL came with a socket", "eventfd"],
    ),
    (
        "call-is-memory",
        |it| it.with_bell(memory(LEN), call),
        &["the call of the tx queue: a file in the place of an event descriptor (eventfd)"],
    ),
    (
        "call-is-an-epoll",
        |it| it.with_bell(epoll::create(epoll::CreateFlags::CLOEXEC).expect("one"), call),
        &["the call of the tx queue: another descriptor without a name in the place of an event"],
    ),
    (
        "kick-is-a-full-pipe",
        |it| it.with_bell(full_pipe(), kick),
        &["SET_VRING_KICK came with a pipe", "eventfd"],
    ),
    (
        "kick-is-memory",
        |it| it.with_bell(memory(LEN), kick),
        &["the kick of the tx queue: a file in the place of an event descriptor (eventfd)"],
    ),
    (
        "ring-size",
        |it| {
            it.share(KEY, clone(&it.memory));
            it.send(Request::SetVringNum { ring: 1, size: 255 });
        },
        &["ring 1 has 255 entries", "up to 32768"],
    ),
    (
        "ran-ahead",
        |it| {
            it.transmit(0, 1000);
            it.begin();
        },
        &["tx queue", "avail index 1000 is 1000 ahead", "256 entries"],
    ),
    (
        "head",
        |it| {
            it.transmit(999, 1);
            it.begin();
        },
        &["tx queue", "descriptor 999", "256"],
    ),
    ("outside", |it| it.one((START + LEN - 4, 100)), &["are not all in the regions of memory"]),
    (
        "table-emptied",
        |it| {
            it.begin();
            it.send(Request::SetMemTable(Vec::new()));
        },
        &["withdrew all memory", "0x100000 bytes, regions: 1", "pairs: 1"],
    ),
    (
        "region-removed",
        |it| {
            let feature = VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS;
            it.send(Request::SetProtocolFeatures(feature));
            it.begin();
            it.enable();
            it.send(Request::RemMemReg(KEY));
        },
        &["withdrew all memory", "0x100000 bytes, regions: 1", "pairs: 1"],
    ),
    (
        "region-of-rings-removed",
        |it| {
            let feature = VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS;
            it.send(Request::SetProtocolFeatures(feature));
            it.begin();
            let beside = RegionKey {
                guest_address: START + LEN,
                user_address: KEY.user_address + LEN,
                ..KEY
            };
            it.send(Request::AddMemReg(Region { key: beside, file: clone(&it.memory) }));
            it.enable();
            it.send(Request::RemMemReg(KEY));
        },
        &["at 0x1000", "are not all in the regions of memory"],
    ),
    (
        "file-truncated",
        |it| {
            it.begin();
            it.enable();
            it.is_handled();
            ftruncate(&it.memory, 0).expect("it is not sealed");
            rustix::io::write(&it.kick, &1_u64.to_ne_bytes()).expect("a descriptor");
        },
        &["was truncated while it was in use", "0x100000 bytes", "0x100000000"],
    ),
    (
        "table-without-files",
        |it| {
            // Two regions, each of 32 bytes.
            let header = [5, 0, 0, 0, 1, 0, 0, 0, 72, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
            it.socket.write_all(&[&header[..], &[1; 64]].concat()).expect("the back-end reads");
        },
        &["SET_MEM_TABLE has 0 descriptors, expected 2"],
    ),
    (
        "call-that-blocks",
        |it| {
            it.desc(BUFFER);
            it.call = Some(event());
            it.begin();
            it.enable();
            let call = it.call.as_ref().expect("it was made");
            // Workers call when they take over a ring, each of the two.
            let mut called = 0;
            while called < 2 {
                let is_called = wait_readable(call, Some(PATIENCE)).expect("a descriptor");
                assert!(is_called, "the rings are taken over");
                let mut count = [0; 8];
                rustix::io::read(call, &mut count).expect("it was called");
                called += u64::from_ne_bytes(count);
            }
            rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
            // The back-end has set this flag, without which its next call blocks.
            let flags = fcntl_getfl(call).expect("flags");
            assert!(flags.contains(OFlags::NONBLOCK), "{flags:?}");
            fcntl_setfl(call, flags - OFlags::NONBLOCK).expect("it is ours");
            it.transmit(0, 1);
        },
        &["filled the counter of a call"],
    ),
    (
        "hundred-thousand-messages",
        |it| {
            let message = Request::GetFeatures.write(Ack::No).bytes();
            it.socket.set_nonblocking(false).expect("our own socket");
            it.socket.set_write_timeout(Some(SOON)).expect("our own socket");
            // Until it is closed.
            let _ = it.socket.write_all(&message.repeat(100_000));
        },
        &["64 replies wait", "does not read them"],
    ),
    (
        "half-a-message",
        |it| {
            let message = Request::SetFeatures(it.features).write(Ack::No).bytes();
            it.socket.write_all(&message[..13]).expect("the back-end reads");
        },
        &["13 of the 20 bytes of a message have come in 10 s"],
    ),
    (
        "area-lies",
        |it| {
            it.send(Request::SetProtocolFeatures(VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD));
            let len = u64::try_from(2 * inflight_split::len(usize::from(SIZE))).expect("small");
            let file = memory(len);
            let version = u64::try_from(inflight_split::VERSION).expect("small");
            rustix::io::pwrite(&file, &7_u16.to_ne_bytes(), version).expect("it is memory");
            it.send(Request::SetInflightFd(Area { rings: 2, size: SIZE, len, offset: 0, file }));
            it.begin();
            it.enable();
        },
        &["rx queue", "version 7, expected 1"],
    ),
    (
        "area-too-short",
        |it| {
            it.send(Request::SetProtocolFeatures(VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD));
            let (file, len) = (memory(4096), 4096);
            it.send(Request::SetInflightFd(Area { rings: 2, size: SIZE, len, offset: 0, file }));
        },
        &["SET_INFLIGHT_FD has 4096", "room for all its rings"],
    ),
];

/// Pings between honest guests, every 10 ms.
pub(crate) struct Pings<'a> {
    host: &'a Host,
    from: &'static str,
    to: &'static str,
    process: Running,
}

/// Pings of one process.
const PINGS: &str = "200";

impl Pings<'_> {
    pub(crate) fn start<'a>(host: &'a Host, from: &'static str, to: &'static str) -> Pings<'a> {
        let args = ["ping", "-nq", "-i0.01", "-W30", "-c", PINGS, to];
        let process = Running::start(host.in_guest(from, &args).stdout(Stdio::piped()));
        Pings { host, from, to, process }
    }

    /// Starts others if these have ended.
    fn go_on(&mut self) {
        if self.process.0.try_wait().expect("it was started").is_some() {
            let next = Pings::start(self.host, self.from, self.to);
            std::mem::replace(self, next).end();
        }
    }

    /// Waits for the last one. None may be lost.
    pub(crate) fn end(mut self) {
        self.process.wait("the pings", 6 * SOON);
        let mut said = String::new();
        let stdout = self.process.0.stdout.as_mut().expect("it was piped");
        stdout.read_to_string(&mut said).expect("text");
        assert!(
            said.contains(&format!("{PINGS} received")),
            "{} to {}: {said}",
            self.from,
            self.to
        );
    }
}

/// Has `a`, `b` and the honest guest keep each other's addresses, for which none asks then.
pub(crate) fn keep_neighbors(host: &Host, of_honest: &Path) {
    for (guest, address) in [("a", "10.77.0.2"), ("b", "10.77.0.1"), ("b", ADDRESS)] {
        host.keep_neighbor(guest, address);
    }
    wait_for_file(of_honest);
}

/// A front-end that asks as fast as it can, and reads the replies.
struct Chatter {
    should_end: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

/// A limit for each reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// Questions that a chatter asks at least.
const QUESTIONS_MIN: usize = 20_000;
/// Questions that it asks at once: their replies fit into the socket.
const QUESTIONS: usize = 32;

impl Chatter {
    fn start(socket: &Path) -> Chatter {
        let mut socket = UnixStream::connect(socket).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("our own socket");
        let should_end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&should_end);
        let thread = thread::spawn(move || {
            let question = Request::GetFeatures.write(Ack::No).bytes();
            // A reply has a number behind its header.
            let mut replies = vec![0; QUESTIONS * (question.len() + 8)];
            let mut count = 0;
            while count < QUESTIONS_MIN || !ends.load(Ordering::Relaxed) {
                socket.write_all(&question.repeat(QUESTIONS)).expect("the back-end reads");
                socket.read_exact(&mut replies).expect("it replies");
                count += QUESTIONS;
            }
            count
        });
        Chatter { should_end, thread }
    }

    /// Returns how many questions it asked.
    fn end(self) -> usize {
        self.should_end.store(true, Ordering::Relaxed);
        self.thread.join().expect("every question had its reply")
    }
}

#[test]
fn each_hostile_guest_is_disconnected_with_a_reason_and_honest_guests_lose_no_frame() {
    let Some(_turn) = ringway_e2e::shared_turn(&["ip", "ping", "socat", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let mut text = describe("max-queues = 2", &[("a", "", "queues = 2"), ("b", "", "queues = 2")]);
    for name in ATTACKS.iter().map(|(name, ..)| *name).chain(["honest", "chatter"]) {
        let socket = dir.join(name);
        let socket = socket.display();
        text += &format!(
            "[[vhost]]\nname = \"{name}\"\nsocket = \"{socket}\"\nqueues = 1\nmode = \"server\"\n"
        );
    }
    let host = Host::start(&text);
    let backend = host.pid_of("backend");
    let kept = dir.join("kept");
    let beside = keeping_neighbor("10.77.0.2", &kept);
    let _honest = guest_with(dir, "honest", Maker::Backend, &beside);
    EchoConnection::start(&host, "a").expect_progress(&host, "a guest of virtio");
    keep_neighbors(&host, &kept);
    let mut pings = [Pings::start(&host, "a", "10.77.0.2"), Pings::start(&host, "b", ADDRESS)];
    let chatter = Chatter::start(&dir.join("chatter"));
    // All at the same time, because half a message has 10 s.
    let attack = |(name, attack, _): &Attack| {
        pings.iter_mut().for_each(Pings::go_on);
        let mut rogue = Rogue::new(&dir.join(name));
        attack(&mut rogue);
        rogue
    };
    let _rogues: Vec<Rogue> = ATTACKS.iter().map(attack).collect();
    for (name, _, parts) in ATTACKS {
        pings.iter_mut().for_each(Pings::go_on);
        let vif = host.wait(&format!("{name}: {parts:?}"), SOON, |host| {
            let vif = host.vif(name)?;
            let error = vif.error.clone()?;
            parts.iter().all(|part| error.contains(part)).then_some(vif)
        });
        let reason = vif.error.clone().unwrap_or_default();
        println!("{name}: {reason}");
        assert!(vif.queues.is_empty(), "{name}: {vif:?}");
        // If the front-end stays, the reason is shown a moment before it is logged.
        let of_it = format!("vif=\"{name}\"");
        let is_said = |line: &&str| line.contains(&reason) && line.contains(&of_it);
        let lines = || host.log().lines().filter(is_said).count();
        host.wait("a line in the log", SOON, |_| (lines() > 0).then_some(()));
        assert_eq!(lines(), 1, "{name}: {reason}\n{}", host.log());
    }
    pings.into_iter().for_each(Pings::end);
    println!("{} questions of one front-end had replies meanwhile", chatter.end());
    for name in ["vif1.0", "vif2.0", "honest"] {
        let queues = host.vif(name).expect("it is there").queues;
        assert!(queues.iter().all(|queue| queue.dropped.is_empty()), "{queues:?}");
    }
    assert_eq!(host.pid_of("backend"), backend, "{}", host.log());
}
