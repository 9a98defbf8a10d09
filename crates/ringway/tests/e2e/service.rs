//! Notifications to the service manager, which the test replaces: sd_notify(3).

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringway_control::{BackendRequest, RunDir};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::host::{Host, Running, SOON, pair, send};
use crate::{shared_turn, turn};

/// How long the service manager waits for a keep-alive message.
const WATCHDOG: Duration = Duration::from_secs(2);

/// Receives messages of several lines, and returns them line by line.
struct Notices {
    socket: UnixDatagram,
    lines: VecDeque<String>,
}

impl Notices {
    /// The next line, if one arrives within this time.
    fn next(&mut self, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        while self.lines.is_empty() {
            let left = deadline.checked_duration_since(Instant::now())?;
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).expect("set");
            let mut message = [0; 4096];
            let Ok(len) = self.socket.recv(&mut message) else { continue };
            let text = String::from_utf8_lossy(&message[..len]).into_owned();
            self.lines.extend(text.lines().map(str::to_owned));
        }
        self.lines.pop_front()
    }

    /// Waits for a line, and returns those before it.
    fn wait_for(&mut self, wanted: &str, patience: Duration) -> Vec<String> {
        let mut before = Vec::new();
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next(left) {
                Some(line) if line == wanted => return before,
                Some(line) => before.push(line),
                None => panic!("waited {patience:?} for {wanted}, after {before:?}"),
            }
        }
    }
}

/// The status when the two guests of the test are served.
const CONNECTED: &str = "STATUS=2 vifs, 2 connected";

#[test]
fn a_service_manager_is_notified_of_readiness_keep_alives_and_the_end() {
    let Some(_turn) = turn(&[]) else { return };
    let place = tempfile::tempdir().expect("a directory can be made");
    let path = place.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    let mut notices = Notices { socket, lines: VecDeque::new() };
    let interval = WATCHDOG.as_micros().to_string();
    let variables = [
        ("NOTIFY_SOCKET", path.as_os_str()),
        ("WATCHDOG_USEC", OsStr::new(&interval)),
        // As if the supervisor itself were the target.
        ("WATCHDOG_PID", OsStr::new("1")),
    ];
    let host = Host::start_with(place, &pair(), &variables);

    // A long start, because of many vifs, sends keep-alive messages; both vifs may be connected by
    // then.
    let before = notices.wait_for("READY=1", SOON);
    let is_life = |line: &String| line.starts_with("STATUS=") || line == "WATCHDOG=1";
    assert!(before.iter().all(is_life), "{before:?}");
    if !before.iter().any(|line| line == CONNECTED) {
        notices.wait_for(CONNECTED, SOON);
    }
    // Each is due within half of the interval, and the control thread checks every half second.
    for _ in 0..3 {
        notices.wait_for("WATCHDOG=1", WATCHDOG);
    }

    let backend = host.pid_of("backend");
    send(backend, Signal::STOP);
    // One may be in flight.
    while notices.next(Duration::from_millis(100)).is_some() {}
    assert_eq!(notices.next(2 * WATCHDOG), None, "it is stopped");
    send(backend, Signal::CONT);
    // It was not stuck, and the watchdog does not report it.
    for _ in 0..4 {
        notices.wait_for("WATCHDOG=1", SOON);
    }
    assert_eq!(host.pid_of("backend"), backend);

    host.signal(Signal::TERM);
    notices.wait_for("STOPPING=1", SOON);
    let (status, _place, log) = host.ended();
    assert!(status.success(), "{status}\n{log}");
}

/// A host whose backend has a watchdog and can be disturbed.
fn watched() -> (Host, Notices) {
    let place = tempfile::tempdir().expect("a directory can be made");
    let path = place.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    let interval = WATCHDOG.as_micros().to_string();
    let variables = [
        ("NOTIFY_SOCKET", path.as_os_str()),
        ("WATCHDOG_USEC", OsStr::new(&interval)),
        ("RINGWAY_TEST_PANICS", OsStr::new("1")),
    ];
    let host = Host::start_with(place, &pair(), &variables);
    (host, Notices { socket, lines: VecDeque::new() })
}

#[test]
fn a_stuck_worker_ends_the_process_with_a_reason_and_all_vifs_are_served_again() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    for (asleep, restarts, reason) in [(false, 1, "is in a loop"), (true, 1, "is blocked")] {
        let (host, _notices) = watched();
        let connected =
            |host: &Host| host.vif("vif1.0").filter(|vif| vif.state == "Connected").map(|_| ());
        host.wait("the vif", SOON, connected);
        let request = BackendRequest::Stall { vif: "vif1.0".to_owned(), asleep };
        let socket = RunDir::new(host.dir()).backend();
        ringway_control::send_request::<_, ()>(&socket, &request)
            .expect("it does as the test wants");
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

#[test]
fn a_starved_backend_is_left_alone() {
    let Some(_turn) = turn(&["ping"]) else { return };
    let (host, _notices) = watched();
    host.wait("the vif", SOON, |host| host.vif("vif1.0").filter(|vif| vif.state == "Connected"));
    let backend = host.pid_of("backend");
    let cpu = *ringway_sys::process::allowed_cpus().expect("listed").last().expect("one at least");
    let busy = BusyCpu::start(cpu);
    let mut only = CpuSet::new();
    only.set(cpu);
    for thread in fs::read_dir(format!("/proc/{backend}/task")).expect("listed").flatten() {
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
        let id = id.expect("a thread's number");
        sched_setaffinity(Some(id), &only).expect("it is allowed");
        rustix::process::setpriority_process(Some(id), 19).expect("lower is allowed");
    }
    // Work for it, with which it makes little progress.
    let flood = Running::start(&mut host.in_guest("a", &["ping", "-q", "-i", "0.01", "10.77.0.2"]));
    thread::sleep(4 * WATCHDOG);
    drop(flood);
    drop(busy);
    assert_eq!(host.pid_of("backend"), backend, "{}", host.log());
    let log = host.log();
    assert!(!log.contains("so that a new one can serve"), "{log}");
    host.ping("a", "10.77.0.2");
}

#[test]
fn the_supervisor_of_tenants_reports_for_all_processes() {
    let Some(_turn) = turn(&[]) else { return };
    let place = tempfile::tempdir().expect("a directory can be made");
    let path = place.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    let mut notices = Notices { socket, lines: VecDeque::new() };
    let interval = WATCHDOG.as_micros().to_string();
    let variables = [("NOTIFY_SOCKET", path.as_os_str()), ("WATCHDOG_USEC", OsStr::new(&interval))];
    let host =
        Host::start_with(place, &pair().replace("[host]", "[host]\nisolate = true"), &variables);
    let before = notices.wait_for("READY=1", SOON);
    if !before.iter().any(|line| line == CONNECTED) {
        notices.wait_for(CONNECTED, SOON);
    }
    for _ in 0..3 {
        notices.wait_for("WATCHDOG=1", WATCHDOG);
    }
    // The supervisor replaces a tenant that hangs, without ending the others.
    send(host.pid_of("tenant domain-1"), Signal::STOP);
    for _ in 0..3 {
        notices.wait_for("WATCHDOG=1", WATCHDOG);
    }
    host.signal(Signal::TERM);
    notices.wait_for("STOPPING=1", SOON);
    let (status, _place, log) = host.ended();
    assert!(status.success(), "{status}\n{log}");
}
