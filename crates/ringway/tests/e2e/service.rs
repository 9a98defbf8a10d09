//! What a service manager is told, which the test plays: sd_notify(3).

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::host::{Host, SOON, pair, send};
use crate::turn;

/// What the service manager waits for a sign of life.
const WATCHDOG: Duration = Duration::from_secs(2);

/// Receives messages of several lines, and gives them out line by line.
struct Notices {
    socket: UnixDatagram,
    lines: VecDeque<String>,
}

impl Notices {
    /// The next line, if one comes within this time.
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
fn a_service_manager_learns_of_readiness_of_life_and_of_the_end() {
    let Some(_turn) = turn(&[]) else { return };
    let place = tempfile::tempdir().expect("a directory can be made");
    let path = place.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    let mut notices = Notices { socket, lines: VecDeque::new() };
    let interval = WATCHDOG.as_micros().to_string();
    let variables = [
        ("NOTIFY_SOCKET", path.as_os_str()),
        ("WATCHDOG_USEC", OsStr::new(&interval)),
        // As if the supervisor itself had been meant.
        ("WATCHDOG_PID", OsStr::new("1")),
    ];
    let host = Host::start_with(place, &pair(), &variables);

    // A start that takes long, because there are many vifs, shows signs of life; and it may be that
    // both vifs are connected by then.
    let before = notices.wait_for("READY=1", SOON);
    let is_life = |line: &String| line.starts_with("STATUS=") || line == "WATCHDOG=1";
    assert!(before.iter().all(is_life), "{before:?}");
    if !before.iter().any(|line| line == CONNECTED) {
        notices.wait_for(CONNECTED, SOON);
    }
    // Each is due within half of the interval, and the control thread looks every half second.
    for _ in 0..3 {
        notices.wait_for("WATCHDOG=1", WATCHDOG);
    }

    let backend = host.pid_of("backend");
    send(backend, Signal::STOP);
    // One may be on its way.
    while notices.next(Duration::from_millis(100)).is_some() {}
    assert_eq!(notices.next(2 * WATCHDOG), None, "it is stopped");
    send(backend, Signal::CONT);
    notices.wait_for("WATCHDOG=1", WATCHDOG);

    host.signal(Signal::TERM);
    notices.wait_for("STOPPING=1", SOON);
    let (status, _place, log) = host.ended();
    assert!(status.success(), "{status}\n{log}");
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
    // A tenant that hangs is the supervisor's to replace, and no reason to end all others.
    send(host.pid_of("tenant domain-1"), Signal::STOP);
    for _ in 0..3 {
        notices.wait_for("WATCHDOG=1", WATCHDOG);
    }
    host.signal(Signal::TERM);
    notices.wait_for("STOPPING=1", SOON);
    let (status, _place, log) = host.ended();
    assert!(status.success(), "{status}\n{log}");
}
