//! Notifications to the service manager, which the test replaces: sd_notify(3).

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ringway_control::BackendRequest;
use ringway_e2e::host::{Host, Running, SOON, number, pair, ringway, send, stop_threads, wait_for};
use ringway_e2e::shared_turn;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::panics::{disturb, panic_over};

/// How long the service manager waits for a keep-alive message.
const WATCHDOG: Duration = Duration::from_secs(2);
/// A limit for each message.
const PATIENCE: Duration = Duration::from_secs(60);

/// Receives messages of several lines, and returns them line by line.
struct Notices {
    socket: UnixDatagram,
    /// Each with the process that sent it.
    lines: VecDeque<(u32, String)>,
}

impl Notices {
    /// A host with further variables that reports to these.
    fn of(description: &str, more: &[(&str, &str)]) -> (Host, Notices) {
        let place = tempfile::tempdir().expect("a directory can be made");
        let path = place.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("bound");
        set_socket_passcred(&socket, true).expect("our own socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("our own socket");
        let interval = WATCHDOG.as_micros().to_string();
        let ours = [("NOTIFY_SOCKET", path.as_os_str()), ("WATCHDOG_USEC", OsStr::new(&interval))];
        let more = more.iter().map(|(name, value)| (*name, OsStr::new(value)));
        let variables: Vec<_> = ours.into_iter().chain(more).collect();
        let host = Host::start_with(place, description, &variables);
        (host, Notices { socket, lines: VecDeque::new() })
    }

    /// Receives a message, or returns without one if the flags forbid to wait.
    fn receive(&mut self, flags: RecvFlags) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let (mut control, mut message) = (RecvAncillaryBuffer::new(&mut space), [0; 4096]);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut message)], &mut control, flags)?;
        let sender = control.drain().find_map(|it| match it {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
            _ => None,
        });
        let sender = sender.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
        let sender = sender.expect("the kernel tells who sends");
        let text = String::from_utf8_lossy(&message[..received.bytes]).into_owned();
        self.lines.extend(text.lines().map(|line| (sender, line.to_owned())));
        Ok(())
    }

    /// Waits for a line, and returns all up to it.
    fn up_to(&mut self, wanted: &str) -> Vec<(u32, String)> {
        loop {
            if let Some(last) = self.lines.iter().position(|(_, line)| line == wanted) {
                return self.lines.drain(..=last).collect();
            }
            let received = self.receive(RecvFlags::empty());
            received.unwrap_or_else(|error| panic!("{wanted}: {error} after {:?}", self.lines));
        }
    }

    /// Waits for a number of keep-alive messages, which must be of one process.
    fn expect_keep_alive(&mut self, count: usize, sender: u32) {
        for _ in 0..count {
            let last = self.up_to(KEEP_ALIVE).pop();
            assert_eq!(last.map(|(pid, _)| pid), Some(sender));
        }
    }

    /// Everything that the supervisor passes on of what it has got so far. Its description must be
    /// wrong: then it reports a reload without help, after it has passed on what it found.
    fn passed_on(&mut self, host: &Host) -> Vec<(u32, String)> {
        let mut all = Vec::new();
        // The first report may overtake what came while it was made.
        for _ in 0..2 {
            host.signal(Signal::HUP);
            all.extend(self.up_to("READY=1"));
        }
        all
    }

    /// Forgets everything so far.
    fn forget(&mut self) {
        while self.receive(RecvFlags::DONTWAIT).is_ok() {}
        self.lines.clear();
    }
}

const KEEP_ALIVE: &str = "WATCHDOG=1";
/// The status when the two guests of the test are served.
const CONNECTED: &str = "STATUS=2 vifs, 2 connected";

#[test]
fn readiness_is_reported_by_the_process_that_the_service_manager_started() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let (host, mut notices) = Notices::of(&pair(), &[]);
    let supervisor = host.pid_of("ringway run");
    let mut all = notices.up_to("READY=1");
    host.signal(Signal::TERM);
    all.extend(notices.up_to("STOPPING=1"));
    assert!(all.iter().all(|(sender, _)| *sender == supervisor), "{supervisor}: {all:?}");
}

#[test]
fn a_reload_is_reported_from_its_begin_to_its_end() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let (host, mut notices) = Notices::of(&pair(), &[]);
    let supervisor = host.pid_of("ringway run");
    notices.up_to("READY=1");
    for text in [pair(), pair() + "[hots]\n"] {
        fs::write(host.file("host.toml"), text).expect("written");
        host.signal(Signal::HUP);
        let all = [notices.up_to("RELOADING=1"), notices.up_to("READY=1")].concat();
        let has_time = |(_, line): &(u32, String)| line.starts_with("MONOTONIC_USEC=");
        assert!(all.iter().any(has_time), "{all:?}");
        assert!(all.iter().all(|(sender, _)| *sender == supervisor), "{all:?}");
    }
}

#[test]
fn a_service_manager_is_notified_of_readiness_keep_alives_and_the_end() {
    let Some(_turn) = shared_turn(&[]) else { return };
    // As if the supervisor itself were the target.
    let (host, mut notices) = Notices::of(&pair(), &[("WATCHDOG_PID", "1")]);

    // A long start, because of many vifs, sends keep-alive messages; both vifs may be connected by
    // then.
    let before = notices.up_to("READY=1");
    let (_, earlier) = before.split_last().expect("it is one");
    let is_life = |(_, line): &(u32, String)| line.starts_with("STATUS=") || line == KEEP_ALIVE;
    assert!(earlier.iter().all(is_life), "{before:?}");
    if !before.iter().any(|(_, line)| line == CONNECTED) {
        notices.up_to(CONNECTED);
    }
    // They are passed on from the process that does the work: while it is stopped, none comes.
    let (supervisor, backend) = (host.pid_of("ringway run"), host.pid_of("backend"));
    notices.expect_keep_alive(2, supervisor);
    stop_threads(backend);
    fs::write(host.file("host.toml"), "[hots]\n").expect("written");
    notices.passed_on(&host);
    // waits: longer than a thread may be stuck; one of its own would come meanwhile.
    thread::sleep(2 * WATCHDOG);
    let passed_on = notices.passed_on(&host);
    assert!(passed_on.iter().all(|(_, line)| line != KEEP_ALIVE), "{passed_on:?}");
    send(backend, Signal::CONT);
    // It was not stuck, and its watchdog says that it did not run.
    notices.expect_keep_alive(2, supervisor);
    assert_eq!(host.pid_of("backend"), backend);
    let log = host.log();
    assert!(log.contains("watchdog of this process did not run for"), "{log}");

    host.signal(Signal::TERM);
    notices.up_to("STOPPING=1");
    let (status, _place, log) = host.ended();
    assert!(status.success(), "{status}\n{log}");
}

/// Runs a program as ringway-host.service does: in the network of its caller, with three rights of
/// root's, and without a view of processes that have fewer. Needs root.
const AS_SERVICE: &str = "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 12345 \
    --regid 12345 --clear-groups --no-new-privs \
    --bounding-set=-all,+net_admin,+dac_override,+setgid \
    --inh-caps=+net_admin,+dac_override,+setgid --ambient-caps=+net_admin,+dac_override,+setgid \
    \"$@\"";

#[test]
fn a_service_without_root_serves_the_network_of_its_host() {
    let Some(_turn) = shared_turn(&["ip", "setpriv", "unshare"]) else { return };
    if !rustix::process::geteuid().is_root() {
        ringway_e2e::say("SKIPPED: a service without root: only root may start one");
        return;
    }
    let place = tempfile::tempdir().expect("a directory can be made");
    let (dir, path) = (place.path().join("own/run"), place.path().join("notify"));
    fs::create_dir_all(&dir).expect("made");
    fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    for dir in [&place.path().join("own"), &dir] {
        fs::set_permissions(dir, PermissionsExt::from_mode(0o700)).expect("ours");
        std::os::unix::fs::chown(dir, Some(12345), Some(12345)).expect("root may");
    }
    let config = place.path().join("host.toml");
    let socket = place.path().join("vm1.sock");
    let vhost = format!("[[vhost]]\nname = \"vm1\"\nsocket = \"{}\"\n", socket.display());
    let uplink = "[uplink]\naddresses = [\"10.77.0.254/24\"]\n";
    fs::write(&config, uplink.to_owned() + &vhost).expect("written");
    let mut notices =
        Notices { socket: UnixDatagram::bind(&path).expect("bound"), lines: VecDeque::new() };
    set_socket_passcred(&notices.socket, true).expect("our own socket");
    notices.socket.set_read_timeout(Some(PATIENCE)).expect("our own socket");
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--mount",
        "sh",
        "-c",
        AS_SERVICE,
        "sh",
        ringway().get_program().to_str().expect("a path"),
    ]);
    command.args(["run", "--config"]).arg(&config).arg("--dir").arg(&dir);
    command.env("NOTIFY_SOCKET", &path).env("STATE_DIRECTORY", place.path().join("own"));
    let mut service = Running::start(&mut command);
    notices.up_to("STATUS=1 vifs, 0 connected");
    notices.up_to("READY=1");
    let net = format!("--net=/proc/{}/ns/net", service.0.id());
    let shown = Command::new("nsenter").args([&net, "ip", "addr", "show", "ringway0"]).output();
    let shown = String::from_utf8_lossy(&shown.expect("util-linux").stdout).into_owned();
    assert!(shown.contains("10.77.0.254/24"), "{shown}");
    assert!(place.path().join("own/host.toml.accepted").exists());
    let mut killed = None;
    for _ in 0..3 {
        let backend = wait_for("the next backend", SOON, || {
            let state = fs::read(dir.join("state.json")).expect("it keeps its state");
            let state: serde_json::Value = serde_json::from_slice(&state).expect("JSON");
            let processes = state["processes"].as_array().expect("a list");
            let backend = processes.iter().find(|it| it["name"] == "backend")?;
            Some(number(&backend["pid"])).filter(|pid| Some(*pid) != killed)
        });
        send(backend, Signal::KILL);
        killed = Some(backend);
        notices.up_to("STATUS=1 vifs, 0 connected");
    }
    send(service.0.id(), Signal::TERM);
    notices.up_to("STOPPING=1");
    assert!(service.wait("the service to end", 2 * SOON).success());
}

/// A host whose backend has a watchdog and can be disturbed.
fn watched() -> (Host, Notices) {
    Notices::of(&pair(), &[("RINGWAY_TEST_PANICS", "1")])
}

#[test]
fn a_stuck_worker_ends_the_process_with_a_reason_and_all_vifs_are_served_again() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    for (asleep, restarts, reason) in [(false, 1, "is in a loop"), (true, 1, "is blocked")] {
        let (host, _notices) = watched();
        let connected =
            |host: &Host| host.vif("vif1.0").filter(|vif| vif.state == "Connected").map(|_| ());
        host.wait("the vif", SOON, connected);
        disturb(&host, &BackendRequest::Stall { vif: "vif1.0".to_owned(), asleep });
        // Two seconds of CPU time, which take much longer on a busy machine.
        host.wait("the next backend", 12 * SOON, |host| {
            host.event("backend-restarted").filter(|event| event["restarts"] == restarts)
        });
        host.wait("the vif", SOON, connected);
        host.ping("a", "10.77.0.2");
        let log = host.log();
        let line = log.lines().find(|line| line.contains(reason));
        let line = line.unwrap_or_else(|| panic!("it says nothing: {log}"));
        assert!(line.contains("the thread worker"), "{line}");
    }
}

/// Busy loops of ordinary priority on one CPU, until they are dropped.
struct BusyCpu {
    stop: Arc<AtomicBool>,
    loops: Vec<thread::JoinHandle<()>>,
}

impl BusyCpu {
    fn start(cpu: usize) -> BusyCpu {
        let stop = Arc::new(AtomicBool::new(false));
        let one = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                ringway_sys::process::pin_current_thread(cpu).expect("it is allowed");
                while !stop.load(Ordering::Relaxed) {}
            })
        };
        BusyCpu { loops: (0..8).map(one).collect(), stop }
    }
}

impl Drop for BusyCpu {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.loops.drain(..).for_each(|it| it.join().expect("no panic"));
    }
}

/// How long a thread has waited for a CPU, by its folder in `/proc`.
fn starved(thread: &Path) -> Duration {
    // A thread that serves one request may have ended.
    let Ok(text) = fs::read_to_string(thread.join("schedstat")) else { return Duration::ZERO };
    let waited = text.split_ascii_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    Duration::from_nanos(waited.expect("a number"))
}

#[test]
fn a_starved_backend_is_left_alone() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let (host, _notices) = watched();
    host.wait("the vif", SOON, |host| host.vif("vif1.0").filter(|vif| vif.state == "Connected"));
    let backend = host.pid_of("backend");
    let cpu = *ringway_sys::process::allowed_cpus().expect("listed").last().expect("one at least");
    let busy = BusyCpu::start(cpu);
    let mut only = CpuSet::new();
    only.set(cpu);
    let threads: Vec<PathBuf> = fs::read_dir(format!("/proc/{backend}/task"))
        .expect("listed")
        .map(|thread| thread.expect("listed").path())
        .collect();
    for thread in &threads {
        let id =
            thread.file_name().and_then(|id| id.to_str()?.parse().ok()).and_then(Pid::from_raw);
        let id = id.expect("a thread's number");
        let set = sched_setaffinity(Some(id), &only)
            .and_then(|()| rustix::process::setpriority_process(Some(id), 19));
        assert!(matches!(set, Ok(()) | Err(Errno::SRCH)), "{set:?}");
    }
    // Work for it, with which it makes little progress.
    let flood = Running::start(&mut host.in_guest("a", &["ping", "-q", "-i", "0.01", "10.77.0.2"]));
    host.wait("a thread to be starved", 12 * SOON, |_| {
        (threads.iter().map(|thread| starved(thread)).max() >= Some(2 * WATCHDOG)).then_some(())
    });
    drop(flood);
    drop(busy);
    assert_eq!(host.pid_of("backend"), backend, "{}", host.log());
    let log = host.log();
    assert!(!log.contains("so that a new one can serve"), "{log}");
    host.ping("a", "10.77.0.2");
}

#[test]
fn the_supervisor_of_tenants_reports_for_all_processes() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let description = pair().replace("[host]", "[host]\nisolate = true");
    let (host, mut notices) = Notices::of(&description, &[]);
    let before = notices.up_to("READY=1");
    if !before.iter().any(|(_, line)| line == CONNECTED) {
        notices.up_to(CONNECTED);
    }
    let supervisor = host.pid_of("ringway run");
    notices.expect_keep_alive(2, supervisor);
    // It later replaces a tenant that hangs, without ending the others.
    let tenant = host.pid_of("tenant domain-1");
    send(tenant, Signal::STOP);
    notices.forget();
    notices.expect_keep_alive(2, supervisor);
    send(tenant, Signal::CONT);
    host.signal(Signal::TERM);
    notices.up_to("STOPPING=1");
    let (status, _place, log) = host.ended();
    assert!(status.success(), "{status}\n{log}");
}

#[test]
fn the_journal_has_the_priority_of_each_line() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let place = tempfile::tempdir().expect("a directory can be made");
    // The host writes its log into this file.
    let log = fs::File::create(place.path().join("log")).expect("created");
    let log = log.metadata().expect("it is open");
    let stream = format!("{}:{}", log.dev(), log.ino());
    let variables =
        [("JOURNAL_STREAM", OsStr::new(&stream)), ("RINGWAY_TEST_PANICS", OsStr::new("1"))];
    let host = Host::start_with(place, &pair(), &variables);
    panic_over(&host, "vif1.0", 1);
    host.signal(Signal::TERM);
    let (_, _place, log) = host.ended();
    assert!(log.contains(" INFO "), "{log}");
    // What Rust says of a panic is two lines, and an event follows.
    let is_of_panic = |line: &str| line.starts_with("<3>") && line.contains("a test asked for it");
    assert!(log.lines().any(is_of_panic), "{log}");
    let is_marked = |line: &str| match line.split_at_checked(3) {
        Some(("<3>", _)) => true,
        Some(("<4>", text)) => text.contains(" WARN "),
        Some(("<6>", text)) => text.contains(" INFO "),
        _ => false,
    };
    assert!(log.lines().all(is_marked), "{log}");
}
