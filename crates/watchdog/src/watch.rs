//! The thread that checks the others.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::detector::{Limits, Next, Seen, Stuck, StuckDetector};
use crate::pause::{Pause, Turn};
use crate::pulse::Pulse;
use crate::thread::{Thread, Threads};

/// Checks per limit, so that the limit is met to within a tenth.
const CHECKS_PER_LIMIT: u32 = 10;
/// Checks that come later than this, in ticks, do not count against a sleeping thread.
const LATE: f32 = 1.5;
/// A turn this late, in limits, is reported: this process did not run.
const PAUSED_AFTER: u32 = 2;

/// The limits of a watch.
#[derive(Debug, Clone, Copy)]
pub struct WatchConfig {
    /// CPU time of a thread without progress, or time asleep of a thread that may not sleep. At
    /// least a second, except in tests: a thread that waits for the kernel sleeps for a moment.
    pub stuck_after: Duration,
}

/// The threads that a [`Watch`] checks. Clones refer to the same list.
#[derive(Debug, Clone, Default)]
pub struct Roster(Arc<Mutex<Vec<Watched>>>);

#[derive(Debug)]
struct Watched {
    name: String,
    id: i32,
    pulse: Weak<Pulse>,
    waker: Option<Waker>,
    detector: StuckDetector,
    files: Option<Thread>,
}

/// The report of a watch after each check.
#[derive(Debug)]
pub enum Finding<'a> {
    /// No thread is stuck.
    Healthy,
    /// This thread is stuck.
    Stuck(&'a str, Stuck),
    /// This process did not run for twice the limit. A check of its threads follows.
    Paused(Pause),
    /// The kernel does not report on threads, for this reason, so no loop will be found.
    NoData(io::Error),
}

/// A thread that checks all threads of a [`Roster`]. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Roster {
    /// Adds the calling thread, under a name for people, until its pulse is dropped. If it has a
    /// waker, the watch uses it after a long wait to test that the thread still wakes: its pulse
    /// must then [`beat`](Pulse::beat).
    pub fn enter(&self, name: &str, pulse: &Arc<Pulse>, waker: Option<Waker>) {
        let watched = Watched {
            name: name.to_owned(),
            id: current_thread(),
            pulse: Arc::downgrade(pulse),
            waker,
            detector: StuckDetector::default(),
            files: None,
        };
        self.lock().push(watched);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first thread that is stuck.
    fn check(
        &self,
        limits: Limits,
        threads: &Threads,
        is_punctual: bool,
    ) -> Option<(String, Stuck)> {
        let mut all = self.lock();
        all.retain(|watched| watched.pulse.strong_count() > 0);
        all.iter_mut().find_map(|watched| {
            let stuck = watched.check(limits, threads, is_punctual)?;
            Some((watched.name.clone(), stuck))
        })
    }
}

impl Watched {
    fn check(&mut self, limits: Limits, threads: &Threads, is_punctual: bool) -> Option<Stuck> {
        let pulse = self.pulse.upgrade()?;
        let seen = Seen {
            beats: pulse.beats(),
            is_waiting: pulse.is_waiting(),
            can_be_woken: self.waker.is_some(),
            is_punctual,
        };
        let files = &mut self.files;
        let sample = || {
            if files.is_none() {
                *files = threads.thread(self.id).ok();
            }
            // A thread that has just ended has no files.
            files.as_ref()?.sample().ok()
        };
        match self.detector.check(limits, seen, sample) {
            Next::CheckAgain => None,
            Next::Wake => {
                self.waker.iter().for_each(Waker::wake_by_ref);
                None
            }
            Next::Stuck(stuck) => Some(stuck),
        }
    }
}

impl Watch {
    /// Checks all threads of a roster, ten times within the limit, and reports each result, on a
    /// thread of its own. That thread waits for nothing else, so its reports also show that this
    /// process gets CPU time.
    ///
    /// # Errors
    /// What thread creation reports.
    pub fn start(
        config: WatchConfig,
        roster: Roster,
        mut report: impl FnMut(Finding<'_>) + Send + 'static,
    ) -> io::Result<Watch> {
        let limits = Limits {
            tick: config.stuck_after / CHECKS_PER_LIMIT,
            stuck_after: config.stuck_after,
            wake_after: config.stuck_after / 2,
        };
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            let threads = match Threads::open() {
                Ok(threads) => Some(threads),
                Err(error) => {
                    report(Finding::NoData(error));
                    None
                }
            };
            let own = threads.as_ref().and_then(|threads| threads.thread(current_thread()).ok());
            let mut before = turn(own.as_ref());
            while stopped.recv_timeout(limits.tick) == Err(RecvTimeoutError::Timeout) {
                let now = turn(own.as_ref());
                if let Some(pause) = now.pause_since(&before, PAUSED_AFTER * limits.stuck_after) {
                    report(Finding::Paused(pause));
                }
                let elapsed = now.at.saturating_duration_since(before.at);
                let is_punctual = elapsed < limits.tick.mul_f32(LATE);
                before = now;
                let found =
                    threads.as_ref().and_then(|threads| roster.check(limits, threads, is_punctual));
                match found {
                    Some((name, stuck)) => report(Finding::Stuck(&name, stuck)),
                    None => report(Finding::Healthy),
                }
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(run)?;
        Ok(Watch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its last check may be in progress.
            let _ = thread.join();
        }
    }
}

fn current_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// A turn of the calling thread, now.
fn turn(own: Option<&Thread>) -> Turn {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Turn {
        at: Instant::now(),
        used: Duration::try_from(used).unwrap_or_default(),
        delayed: own.and_then(|thread| thread.sample().ok()).map(|sample| sample.delayed),
    }
}
