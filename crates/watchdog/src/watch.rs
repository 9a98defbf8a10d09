//! The thread that looks.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::judge::{Judge, Limits, Next, Seen, Stuck};
use crate::pulse::Pulse;
use crate::thread::{Thread, Threads};

/// Looks within the limit, so that it is kept to within a tenth.
const LOOKS: u32 = 10;
/// Looks later than this, in ticks, are not counted against a thread that sleeps.
const LATE: f32 = 1.5;

/// What is too long.
#[derive(Debug, Clone, Copy)]
pub struct WatchConfig {
    /// CPU time of a thread that does not get on, or time asleep of one that may not sleep. A
    /// second at least, but for tests: a thread that waits for the kernel sleeps for a moment.
    pub stuck_after: Duration,
}

/// Of which threads a [`Watch`] knows. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Roster(Arc<Mutex<Vec<Watched>>>);

#[derive(Debug)]
struct Watched {
    name: String,
    id: i32,
    pulse: Weak<Pulse>,
    waker: Option<Waker>,
    judge: Judge,
    files: Option<Thread>,
}

/// What a watch says, each time that it has looked.
#[derive(Debug)]
pub enum Finding<'a> {
    /// No thread is stuck.
    Well,
    /// This one is.
    Stuck(&'a str, Stuck),
    /// For this reason the kernel does not say what threads do, so no loop will be found.
    Blind(io::Error),
}

/// A thread that checks all threads of a [`Roster`]. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Roster {
    /// Has the calling thread watched, by a name for people, until its pulse is dropped. Its waker,
    /// if it has one, is used when it waits for long, to see that it still wakes: its pulse must
    /// [`beat`](Pulse::beat) then.
    pub fn enter(&self, name: &str, pulse: &Arc<Pulse>, waker: Option<Waker>) {
        let watched = Watched {
            name: name.to_owned(),
            id: rustix::thread::gettid().as_raw_nonzero().get(),
            pulse: Arc::downgrade(pulse),
            waker,
            judge: Judge::default(),
            files: None,
        };
        self.lock().push(watched);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first thread that is stuck.
    fn look(
        &self,
        limits: Limits,
        threads: &Threads,
        is_punctual: bool,
    ) -> Option<(String, Stuck)> {
        let mut all = self.lock();
        all.retain(|watched| watched.pulse.strong_count() > 0);
        all.iter_mut().find_map(|watched| {
            let stuck = watched.look(limits, threads, is_punctual)?;
            Some((watched.name.clone(), stuck))
        })
    }
}

impl Watched {
    fn look(&mut self, limits: Limits, threads: &Threads, is_punctual: bool) -> Option<Stuck> {
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
            // A thread that has just ended has none.
            files.as_ref()?.sample().ok()
        };
        match self.judge.look(limits, seen, sample) {
            Next::LookAgain => None,
            Next::Wake => {
                self.waker.iter().for_each(Waker::wake_by_ref);
                None
            }
            Next::Stuck(stuck) => Some(stuck),
        }
    }
}

impl Watch {
    /// Checks all threads of a roster, ten times within the limit, and says each time what came
    /// of it, on a thread of its own. That thread waits for nothing else, so what it says also
    /// shows that this process gets CPU time.
    ///
    /// # Errors
    /// What thread creation reports.
    pub fn start(
        config: WatchConfig,
        roster: Roster,
        mut say: impl FnMut(Finding<'_>) + Send + 'static,
    ) -> io::Result<Watch> {
        let limits = Limits {
            tick: config.stuck_after / LOOKS,
            stuck_after: config.stuck_after,
            wake_after: config.stuck_after / 2,
        };
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            let threads = match Threads::open() {
                Ok(threads) => Some(threads),
                Err(error) => {
                    say(Finding::Blind(error));
                    None
                }
            };
            let mut looked = Instant::now();
            while stopped.recv_timeout(limits.tick) == Err(RecvTimeoutError::Timeout) {
                let elapsed = std::mem::replace(&mut looked, Instant::now()).elapsed();
                let is_punctual = elapsed < limits.tick.mul_f32(LATE);
                let found =
                    threads.as_ref().and_then(|threads| roster.look(limits, threads, is_punctual));
                match found {
                    Some((name, stuck)) => say(Finding::Stuck(&name, stuck)),
                    None => say(Finding::Well),
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
            // Its last look may be under way.
            let _ = thread.join();
        }
    }
}
