//! Both of our ends, and hostile ones.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringway_vhost::backend::{FEATURES, Missing, PROTOCOL_FEATURES};
use ringway_vhost::frontend::Event;
use ringway_vhost::request::{Ack, Request};
use ringway_vhost_shell::{
    BackendEnd, Connection, ConnectionSource, Endpoint, Mode, Obstacle, PART_MAX, State, TURN_READS,
};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tempfile::TempDir;

use crate::device::{PATIENCE, Recorder, until};
use crate::guest::{Guest, region};

fn end(path: &Path, mode: Mode) -> BackendEnd {
    BackendEnd::new(Endpoint::new(path, mode, Instant::now()).expect("a place to meet"))
}

/// An end that makes a socket, in a directory for as long as that lives, and its device.
fn server() -> (TempDir, PathBuf, BackendEnd, Recorder) {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("vm1.sock");
    let end = end(&path, Mode::Server);
    (dir, path, end, Recorder::new(2))
}

#[test]
fn a_socket_is_dialled_when_it_appears() {
    let dir = TempDir::new().expect("a directory");
    // Even the directory is missing.
    let path = dir.path().join("run/vm1.sock");
    let (mut end, mut device) = (end(&path, Mode::Client), Recorder::new(2));
    assert!(!end.turn(&mut device, Instant::now()).expect("it waits"));
    let obstacle = end.error().expect("there is no front-end");
    assert!(obstacle.contains("/run does not exist: create it"), "{obstacle}");
    assert!(!end.lacks_guest(), "no machine can create its socket there");
    assert_eq!(end.due(), None, "it waits for the directory, and does not poll");
    fs::create_dir(dir.path().join("run")).expect("a directory");
    let mut is_watched = false;
    until(&mut end, &mut device, "watched", |_, _| std::mem::replace(&mut is_watched, true));
    assert!(end.lacks_guest(), "its machine may be off: {:?}", end.error());
    let listener = UnixListener::bind(&path).expect("a socket");
    until(&mut end, &mut device, "met", |end, _| end.session().is_some());
    let waits = "the driver of the guest is not ready, or its machine is paused";
    assert_eq!((end.error().as_deref(), end.lacks_guest()), (Some(waits), true));
    let (socket, _) = listener.accept().expect("it has connected");
    Guest::new(socket).serve(&mut end, &mut device);
    assert_eq!((end.error(), end.lacks_guest()), (None, false));
    assert_eq!(device.negotiated.features, FEATURES);
}

/// A capability that a test may have goes with its thread.
#[test]
fn of_a_socket_that_may_not_be_used_the_owner_and_the_rights_are_named() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("vm1.sock");
    let _listener = UnixListener::bind(&path).expect("a socket");
    fs::set_permissions(&path, Permissions::from_mode(0o140)).expect("it is ours");
    let mut sets = capabilities(None).expect("our own");
    sets.effective.remove(CapabilitySet::DAC_OVERRIDE);
    set_capabilities(None, sets).expect("fewer than before");
    let (mut end, mut device) = (end(&path, Mode::Client), Recorder::new(2));
    end.turn(&mut device, Instant::now()).expect("it waits");
    let obstacle = end.error().expect("it may not be used");
    let owner = fs::metadata(&path).expect("it is there").uid();
    let expected = format!("no permission, user {owner} has it with mode 140: it must be writable");
    assert!(obstacle.contains(&expected), "{obstacle}");
    assert!(!end.lacks_guest());
}

#[test]
fn a_link_of_another_user_to_a_socket_is_not_followed() {
    let dir = TempDir::new().expect("a directory");
    let (path, link) = (dir.path().join("other.sock"), dir.path().join("vm1.sock"));
    let listener = UnixListener::bind(&path).expect("a socket");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    if std::os::unix::fs::lchown(&link, Some(65534), None).is_err() {
        println!("SKIPPED: a link of another user, which only root can make here");
        return;
    }
    let (mut end, mut device) = (end(&link, Mode::Client), Recorder::new(2));
    end.turn(&mut device, Instant::now()).expect("it waits");
    let obstacle = end.error().expect("it may not be used");
    assert!(obstacle.contains("leads over a symbolic link of another user"), "{obstacle}");
    listener.set_nonblocking(true).expect("set");
    listener.accept().expect_err("nothing has connected");
}

#[test]
fn a_socket_that_is_there_is_dialled_at_once_and_again_when_its_owner_comes_back() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("vm1.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let (mut end, mut device) = (end(&path, Mode::Client), Recorder::new(2));
    end.turn(&mut device, Instant::now()).expect("it is there");
    let (socket, _) = listener.accept().expect("it has connected");
    let mut guest = Guest::new(socket);
    guest.serve(&mut end, &mut device);
    drop((guest, listener));
    fs::remove_file(&path).expect("its owner removes it");
    until(&mut end, &mut device, "left", |end, _| end.state() == State::Disconnected);
    assert!(device.served.is_empty() && device.memory.is_empty());
    let listener = UnixListener::bind(&path).expect("a socket");
    until(&mut end, &mut device, "met again", |end, _| end.session().is_some());
    Guest::new(listener.accept().expect("it has connected").0).serve(&mut end, &mut device);
    assert_eq!(device.notes, ["Connected", "Disconnected", "Connected"]);
}

/// Leaves a socket at which no one listens: a process that another test is just starting has it,
/// too, until it executes its program.
fn leave(listener: UnixListener, path: &Path) {
    drop(listener);
    let started = Instant::now();
    while UnixStream::connect(path).is_ok() {
        assert!(started.elapsed() < PATIENCE, "someone listens");
        std::thread::yield_now();
    }
}

#[test]
fn front_ends_dial_a_socket_that_we_make() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("vm1.sock");
    let mut device = Recorder::new(2);
    // A socket that an earlier process has left is replaced.
    leave(UnixListener::bind(&path).expect("a socket"), &path);
    let mut end = end(&path, Mode::Server);
    for _ in 0..2 {
        let mut guest = Guest::new(UnixStream::connect(&path).expect("it listens"));
        guest.serve(&mut end, &mut device);
        drop(guest);
        until(&mut end, &mut device, "left", |end, _| end.state() == State::Disconnected);
    }
    let taken = Endpoint::new(&path, Mode::Server, Instant::now()).expect_err("it is taken");
    assert!(taken.to_string().contains("another process listens at it"), "{taken}");
}

#[test]
fn what_is_missing_of_a_queue_is_said_also_when_its_front_end_has_left() {
    let (_dir, path, mut end, mut device) = server();
    let mut guest = Guest::new(UnixStream::connect(&path).expect("it listens"));
    let missing =
        "ring 1, on which the guest transmits, has no size, no addresses, no base, no kick";
    guest.begin(&mut end, &mut device, 0..1, |end, _| end.error().as_deref() == Some(missing));
    drop(guest);
    until(&mut end, &mut device, "left", |end, _| end.state() == State::Disconnected);
    let left = format!("the front-end disconnected before it was served: {missing}");
    assert_eq!(end.error(), Some(left));
}

#[test]
fn a_removed_socket_of_ours_is_made_again_and_never_replaces_another() {
    let dir = TempDir::new().expect("a directory");
    let inner = dir.path().join("sockets");
    let path = inner.join("vm1.sock");
    fs::create_dir(&inner).expect("a directory");
    let mut device = Recorder::new(2);
    let mut end = end(&path, Mode::Server);
    let mut later = |end: &mut BackendEnd| {
        let due = end.due().expect("a check");
        end.turn(&mut device, due).expect("it waits");
        end.error().expect("no front-end has connected")
    };
    fs::remove_file(&path).expect("it was made");
    assert!(later(&mut end).starts_with("no front-end has connected"));
    assert!(path.exists(), "it was made again");
    fs::remove_dir_all(&inner).expect("a directory");
    let missing = format!("the directory {} does not exist: create it", inner.display());
    assert!(later(&mut end).contains(&missing));
    fs::create_dir(&inner).expect("a directory");
    let other = UnixListener::bind(&path).expect("another process is first");
    let replaced = later(&mut end);
    assert!(replaced.starts_with("another process has replaced the socket"), "{replaced}");
    assert!(path.exists());
    leave(other, &path);
    later(&mut end);
    UnixStream::connect(&path).expect_err("the socket of the other process stays");
    fs::remove_file(&path).expect("its owner removes it");
    later(&mut end);
    UnixStream::connect(&path).expect("it was made again");
    end.source().remove_socket().expect("it is ours");
    assert!(!path.exists());
    let other = UnixListener::bind(&path).expect("a socket");
    end.source().remove_socket().expect("it is left");
    assert!(path.exists());
    drop(other);
}

#[test]
fn a_socket_is_made_again_when_a_front_end_leaves() {
    let (_dir, path, mut end, mut device) = server();
    let guest = UnixStream::connect(&path).expect("it listens");
    until(&mut end, &mut device, "connected", |end, _| end.session().is_some());
    fs::remove_file(&path).expect("it was made");
    drop(guest);
    until(&mut end, &mut device, "made again", |_, _| path.exists());
}

#[test]
fn a_socket_for_back_ends_is_not_made_again_as_a_confined_guest_may_not() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("guest.sock");
    let made = Endpoint::new(&path, Mode::Server, Instant::now()).expect("a place to meet");
    let mut endpoint = made.with_back_ends();
    fs::remove_file(&path).expect("it was made");
    let due = endpoint.due().expect("a check");
    assert!(endpoint.poll_connection(due).expect("it waits").is_none());
    let obstacle = &endpoint.obstacle().expect("it has one").reason;
    assert!(obstacle.ends_with("was removed: start this guest again"), "{obstacle}");
    assert!(!path.exists());
}

#[test]
fn many_idle_sockets_are_checked_together() {
    let dir = TempDir::new().expect("a directory");
    let start = Instant::now();
    let mut all: Vec<Endpoint> = (0..20_u32)
        .map(|at| {
            let made = start + at * Duration::from_millis(100);
            let path = dir.path().join(at.to_string());
            Endpoint::new(&path, Mode::Server, made).expect("a place to meet")
        })
        .collect();
    let mut turns = 0;
    while let Some(due) = all.iter().filter_map(Endpoint::due).min() {
        if due > start + Duration::from_secs(60) {
            break;
        }
        turns += 1;
        for endpoint in &mut all {
            assert!(endpoint.poll_connection(due).expect("it waits").is_none());
        }
    }
    assert!(turns <= 12, "{turns}");
}

#[test]
fn a_socket_of_another_type_and_a_missing_directory_have_their_remedies() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("packets");
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let other = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&other, &SocketAddrUnix::new(&path).expect("short")).expect("it is free");
    listen(&other, 1).expect("a socket");
    let expected = format!("{} is a socket of another program", path.display());
    let refused = Endpoint::new(&path, Mode::Server, Instant::now()).expect_err("refused");
    assert!(refused.to_string().starts_with(&expected), "{refused}");
    let obstacle = |path: &Path| {
        let (mut end, mut device) = (end(path, Mode::Client), Recorder::new(2));
        end.turn(&mut device, Instant::now()).expect("it waits");
        end.error().expect("an obstacle")
    };
    assert!(obstacle(&path).starts_with(&expected), "{}", obstacle(&path));
    let missing = dir.path().join("missing");
    let path = missing.join("vm1.sock");
    let (missing, shown) = (missing.display(), path.display());
    let expected = format!("{shown}: the directory {missing} does not exist: create it");
    assert_eq!(obstacle(&path), expected);
    let refused = Endpoint::new(&path, Mode::Server, Instant::now());
    assert_eq!(refused.expect_err("refused").to_string(), expected);
}

#[test]
fn a_pause_after_front_ends_that_left_at_once_is_reported() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("vm1.sock");
    let mut endpoint = Endpoint::new(&path, Mode::Server, Instant::now()).expect("a place");
    let mut now = Instant::now();
    for _ in 0..8 {
        assert!(endpoint.awaited().reason.starts_with("no front-end has connected"));
        let _front_end = UnixStream::connect(&path).expect("it listens");
        assert!(endpoint.poll_connection(now).expect("it waits").is_some());
        endpoint.disconnected(now);
        now = endpoint.due().expect("a pause");
    }
    // The last pause was 1.28 s.
    let Obstacle { reason: awaited, is_absence } = endpoint.awaited();
    assert!(awaited.contains("is accepted at") && !is_absence, "{awaited}");
    assert!(awaited.contains("in at most 2 s, because earlier ones"), "{awaited}");
    assert!(endpoint.poll_connection(now).expect("it waits").is_none());
    assert!(endpoint.awaited().reason.starts_with("no front-end has connected"));
}

/// `connect(2)` refuses a connection to a regular file as it refuses one to a dead socket.
#[test]
fn a_file_at_the_path_of_a_socket_stays() {
    let dir = TempDir::new().expect("a directory");
    let (file, dead, link) =
        (dir.path().join("passwd"), dir.path().join("dead"), dir.path().join("link"));
    fs::write(&file, "root").expect("a file");
    drop(UnixListener::bind(&dead).expect("a socket"));
    std::os::unix::fs::symlink(&dead, &link).expect("a link");
    for path in [dir.path(), &file, &link] {
        let refused = Endpoint::new(path, Mode::Server, Instant::now()).expect_err("refused");
        let refused = refused.to_string();
        assert!(refused.contains("exists and is not a socket: choose another path"), "{refused}");
    }
    let (mut end, mut device) = (end(&file, Mode::Client), Recorder::new(2));
    end.turn(&mut device, Instant::now()).expect("it waits");
    assert!(end.error().expect("an obstacle").contains("exists and is not a socket"));
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "root");
    assert!(link.is_symlink() && dead.exists());
}

#[test]
fn a_flood_of_messages_and_half_a_message_have_no_more_than_a_turn() {
    let (mut ends, mut devices, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    let dir = TempDir::new().expect("a directory");
    for name in ["flood", "half", "good"] {
        let path = dir.path().join(name);
        ends.push(end(&path, Mode::Server));
        devices.push(Recorder::new(2));
        sockets.push(UnixStream::connect(&path).expect("it listens"));
    }
    let good = sockets.pop().expect("three are there");
    let mut half = sockets.pop().expect("three are there");
    let mut flood = sockets.pop().expect("three are there");
    half.write_all(&Request::SetFeatures(FEATURES).write(Ack::No).bytes()[..13]).expect("room");
    flood.set_nonblocking(true).expect("a socket of ours");
    let owner = Request::SetOwner.write(Ack::No).bytes().repeat(1000);
    let mut guest = Guest::new(good);
    let [flooded, halved, served] = &mut ends[..] else { panic!("three ends") };
    let [one, two, three] = &mut devices[..] else { panic!("three devices") };
    let mut was_cut = false;
    let mut has_begun = false;
    // Its clock stands still, however long it takes until the third is served.
    let now = Instant::now();
    until(served, three, "served", |end, device| {
        // As fast as possible.
        while flood.write(&owner).is_ok_and(|sent| sent == owner.len()) {}
        was_cut |= flooded.turn(one, Instant::now()).expect("it is met");
        halved.turn(two, now).expect("it is met");
        guest.turn();
        if !has_begun && guest.events.iter().any(|it| matches!(it, Event::Negotiated(_))) {
            has_begun = true;
            guest.hand_over(0..4);
        }
        end.state() == State::Serving && device.served.len() == 2
    });
    assert!(was_cut, "a turn has {TURN_READS} reads");
    assert_eq!(halved.state(), State::Waiting(Missing::Driver));
    assert_eq!(halved.error().as_deref(), Some("13 of the 20 bytes of a message have come"));
    let due = halved.due().expect("the rest is awaited");
    halved.turn(two, due - Duration::from_millis(1)).expect("it is met");
    assert_eq!(halved.state(), State::Waiting(Missing::Driver));
    halved.turn(two, due).expect("it is met");
    assert_eq!(halved.state(), State::Disconnected);
    let reason = "13 of the 20 bytes of a message have come in 10 s, and not the rest";
    assert_eq!(halved.error().as_deref(), Some(reason));
    assert_eq!(two.notes, ["Connected".to_owned(), format!("Closed({reason:?})")]);
}

#[test]
fn a_message_may_come_in_pieces_and_the_next_has_its_own_time() {
    let (_dir, path, mut end, mut device) = server();
    let mut socket = UnixStream::connect(&path).expect("it listens");
    let bytes = Request::SetOwner.write(Ack::No).bytes();
    let mut now = Instant::now();
    for _ in 0..3 {
        for piece in bytes.chunks(5) {
            socket.write_all(piece).expect("there is room");
            end.turn(&mut device, now).expect("it is met");
            now += PART_MAX / 4;
        }
        assert_eq!(end.due(), None, "nothing is incomplete");
    }
    assert_eq!(device.notes, ["Connected"]);
}

#[test]
fn a_protocol_violation_closes_the_connection_and_delays_the_next() {
    let (_dir, path, mut end, mut device) = server();
    let (mut pauses, mut now) = (Vec::new(), Instant::now());
    for closed in 1..=3 {
        let mut socket = UnixStream::connect(&path).expect("it listens");
        let wrong = Request::SetVringNum { ring: 4, size: 256 }.write(Ack::No);
        socket.write_all(&wrong.bytes()).expect("there is room");
        while device.notes.len() < 2 * closed {
            now = end.due().unwrap_or(now);
            end.turn(&mut device, now).expect("it is met");
        }
        pauses.push(end.due().expect("a pause").duration_since(now));
        assert_eq!(socket.read(&mut [0]).expect("it was closed"), 0);
    }
    let reason = end.error().expect("a reason");
    assert!(reason.starts_with("SET_VRING_NUM is for ring 4, expected one of 4"), "{reason}");
    assert!(pauses[2] > pauses[0], "{pauses:?}");
}

#[test]
fn a_client_that_reads_no_reply_is_disconnected() {
    let (_dir, path, mut end, mut device) = server();
    let mut socket = UnixStream::connect(&path).expect("it listens");
    socket.set_nonblocking(true).expect("a socket of ours");
    let asked = Request::GetFeatures.write(Ack::No).bytes();
    until(&mut end, &mut device, "closed", |_, device| {
        while socket.write(&asked).is_ok_and(|sent| sent == asked.len()) {}
        device.notes.iter().any(|note| note.starts_with("Closed"))
    });
    let reason = end.error().expect("a reason");
    assert_eq!(reason, "64 replies wait, and the front-end does not read them");
}

#[test]
fn memory_removed_while_rings_run_may_return_and_is_reported_once() {
    let (_dir, path, mut end, mut device) = server();
    let mut guest = Guest::new(UnixStream::connect(&path).expect("it listens"));
    guest.serve(&mut end, &mut device);
    for _ in 0..3 {
        guest.session.ask(Request::SetMemTable(Vec::new()));
        until(&mut end, &mut device, "stopped", |end, device| {
            guest.turn();
            device.served.is_empty() && end.state() == State::Waiting(Missing::Memory)
        });
        let reason = end.error().expect("nothing is served");
        assert!(
            reason.contains("(0x100000 bytes, regions: 1) while rings in it were running"),
            "{reason}"
        );
        guest.session.ask(Request::SetMemTable(vec![region()]));
        until(&mut end, &mut device, "served", |end, device| {
            guest.turn();
            end.state() == State::Serving && device.served.len() == 2
        });
        assert_eq!(end.error(), None);
    }
    let said = device.notes.iter().filter(|note| note.starts_with("Stopped(")).count();
    assert_eq!((said, device.notes.len()), (1, 2), "{:?}", device.notes);
}

#[test]
fn what_the_host_refuses_ends_the_connection_with_its_reason() {
    let (_dir, path, mut end, mut device) = server();
    device.refusal = Some("the region is longer than its file".to_owned());
    let mut socket = UnixStream::connect(&path).expect("it listens");
    socket
        .write_all(&Request::SetMemTable(Vec::new()).write(Ack::No).bytes())
        .expect("there is room");
    until(&mut end, &mut device, "closed", |_, device| device.notes.len() == 2);
    assert_eq!(end.error().as_deref(), Some("the region is longer than its file"));
}

#[test]
fn a_front_end_that_leaves_after_it_read_the_number_of_queues_may_want_more() {
    let (_dir, path, mut end, mut device) = server();
    let mut socket = UnixStream::connect(&path).expect("it listens");
    for request in [Request::SetProtocolFeatures(PROTOCOL_FEATURES), Request::GetQueueNum] {
        socket.write_all(&request.write(Ack::No).bytes()).expect("there is room");
    }
    drop(socket);
    until(&mut end, &mut device, "left", |_, device| device.notes.len() == 2);
    let reason = end.error().expect("a reason");
    assert!(reason.contains("number of queues, which is 2"), "{reason}");
}

/// A socket whose close takes this long: it has unread bytes.
fn lingering(time: Duration) -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("it has one");
    let mut socket = TcpStream::connect(address).expect("it listens");
    let (other, _) = listener.accept().expect("it has connected");
    socket.set_nonblocking(true).expect("a socket of ours");
    while socket.write(&[0; 1 << 16]).is_ok() {}
    set_socket_linger(&socket, Some(time)).expect("a socket of ours");
    (socket.into(), other)
}

#[test]
fn a_descriptor_that_takes_long_to_close_delays_no_other() {
    let (_dir, path, mut end, mut device) = server();
    let socket = UnixStream::connect(&path).expect("it listens");
    socket.set_nonblocking(true).expect("a socket of ours");
    let mut front_end = Connection::new(socket.into());
    let (file, other) = lingering(2 * PATIENCE);
    let started = Instant::now();
    // A request that is not stored.
    let request = Request::SetVringErr { ring: 0, file: Some(file) }.write(Ack::No);
    front_end.send(request).expect("there is room");
    until(&mut end, &mut device, "closed", |_, device| device.notes.len() == 2);
    assert!(started.elapsed() < PATIENCE, "a turn waits for it");
    let reason = end.error().expect("a reason");
    assert!(reason.starts_with("SET_VRING_ERR came with a socket, expected an event"), "{reason}");
    // The next connection waits until this one is closed, which the other end can speed up.
    let _next = UnixStream::connect(&path).expect("it listens");
    let due = end.due();
    until(&mut end, &mut device, "put off", |end, _| end.due() > due);
    assert!(end.session().is_none());
    set_socket_linger(&other, Some(Duration::ZERO)).expect("a socket of ours");
    drop(other);
    until(&mut end, &mut device, "met", |end, _| end.session().is_some());
}

#[test]
fn a_front_end_that_fails_early_waits_longer_each_time() {
    let (_dir, path, mut end, mut device) = server();
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let mut guest = Guest::new(UnixStream::connect(&path).expect("it listens"));
        guest.serve(&mut end, &mut device);
        let now = Instant::now();
        end.close(&mut device, "a fault of its rings", now);
        pauses.push(end.source().due().expect("a pause").duration_since(now));
    }
    assert!(pauses[2] > pauses[0], "{pauses:?}");
}

#[test]
fn nothing_is_read_while_an_area_is_on_its_way_by_another_hand() {
    let (_dir, path, mut end, mut device) = server();
    let socket = UnixStream::connect(&path).expect("it listens");
    let mut guest = Guest::new(socket.try_clone().expect("a descriptor"));
    guest.serve(&mut end, &mut device);
    until(&mut end, &mut device, "acknowledged", |_, _| {
        guest.turn();
        !guest.session.is_waiting()
    });
    guest.session.ask(Request::GetInflightFd { rings: 4, size: 256 });
    guest.session.ask(Request::GetStatus);
    until(&mut end, &mut device, "asked", |_, device| {
        guest.turn();
        device.wanted.is_some()
    });
    let wanted = device.wanted.take().expect("it was asked for");
    // Packed queues were negotiated: 32 bytes, and 32 for each descriptor, aligned to 64.
    assert_eq!((wanted.rings, wanted.size, wanted.len), (4, 256, 4 * 8256));
    assert!(end.waker().is_none(), "what comes meanwhile waits");
    assert!(!end.turn(&mut device, Instant::now()).expect("a place"));
    assert!(!guest.events.iter().any(|event| matches!(event, Event::Status(_))));
    // The work of the other process.
    let reply = wanted.reply(memfd_create("area", MemfdFlags::CLOEXEC).expect("a file"));
    guest.session.take(reply).expect("it was asked for");
    end.on_area_sent(&mut device, Ok(()), Instant::now());
    until(&mut end, &mut device, "replied to", |_, _| {
        guest.turn();
        guest.events.iter().any(|event| matches!(event, Event::Status(_)))
    });
    let area = guest.events.iter().position(|event| matches!(event, Event::Area(_)));
    let Event::Area(area) = guest.events.remove(area.expect("it came")) else { unreachable!() };
    guest.session.ask(Request::SetInflightFd(area));
    until(&mut end, &mut device, "handed over", |_, device| {
        guest.turn();
        device.area.is_some()
    });
    // If the area cannot be made, the front-end would wait for ever.
    guest.session.ask(Request::GetInflightFd { rings: 4, size: 256 });
    until(&mut end, &mut device, "asked", |_, device| {
        guest.turn();
        device.wanted.is_some()
    });
    end.on_area_sent(&mut device, Err("there is no memory".to_owned()), Instant::now());
    assert_eq!(end.error().as_deref(), Some("there is no memory"));
}
