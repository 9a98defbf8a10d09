//! A guest that brings its own TCP/IP, beside a guest with a kernel.

use std::fs::File;
use std::process::{Command, Stdio};

use ringway_e2e::host::{Host, Running, SOON, describe, send};
use ringway_e2e::shared_turn;
use rustix::process::Signal;

/// Bytes of the long response: many times every buffer on the way.
const LONG: usize = 4_000_000;
/// Its path, and the time limit for `curl` in seconds.
const LONG_PATH: &str = "bytes/4000000";
const SECONDS_MAX: &str = "60";

/// More short requests, one after the other, than the server has sockets.
const SHORT_COUNT: usize = 20;

#[test]
fn a_guest_without_a_kernel_serves_http_and_survives_its_backend() {
    let Some(_turn) = shared_turn(&["curl"]) else { return };
    let host = Host::start(&describe("max-queues = 2", &[("a", "", "queues = 2")]));
    let output = host.file("unikernel");
    let mut unikernel = Command::new(env!("CARGO_BIN_EXE_ringway-unikernel"));
    unikernel.arg("--dir").arg(host.dir()).args(["--address", "10.77.0.9/24"]);
    unikernel.stdin(Stdio::null()).stdout(File::create(&output).expect("created"));
    let mut unikernel = Running::start(&mut unikernel);
    let url = "http://10.77.0.9/";
    let lines = |_: &Host| std::fs::read_to_string(&output).ok().map(|text| text.lines().count());
    host.wait("the unikernel to connect", SOON, |host| lines(host).filter(|count| *count == 1));

    // It wants no multicast frames, and the next backend knows that.
    let wants_none = |host: &Host| {
        let own = host.vifs().into_iter().find(|vif| vif.name != "vif1.0")?;
        own.groups_wanted.filter(Vec::is_empty)
    };
    host.wait("its request of multicast frames", SOON, wants_none);

    // A kernel that gets no reply to three ARP requests, a second apart, refuses to connect.
    host.wait("its first response", SOON, |host| {
        let first = ["curl", "-s", "--fail", "--max-time", SECONDS_MAX, url];
        let output = host.in_guest("a", &first).output().expect("it can be started");
        output.status.success().then_some(())
    });
    let curl = |path: &str| {
        let url = format!("{url}{path}");
        host.guest_text("a", &["curl", "-sS", "--fail", "--max-time", SECONDS_MAX, &url])
    };
    for _ in 0..SHORT_COUNT {
        assert!(curl("").contains("smoltcp"));
    }
    let long = curl(LONG_PATH);
    assert_eq!(long.len(), LONG);
    assert!(long.bytes().all(|byte| byte == b'x'));

    send(host.pid_of("backend"), Signal::KILL);
    host.wait("its request to be known again", SOON, wants_none);
    assert_eq!(curl(LONG_PATH).len(), LONG, "after a new backend has taken its rings over");

    send(unikernel.0.id(), Signal::TERM);
    assert!(unikernel.wait("the unikernel to leave", 2 * SOON).success());
    host.wait("its vif to go", SOON, |host| (host.vifs().len() == 1).then_some(()));
}
