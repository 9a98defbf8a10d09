//! Many vifs that begin, lose their backend, and end at once: how long that takes, whether it grows
//! faster than their number, and how long the control socket takes to reply meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_control::{BackendRequest, BackendStatus, RunDir, send_request};
use rustix::process::{Pid, Signal, kill_process};

use crate::idle::{description, own_memory_kib};
use crate::options::Options;
use crate::path::Ringway;
use crate::report::{Better, Case, Report};

/// Numbers of vifs. If the time for a vif is the same with each, the whole is linear.
const SIZES: [usize; 3] = [50, 100, 200];
/// How long all vifs may take until they are connected to the next backend.
const PATIENCE: Duration = Duration::from_secs(60);
/// A backend that ends in its first second counts as not working, and its successor is started with
/// a delay.
const SETTLED: Duration = Duration::from_millis(1500);
/// Pause between two requests to the control socket.
const STEP: Duration = Duration::from_millis(5);

/// What is measured of one number of vifs, with its unit.
const FIGURES: [(&str, &str); 5] = [
    ("start until all are connected, a vif", "ms"),
    ("kill -9 until all are served again, a vif", "ms"),
    ("stop, a vif", "ms"),
    ("memory of the backend, a vif", "KiB"),
    ("slowest reply of the control socket", "ms"),
];

/// One round: each number of vifs.
pub(crate) fn round(options: &Options, report: &mut Report) {
    let mut cases = Vec::new();
    for (what, unit) in FIGURES {
        cases.extend(SIZES.map(|vifs| {
            Case::new("lifetimes", what, unit, Better::Less).in_column(format!("{vifs} vifs"))
        }));
    }
    if !cases.iter().any(|case| options.wants(&case.name)) {
        return;
    }
    match Ringway::find(options.ringway.as_deref()) {
        Err(missing) => report.skip("lifetimes", "ringway", &missing),
        Ok(ringway) => report.measure_all(&cases, "ringway", || {
            let [few, more, many] = SIZES.map(|vifs| lifetime(&ringway, vifs));
            let lifetimes = [few?, more?, many?];
            let figures = 0..FIGURES.len();
            Ok(figures.flat_map(|figure| lifetimes.each_ref().map(|all| all[figure])).collect())
        }),
    }
}

/// Starts a host with a number of vifs, kills its backend once and ends it.
fn lifetime(ringway: &Ringway, vifs: usize) -> Result<[f64; FIGURES.len()]> {
    let base_kib = {
        let small = ringway.run(&description(1))?;
        own_memory_kib(small.backend()?.pid)?
    };
    let begun = Instant::now();
    let starting = ringway.begin(&description(vifs))?;
    let asker = Asker::start(starting.dir());
    let host = starting.ready()?;
    let start = begun.elapsed();
    thread::sleep(SETTLED);
    let memory_kib = own_memory_kib(host.backend()?.pid)? - base_kib;

    let killed = host.backend()?.pid;
    let pid = i32::try_from(killed).ok().and_then(Pid::from_raw);
    kill_process(pid.context("the backend has no process")?, Signal::KILL)?;
    let begun = Instant::now();
    wait_until_served(&host.dir(), killed, vifs)?;
    let resume = begun.elapsed();

    let slowest = asker.slowest()?;
    drop(asker);
    let begun = Instant::now();
    drop(host);
    let stop = begun.elapsed();
    let each = f64::from(u32::try_from(vifs)?);
    let times = [start, resume, stop].map(|time| time.as_secs_f64() * 1e3 / each);
    Ok([times[0], times[1], times[2], memory_kib / each, slowest.as_secs_f64() * 1e3])
}

/// Waits until another backend serves all queues.
fn wait_until_served(dir: &RunDir, killed: u32, vifs: usize) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        // There is no socket while there is no backend.
        if ask(dir).is_ok_and(|status| status.pid != killed && connected(&status) == vifs) {
            return Ok(());
        }
        thread::sleep(STEP);
    }
    let connected = ask(dir).map_or(0, |status| connected(&status));
    anyhow::bail!("{connected} of {vifs} vifs are served {PATIENCE:?} after the kill")
}

fn connected(status: &BackendStatus) -> usize {
    let is_served =
        |vif: &&ringway_control::VifStatus| vif.state == "Connected" && !vif.queues.is_empty();
    status.vifs.iter().filter(is_served).count()
}

fn ask(dir: &RunDir) -> Result<BackendStatus> {
    Ok(send_request(&dir.backend(), &BackendRequest::Status)?)
}

/// Asks a backend for its status again and again, until it is dropped.
struct Asker(Arc<Replies>);

#[derive(Default)]
struct Replies {
    must_end: AtomicBool,
    slowest_us: AtomicU64,
}

impl Asker {
    fn start(dir: RunDir) -> Asker {
        let replies = Arc::new(Replies::default());
        let asker = Asker(Arc::clone(&replies));
        thread::spawn(move || {
            while !replies.must_end.load(Ordering::Relaxed) {
                let begun = Instant::now();
                if ask(&dir).is_ok() {
                    let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                    replies.slowest_us.fetch_max(micros, Ordering::Relaxed);
                }
                thread::sleep(STEP);
            }
        });
        asker
    }

    /// How long the slowest reply took.
    fn slowest(&self) -> Result<Duration> {
        let micros = self.0.slowest_us.load(Ordering::Relaxed);
        ensure!(micros > 0, "the control socket did not reply");
        Ok(Duration::from_micros(micros))
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.must_end.store(true, Ordering::Relaxed);
    }
}
