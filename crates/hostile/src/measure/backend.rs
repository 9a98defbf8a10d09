//! The backend as seen from outside: its process, its memory, and its reply times.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringway_control::{BackendRequest, BackendStatus, RunDir, send_request};
use serde::Serialize;

/// The pause between two samples.
const PAUSE: Duration = Duration::from_millis(50);

/// The observations.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Seen {
    /// Its process ids; a single one if it was not restarted.
    pub(crate) pids: Vec<u32>,
    /// Its peak memory, in KiB.
    pub(crate) peak_kib: u64,
    /// The slowest reply to the command line, in milliseconds. A missing reply counts as long as
    /// the wait for it.
    pub(crate) slowest_reply_ms: f64,
    /// Names of vifs, except the hostile one's, that were not connected in some sample.
    pub(crate) disconnected: Vec<String>,
}

/// Samples the backend continuously.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the backend of a run directory. `honest` are the domains of honest guests.
    pub(crate) fn start(dir: &RunDir, honest: &[u16]) -> Watch {
        let (is_over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let (ends, notes) = (Arc::clone(&is_over), Arc::clone(&seen));
        let (dir, honest) = (dir.clone(), honest.to_vec());
        let thread = std::thread::spawn(move || {
            let mut pid = None;
            while !ends.load(Ordering::Relaxed) {
                let start = Instant::now();
                let status = status(&dir);
                let mut seen = notes.lock().unwrap_or_else(PoisonError::into_inner);
                note(&mut seen, status, start.elapsed(), &honest, &mut pid);
                drop(seen);
                // waits: the backend reports nothing by itself.
                std::thread::sleep(PAUSE);
            }
        });
        Watch { is_over, seen, thread: Some(thread) }
    }

    /// The observations so far.
    pub(crate) fn finish(mut self) -> Seen {
        self.end();
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

fn note(
    seen: &mut Seen,
    status: Option<BackendStatus>,
    took: Duration,
    honest: &[u16],
    pid: &mut Option<u32>,
) {
    seen.slowest_reply_ms = seen.slowest_reply_ms.max(took.as_secs_f64() * 1e3);
    if let Some(status) = status {
        *pid = Some(status.pid);
        if !seen.pids.contains(&status.pid) {
            seen.pids.push(status.pid);
        }
        for vif in status.vifs {
            let is_out =
                vif.domid.is_some_and(|domid| honest.contains(&domid)) && vif.state != "Connected";
            if is_out && !seen.disconnected.contains(&vif.name) {
                seen.disconnected.push(vif.name);
            }
        }
    }
    if let Some(memory) = pid.and_then(memory_kib) {
        seen.peak_kib = seen.peak_kib.max(memory);
    }
}

/// The backend's status, if it replies.
pub(crate) fn status(dir: &RunDir) -> Option<BackendStatus> {
    send_request(&dir.backend(), &BackendRequest::Status).ok()
}

/// The current memory of a process, in KiB.
pub(crate) fn memory_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}
