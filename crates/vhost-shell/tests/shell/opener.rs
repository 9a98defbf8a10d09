//! Sockets that one process opens for another.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use ringway_control::{Link, OpenerNews, OpenerOrder, Received};
use ringway_vhost_shell::{Mode, Opener, Turn, Wanted};
use serde_json::Value;
use tempfile::TempDir;

/// An opener, and the backend's end of the link.
fn pair() -> (Opener, Link) {
    let (ours, theirs) = Link::pair().expect("descriptors");
    (Opener::new(Link::new(theirs)), ours)
}

fn wanted(dir: &Path, name: &str, mode: Mode) -> Wanted {
    let path = dir.join(name);
    Wanted { name: name.to_owned(), path, mode, vhost: Value::Null, at_run_time: true }
}

/// All that has come, in words, and the last connection.
fn news(backend: &Link) -> (Vec<String>, Option<OwnedFd>) {
    let (mut all, mut connection) = (Vec::new(), None);
    loop {
        match backend.receive().expect("a message") {
            Received::Message(news, files) => {
                connection = files.into_iter().next().or(connection);
                all.push(match news {
                    OpenerNews::Added { name, .. } => format!("{name} added"),
                    OpenerNews::Removed { name } => format!("{name} removed"),
                    OpenerNews::Connected { name } => format!("{name} connected"),
                    OpenerNews::Waits { name, .. } => format!("{name} waits"),
                    OpenerNews::Ready => "ready".to_owned(),
                });
            }
            Received::Nothing | Received::End => return (all, connection),
        }
    }
}

/// Both ends of a connection have the same bytes.
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
    // The next one waits until the backend wants it, and no longer than a pause.
    let second = UnixStream::connect(dir.path().join("vm")).expect("it listens");
    opener.turn(now).expect("a link");
    assert!(news(&backend).0.is_empty());
    let again = OpenerOrder::Again { name: "vm".to_owned(), was_good: true };
    backend.send(&again, &[]).expect("there is room");
    opener.turn(now).expect("a link");
    opener.turn(now + Duration::from_secs(1)).expect("a link");
    let (all, connection) = news(&backend);
    assert_eq!(all.last().map(String::as_str), Some("vm connected"));
    is_connected(connection.expect("its descriptor"), &second);
    opener.remove("vm");
    assert!(!dir.path().join("vm").exists());
    backend.send(&OpenerOrder::Done { name: "vm".to_owned(), error: None }, &[]).expect("room");
    let Turn::Outcomes(outcomes) = opener.turn(now).expect("a link") else { panic!("it is there") };
    assert_eq!(outcomes, [("vm".to_owned(), Ok(()))]);
    assert_eq!(news(&backend).0, ["vm removed"]);
    drop(backend);
    assert!(matches!(opener.turn(now), Ok(Turn::End)));
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
    let deadline = now + Duration::from_secs(20);
    let connection = loop {
        opener.turn(Instant::now()).expect("a link");
        if let (_, Some(connection)) = news(&backend) {
            break connection;
        }
        assert!(Instant::now() < deadline, "it is not dialled");
        std::thread::sleep(Duration::from_millis(5));
    };
    let (other, _) = listener.accept().expect("it is dialled");
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
        let again = OpenerOrder::Again { name: name.to_owned(), was_good: false };
        backend.send(&again, &[]).expect("there is room");
    }
    opener.turn(now).expect("a link");
    assert_eq!(news(&backend).0, ["vm added", "vm waits"]);
    std::fs::create_dir(dir.path().join("later")).expect("it can be made");
    assert!(opener.due().is_some_and(|due| due > now));
    opener.turn(now + Duration::from_secs(5)).expect("a link");
    UnixStream::connect(dir.path().join("later/vm")).expect("it listens");
}
