//! Sockets that one process opens for another.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use ringway_control::{
    AreaWanted, AttacherEvent, AttacherOrder, DeviceWanted, Link, OpenerEvent, OpenerOrder,
    Received,
};
use ringway_vhost_shell::{
    Connection, Mode, Opener, Outcome, Received as Connected, Reloaded, Turn, VifNamespace,
    VifSocket,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::device::PATIENCE;

/// An opener, and the backend's end of the link.
fn pair() -> (Opener, Link) {
    let (ours, theirs) = Link::pair().expect("descriptors");
    (Opener::new(Link::new(theirs)), ours)
}

fn wanted(dir: &Path, name: &str, mode: Mode) -> VifSocket {
    let path = dir.join(name);
    VifSocket { name: name.to_owned(), path, mode, vhost: Value::Null, at_run_time: true }
}

/// All messages that have arrived, in words, and the last connection.
fn news(backend: &Link) -> (Vec<String>, Option<OwnedFd>) {
    let (mut all, mut connection) = (Vec::new(), None);
    loop {
        match backend.receive().expect("a message") {
            Received::Message(news, files) => {
                connection = files.into_iter().next().or(connection);
                all.push(match news {
                    OpenerEvent::Added { name, .. } => format!("{name} added"),
                    OpenerEvent::Removed { name } => format!("{name} removed"),
                    OpenerEvent::Connected { name } => format!("{name} connected"),
                    OpenerEvent::Waiting { name, is_failure: false, .. } => format!("{name} waits"),
                    OpenerEvent::Waiting { name, .. } => format!("{name} fails"),
                    OpenerEvent::AreaSent { name, error } => format!("{name} area {error:?}"),
                    OpenerEvent::Ready => "ready".to_owned(),
                    OpenerEvent::Described { vhost } => format!("{vhost} described"),
                    OpenerEvent::Reload { common, changed } => {
                        format!("reload {common} {changed:?}")
                    }
                    OpenerEvent::Refused => "refused".to_owned(),
                });
            }
            Received::Nothing | Received::End => return (all, connection),
        }
    }
}

/// The next connection, after a thread has closed the previous one.
fn next_connection(opener: &mut Opener, backend: &Link, now: Instant) -> Option<OwnedFd> {
    for turn in 0..6000 {
        opener.turn(now + turn * Duration::from_secs(1)).expect("a link");
        if let (_, Some(connection)) = news(backend) {
            return Some(connection);
        }
        // waits: looks again until the thread has closed it
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Checks that both ends of a connection are connected to each other.
fn is_connected(connection: OwnedFd, mut other: &UnixStream) {
    let mut connection = UnixStream::from(connection);
    connection.set_nonblocking(false).expect("a socket");
    other.write_all(b"?").expect("it is open");
    let mut byte = [0];
    connection.read_exact(&mut byte).expect("it is open");
    assert_eq!(&byte, b"?");
}

#[test]
fn a_socket_of_ours_is_passed_on_again_and_again_and_goes_with_its_vif() {
    let dir = TempDir::new().expect("a directory");
    let (mut opener, backend) = pair();
    let now = Instant::now();
    opener.add_now(wanted(dir.path(), "vm", Mode::Server), now).expect("it can be made");
    opener.turn(now).expect("a link");
    assert_eq!(news(&backend).0, ["vm added", "vm waits"]);
    let first = UnixStream::connect(dir.path().join("vm")).expect("it listens");
    opener.turn(now).expect("a link");
    let (all, connection) = news(&backend);
    assert_eq!(all, ["vm connected"]);
    is_connected(connection.expect("its descriptor"), &first);
    // The next connection waits until the backend wants it, and no longer than a pause.
    let second = UnixStream::connect(dir.path().join("vm")).expect("it listens");
    opener.turn(now).expect("a link");
    assert!(news(&backend).0.is_empty());
    let again = OpenerOrder::Disconnected { name: "vm".to_owned(), has_worked: true };
    backend.send(&again, &[]).expect("there is room");
    let connection = next_connection(&mut opener, &backend, now);
    is_connected(connection.expect("its descriptor"), &second);
    opener.remove("vm");
    assert!(!dir.path().join("vm").exists());
    backend.send(&OpenerOrder::Done { name: "vm".to_owned(), error: None }, &[]).expect("room");
    assert_eq!(outcomes(&mut opener, now), [Outcome::Vif("vm".to_owned(), Ok(()))]);
    assert_eq!(news(&backend).0, ["vm removed"]);
    drop(backend);
    until_end(&mut opener, now);
}

/// Takes turns until the backend is gone: a process that another test is just starting has its end
/// of the link, too, until it executes its program.
fn until_end(opener: &mut Opener, now: Instant) {
    let started = Instant::now();
    while !matches!(opener.turn(now).expect("a link"), Turn::End) {
        assert!(started.elapsed() < PATIENCE, "the link has no end");
        std::thread::yield_now();
    }
}

/// All that the backend has said.
fn outcomes(opener: &mut Opener, now: Instant) -> Vec<Outcome> {
    let Turn::Outcomes(outcomes) = opener.turn(now).expect("a link") else { panic!("it is there") };
    outcomes
}

#[test]
fn a_description_is_sent_although_nothing_else_happens() {
    let (mut opener, backend) = pair();
    let now = Instant::now();
    backend.send(&OpenerOrder::Reload, &[]).expect("there is room");
    assert_eq!(outcomes(&mut opener, now), [Outcome::ReloadWanted]);
    assert_eq!(opener.due(), None);
    let changed = vec!["uplink.vlan".to_owned()];
    opener.describe(vec!["vm1".into(), "vm2".into()], ("common".into(), changed), now);
    assert!(opener.due().is_some_and(|due| due <= now));
    assert!(outcomes(&mut opener, now).is_empty());
    let reload = "reload \"common\" [\"uplink.vlan\"]";
    assert_eq!(news(&backend).0, ["\"vm1\" described", "\"vm2\" described", reload]);
    let names = || (vec!["vm1".to_owned()], vec!["vm3".to_owned()]);
    for error in [None, Some("it cannot be".to_owned())] {
        let (added, removed) = names();
        let order = OpenerOrder::Reloaded { added, removed, error: error.clone() };
        backend.send(&order, &[]).expect("there is room");
        let (added, removed) = names();
        let expected = error.map_or(Ok(Reloaded { added, removed }), Err);
        assert_eq!(outcomes(&mut opener, now), [Outcome::Described(expected)]);
    }
    opener.refuse(now);
    assert!(opener.due().is_some_and(|due| due <= now));
    assert!(outcomes(&mut opener, now).is_empty());
    assert_eq!(news(&backend).0, ["refused"]);
}

#[test]
fn a_file_that_replaced_a_socket_of_ours_outlives_the_vif() {
    let dir = TempDir::new().expect("a directory");
    let (mut opener, _backend) = pair();
    let now = Instant::now();
    opener.add_now(wanted(dir.path(), "vm", Mode::Server), now).expect("it can be made");
    let path = dir.path().join("vm");
    std::fs::remove_file(&path).expect("a socket");
    std::fs::write(&path, "notes").expect("a file");
    opener.remove("vm");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "notes");
}

#[test]
fn without_the_group_only_sockets_of_front_ends_can_be_used() {
    let dir = TempDir::new().expect("a directory");
    let (opener, _backend) = pair();
    let mut opener = opener.with_group(Err("no group `vms`".to_owned()));
    let now = Instant::now();
    let refused = opener.add_now(wanted(dir.path(), "vm", Mode::Server), now);
    assert_eq!(refused.expect_err("its group is unknown").to_string(), "no group `vms`");
    assert!(!dir.path().join("vm").exists());
    opener.add_now(wanted(dir.path(), "theirs", Mode::Client), now).expect("it can be watched");
}

#[test]
fn a_socket_of_a_front_end_is_dialled_when_it_is_there_and_stays_the_front_ends() {
    let dir = TempDir::new().expect("a directory");
    let (mut opener, backend) = pair();
    let now = Instant::now();
    opener.add(wanted(dir.path(), "vm", Mode::Client), now);
    opener.turn(now).expect("a link");
    opener.ready();
    opener.turn(now).expect("a link");
    assert_eq!(news(&backend).0, ["vm added", "vm waits", "ready"]);
    let listener = UnixListener::bind(dir.path().join("vm")).expect("it can be made");
    let deadline = now + PATIENCE;
    let connection = loop {
        opener.turn(Instant::now()).expect("a link");
        if let (_, Some(connection)) = news(&backend) {
            break connection;
        }
        assert!(Instant::now() < deadline, "no connection");
        // waits: looks again until the next attempt is due
        std::thread::sleep(Duration::from_millis(5));
    };
    let (other, _) = listener.accept().expect("it connects");
    is_connected(connection, &other);
    opener.remove("vm");
    assert!(dir.path().join("vm").exists());
}

#[test]
fn orders_for_vifs_that_are_not_there_do_nothing_and_what_cannot_be_made_is_tried_again() {
    let dir = TempDir::new().expect("a directory");
    let (mut opener, backend) = pair();
    let now = Instant::now();
    let early = wanted(&dir.path().join("later"), "vm", Mode::Server);
    let error = opener.add_now(wanted(&dir.path().join("later"), "vm", Mode::Server), now);
    assert!(error.expect_err("no directory").to_string().contains("later/vm"));
    opener.add(early, now);
    for name in ["other", "vm"] {
        let again = OpenerOrder::Disconnected { name: name.to_owned(), has_worked: false };
        backend.send(&again, &[]).expect("there is room");
    }
    opener.turn(now).expect("a link");
    assert_eq!(news(&backend).0, ["vm added", "vm fails"]);
    std::fs::create_dir(dir.path().join("later")).expect("it can be made");
    assert!(opener.due().is_some_and(|due| due > now));
    opener.turn(now + Duration::from_secs(5)).expect("a link");
    UnixStream::connect(dir.path().join("later/vm")).expect("it listens");
}

#[test]
fn a_front_end_gets_areas_that_the_backend_may_neither_make_nor_send() {
    let dir = TempDir::new().expect("a directory");
    let (mut opener, backend) = pair();
    let now = Instant::now();
    opener.add_now(wanted(dir.path(), "vm", Mode::Server), now).expect("it can be made");
    let area = |rings, size, len| OpenerOrder::Area {
        name: "vm".to_owned(),
        wanted: AreaWanted { rings, size, len },
    };
    let mut ask = |order: &OpenerOrder| {
        backend.send(order, &[]).expect("there is room");
        opener.turn(now).expect("a link");
        news(&backend).0.into_iter().find(|it| it.contains("area")).expect("a reply")
    };
    assert!(ask(&area(2, 256, 8320)).contains("there is no front-end"));
    let socket = UnixStream::connect(dir.path().join("vm")).expect("it listens");
    socket.set_nonblocking(true).expect("a socket of ours");
    let mut front_end = Connection::new(socket.into());
    while ask(&area(2, 256, 1 << 40)).contains("no front-end") {}
    assert!(ask(&area(2, 256, 1 << 40)).contains("expected at most"));
    assert_eq!(ask(&area(2, 256, 8320)), "vm area None");
    // Its header, followed by its payload.
    let mut received = (0..2).map(|_| front_end.receive().expect("it is whole"));
    let Some(Connected::Message(message)) = received.nth(1) else { panic!("no area came") };
    assert_eq!((message.request, message.files.len()), (31, 1));
    // Bytes, file offset, rings and entries of each.
    let parts = [&8320_u64.to_ne_bytes()[..], &[0; 8], &[2, 0, 0, 1], &[0; 4]];
    assert_eq!(message.payload, parts.concat());
    let stat = rustix::fs::fstat(&message.files[0]).expect("a file");
    assert_eq!(stat.st_size, 8320);
    // A front-end that reads none has room for only some of them.
    let refused = (0..1000).map(|_| ask(&area(2, 256, 8320))).find(|it| it != "vm area None");
    let refused = refused.expect("there is a limit");
    assert!(refused.contains("no room") || refused.contains("more than 128"), "{refused}");
}

#[test]
fn a_backend_that_was_asked_to_end_leaves_no_socket_and_a_killed_one_leaves_all() {
    let dir = TempDir::new().expect("a directory");
    let now = Instant::now();
    for (order, stays) in [(Some(OpenerOrder::Leave), false), (None, true)] {
        let (mut opener, backend) = pair();
        opener.add_now(wanted(dir.path(), "ours", Mode::Server), now).expect("it can be made");
        opener.add_now(wanted(dir.path(), "theirs", Mode::Client), now).expect("it is watched");
        let theirs = UnixListener::bind(dir.path().join("theirs")).expect("a socket");
        opener.turn(now).expect("a link");
        if let Some(order) = order {
            backend.send(&order, &[]).expect("there is room");
        } else {
            drop(backend);
        }
        until_end(&mut opener, now);
        assert_eq!(dir.path().join("ours").exists(), stays);
        assert!(dir.path().join("theirs").exists(), "it is not ours");
        drop(theirs);
        std::fs::remove_file(dir.path().join("theirs")).expect("its owner removes it");
    }
}

/// The vif `web` of a namespace.
fn namespace() -> VifNamespace {
    let device = DeviceWanted {
        netns: "/run/netns/web".into(),
        name: "eth0".to_owned(),
        mac: None,
        mtu: 1500,
        addresses: Vec::new(),
        queues: 1,
    };
    VifNamespace { name: "web".to_owned(), device, vhost: Value::Null, at_run_time: false }
}

#[test]
fn the_device_of_a_namespace_is_passed_on_again_and_again_and_goes_with_its_vif() {
    let (opener, backend) = pair();
    let (attacher, theirs) = Link::pair().expect("descriptors");
    let mut opener = opener.with_attacher(Some(Link::new(theirs)));
    let now = Instant::now();
    let order = || match attacher.receive().expect("a message") {
        Received::Message(order, _) => Some(order),
        Received::Nothing | Received::End => None,
    };
    let name = || "web".to_owned();
    let report = |event: AttacherEvent| {
        let file = std::fs::File::open("/dev/null").expect("it is there");
        attacher.send(&event, &[file.as_fd()]).expect("there is room");
    };
    opener.attach(namespace(), now);
    assert!(opener.has("web", None));
    opener.turn(now).expect("a link");
    assert_eq!(news(&backend).0, ["web added"]);
    let device = namespace().device;
    assert_eq!(order(), Some(AttacherOrder::Attach { name: name(), device }));
    report(AttacherEvent::Waiting {
        name: name(),
        reason: "it is missing".to_owned(),
        is_absence: true,
    });
    report(AttacherEvent::Made { name: name() });
    opener.turn(now).expect("a link");
    let (heard, device) = news(&backend);
    assert_eq!((heard, device.is_some()), (vec!["web waits".into(), "web connected".into()], true));
    let lost = OpenerOrder::Disconnected { name: name(), has_worked: true };
    backend.send(&lost, &[]).expect("there is room");
    opener.turn(now).expect("a link");
    assert_eq!(order(), Some(AttacherOrder::Again { name: name() }));
    opener.remove("web");
    // What was in flight is of no vif any more.
    report(AttacherEvent::Made { name: name() });
    opener.turn(now).expect("a link");
    assert_eq!(order(), Some(AttacherOrder::Detach { name: name() }));
    assert_eq!(news(&backend).0, ["web removed"]);
    opener.attach(namespace(), now);
    opener.turn(now).expect("a link");
    assert!(matches!(order(), Some(AttacherOrder::Attach { .. })));
    opener.remove_unserved("web", now);
    assert_eq!(opener.due(), Some(now), "for the order");
    opener.turn(now).expect("a link");
    assert_eq!(order(), Some(AttacherOrder::Detach { name: name() }));
    drop(attacher);
    opener.turn(now).expect_err("all are started again");
}

#[test]
fn a_host_that_began_without_a_namespace_has_to_be_restarted_for_one() {
    let (mut opener, backend) = pair();
    let now = Instant::now();
    opener.attach(namespace(), now);
    opener.turn(now).expect("a link");
    assert_eq!(news(&backend).0, ["web added", "web waits"]);
}
