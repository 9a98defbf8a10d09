//! A stock QEMU as front-end: its firmware drives the first pair of queues, so no guest system is
//! needed.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringway_vhost::Backend;
use ringway_vhost_shell::{BackendEnd, Endpoint, Mode, State};
use ringway_wire::virtio::VIRTIO_F_VERSION_1;
use tempfile::TempDir;

use crate::device::{PATIENCE, Recorder, until};

const QEMU: &str = "qemu-system-x86_64";

/// The file with what QEMU reports.
const LOG: &str = "log";

/// A virtual machine, ended when it is dropped.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory of a machine that is shared with us.
const SHARED: &str =
    "-machine memory-backend=m -object memory-backend-memfd,id=m,size=64M,share=on";

/// Starts a virtual machine, unless QEMU is not installed.
fn start(dir: &Path, chardev: &str, memory: &str) -> Option<Machine> {
    let arguments = [
        "-accel tcg -display none -nodefaults -boot n -m 64 -machine q35",
        memory,
        &format!("-chardev socket,id=c,path={}/net,{chardev}", dir.display()),
        "-netdev vhost-user,id=n,chardev=c,queues=2",
        "-device virtio-net-pci,netdev=n,mq=on,vectors=0",
        &format!("-qmp unix:{}/qmp,server=on,wait=off", dir.display()),
    ];
    let arguments = arguments.iter().flat_map(|part| part.split_whitespace());
    let started = Command::new(QEMU)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(dir.join(LOG)).expect("created"))
        .spawn();
    match started {
        Ok(child) => Some(Machine(child)),
        Err(error) => {
            println!("SKIPPED: {QEMU}: {error}: install qemu-system-x86");
            None
        }
    }
}

/// The machine's monitor. Its replies are never awaited: the thread that serves the monitor may be
/// waiting for the back-end, which runs on the test's own thread.
struct Monitor(UnixStream);

impl Monitor {
    fn open(dir: &Path) -> Monitor {
        let started = Instant::now();
        let socket = loop {
            match UnixStream::connect(dir.join("qmp")) {
                Ok(socket) => break socket,
                Err(error) => assert!(started.elapsed() < PATIENCE, "the monitor: {error}"),
            }
            // waits: looks again until QEMU listens
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut monitor = Monitor(socket);
        monitor.command("qmp_capabilities");
        monitor
    }

    fn command(&mut self, name: &str) {
        let line = format!("{{\"execute\":\"{name}\"}}\n");
        self.0.write_all(line.as_bytes()).expect("the socket has room for a line");
    }
}

fn end(dir: &Path, mode: Mode) -> BackendEnd {
    BackendEnd::new(Endpoint::new(&dir.join("net"), mode, Instant::now()).expect("a place"))
}

#[test]
fn qemu_listens_and_its_rings_are_served_through_resets_and_restarts_of_ours() {
    let dir = TempDir::new().expect("a directory");
    let Some(_machine) = start(dir.path(), "server=on", SHARED) else { return };
    let (mut back, mut device) = (end(dir.path(), Mode::Client), Recorder::new(2));
    until(&mut back, &mut device, "served", |end, _| end.state() == State::Serving);
    assert!(device.negotiated.features.has(VIRTIO_F_VERSION_1));
    assert!(!device.memory.is_empty());
    // Our back-end ends, and the next one dials: rings continue without the guest's involvement.
    drop(back);
    let (mut back, mut device) = (end(dir.path(), Mode::Client), Recorder::new(2));
    until(&mut back, &mut device, "served again", |end, _| end.state() == State::Serving);
    // The machine reboots, and its driver starts again.
    let mut monitor = Monitor::open(dir.path());
    monitor.command("system_reset");
    until(&mut back, &mut device, "stopped", |end, _| end.state() != State::Serving);
    until(&mut back, &mut device, "served after a reset", |end, _| end.state() == State::Serving);
    monitor.command("quit");
    until(&mut back, &mut device, "left", |end, _| end.state() == State::Disconnected);
    assert_eq!(device.notes, ["Connected", "Disconnected"], "nothing of it is an error");
}

#[test]
fn qemu_dials_a_socket_of_ours() {
    let dir = TempDir::new().expect("a directory");
    let (mut back, mut device) = (end(dir.path(), Mode::Server), Recorder::new(2));
    let Some(_machine) = start(dir.path(), "reconnect=1", SHARED) else { return };
    until(&mut back, &mut device, "served", |end, _| end.state() == State::Serving);
    drop(back);
    let mut back = end(dir.path(), Mode::Server);
    let mut device = Recorder::new(2);
    until(&mut back, &mut device, "served again", |end, _| end.state() == State::Serving);
}

#[test]
fn memory_of_qemus_own_is_named_as_what_is_missing() {
    let dir = TempDir::new().expect("a directory");
    let Some(_machine) = start(dir.path(), "server=on", "") else { return };
    let (mut back, mut device) = (end(dir.path(), Mode::Client), Recorder::new(2));
    until(&mut back, &mut device, "a reason", |end, _| {
        end.error().is_some_and(|reason| reason.contains("share=on"))
    });
    // It is no passing state.
    let since = Instant::now();
    until(&mut back, &mut device, "time", |end, _| {
        assert!(end.error().is_some_and(|reason| reason.contains("share=on")), "{:?}", end.error());
        // waits: nothing ends this state; a busy machine sees less of it.
        since.elapsed() > Duration::from_secs(1)
    });
}

#[test]
fn an_mtu_that_is_refused_is_named_with_the_limit() {
    let dir = TempDir::new().expect("a directory");
    let more = format!("{SHARED} -global virtio-net-pci.host_mtu=9500");
    let Some(_machine) = start(dir.path(), "server=on", &more) else { return };
    let (mut back, mut device) = (end(dir.path(), Mode::Client), Recorder::new(2));
    until(&mut back, &mut device, "a reason", |end, _| {
        end.error().is_some_and(|reason| reason.contains("an MTU of 9500 (QEMU: host_mtu)"))
    });
    let reason = back.error().expect("there was one");
    assert!(reason.contains("68 to 9000 is possible here"), "{reason}");
    assert_eq!(device.notes, ["Connected".to_owned(), format!("Stopped({reason:?})")]);
}

#[test]
fn for_more_queues_than_are_offered_qemu_names_both_numbers_and_the_end_says_where() {
    let dir = TempDir::new().expect("a directory");
    let Some(_machine) = start(dir.path(), "server=on", SHARED) else { return };
    let (mut back, mut device) = (end(dir.path(), Mode::Client), Recorder::new(1));
    until(&mut back, &mut device, "a reason", |end, _| {
        end.error().is_some_and(|reason| reason.contains("the number of queues, which is 1"))
    });
    // The front-end does not send its own number, but QEMU's log has it beside ours.
    let reason = back.error().expect("there was one");
    let words = "you are asking more queues than supported: 1";
    assert!(reason.contains(words), "{reason}");
    let said = std::fs::read_to_string(dir.path().join(LOG)).expect("QEMU writes it");
    println!("QEMU: {said}the end: {reason}");
    assert!(said.contains(&format!("queues=2: {words}")), "{said}");
    assert_eq!(device.notes, ["Connected".to_owned(), format!("Left({reason:?})")]);
}

#[test]
fn qemu_that_ends_before_its_guest_runs_is_not_said_to_need_more_queues() {
    let dir = TempDir::new().expect("a directory");
    let Some(_machine) = start(dir.path(), "server=on", &format!("{SHARED} -S")) else { return };
    let (mut back, mut device) = (end(dir.path(), Mode::Client), Recorder::new(2));
    until(&mut back, &mut device, "two pairs", |end, _| {
        end.session().is_some_and(Backend::has_more_pairs)
    });
    let mut monitor = Monitor::open(dir.path());
    monitor.command("quit");
    until(&mut back, &mut device, "left", |end, _| end.state() == State::Disconnected);
    assert_eq!(device.notes, ["Connected", "Disconnected"], "{:?}", back.error());
}
