//! The process at the other end of a socket, as another PID namespace sees it.

use std::env;
use std::ffi::OsStr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use ringway_sys::process::peer_of;

/// Names the socket to the program that the test starts.
const LISTENER: &str = "RINGWAY_TEST_LISTENER";

#[test]
fn the_peer_outside_the_pid_namespace_is_unknown() {
    if let Some(path) = env::var_os(LISTENER) {
        let socket = UnixStream::connect(path).expect("it listens");
        return assert_eq!(peer_of(&socket).expect("a socket"), None);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let _listener = UnixListener::bind(&path).expect("bound");
    let unshare = |program: &OsStr| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork"]).arg(program);
        command
    };
    if !unshare("true".as_ref()).status().is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED: this machine gives us no PID namespace");
    }
    let mut inside = unshare(env::current_exe().expect("this program").as_os_str());
    inside.args(["--exact", "the_peer_outside_the_pid_namespace_is_unknown"]);
    let output = inside.env(LISTENER, &path).output().expect("it ran before");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
