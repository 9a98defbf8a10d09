//! Threads of every kind, judged by the kernel's data on them. None of this depends on how busy the
//! machine is: a starved thread gets no CPU time, which is what the test needs.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use ringway_watchdog::{Finding, Pulse, Roster, Stuck, Watch, WatchConfig};

const STUCK_AFTER: Duration = Duration::from_millis(400);
/// Far more than it takes on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Checks in many times the limit: there are ten in one.
const CHECKS: usize = 75;

/// A watch, and what each of its checks finds: nothing, or a stuck thread.
struct Watching {
    roster: Roster,
    found: Receiver<Option<(String, Stuck)>>,
    _watch: Watch,
}

fn watch() -> Watching {
    let roster = Roster::default();
    let (sender, found) = mpsc::channel();
    let say = move |finding: Finding<'_>| {
        let found = match finding {
            Finding::Healthy => None,
            Finding::Stuck(name, stuck) => Some((name.to_owned(), stuck)),
            // On a busy machine.
            Finding::Paused(_) => return,
            Finding::NoData(error) => panic!("/proc: {error}"),
        };
        drop(sender.send(found));
    };
    let config = WatchConfig { stuck_after: STUCK_AFTER };
    let watch = Watch::start(config, roster.clone(), say).expect("a thread can be started");
    Watching { roster, found, _watch: watch }
}

impl Watching {
    /// Runs `work` on a watched thread until the end of the test's process, or its own.
    fn spawn(&self, waker: Option<Waker>, work: impl FnOnce(&Pulse) + Send + 'static) -> Thread {
        let roster = self.roster.clone();
        let run = move || {
            let pulse = Arc::new(Pulse::default());
            roster.enter("subject", &pulse, waker);
            work(&pulse);
        };
        std::thread::spawn(run).thread().clone()
    }

    fn finding(&self) -> Stuck {
        let begun = Instant::now();
        let (name, stuck) = loop {
            assert!(begun.elapsed() < PATIENCE, "it is not found");
            if let Some(found) = self.check() {
                break found;
            }
        };
        assert_eq!(name, "subject");
        stuck
    }

    /// Nothing was found until now, nor is it by as many checks after now as show a stuck thread.
    fn assert_healthy(&self) {
        let until_now = self.found.try_iter().collect::<Vec<_>>();
        let found = until_now.into_iter().chain((0..CHECKS).map(|_| self.check())).flatten().next();
        assert_eq!(found, None);
    }

    /// What the next check finds.
    fn check(&self) -> Option<(String, Stuck)> {
        self.found.recv_timeout(PATIENCE).expect("there are checks all the time")
    }
}

fn spin_for(time: Duration) {
    let started = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    loop {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let used = Duration::try_from(now).unwrap_or_default();
        if used.saturating_sub(Duration::try_from(started).unwrap_or_default()) >= time {
            return;
        }
    }
}

#[test]
fn a_loop_without_progress_is_found() {
    let watching = watch();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    watching.spawn(None, move |_| while !stopped.load(Ordering::Relaxed) {});
    let stuck = watching.finding();
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(stuck, Stuck::Loops(time) if time >= STUCK_AFTER), "{stuck:?}");
    assert!(stuck.to_string().contains("is in a loop"), "{stuck}");
}

#[test]
fn a_loop_with_progress_is_not_stuck_however_much_cpu_it_uses() {
    let watching = watch();
    let (end, ended) = mpsc::channel();
    watching.spawn(None, move |pulse| {
        for _ in 0..20 {
            spin_for(STUCK_AFTER / 4);
            pulse.beat();
        }
        end.send(()).expect("the test is there");
    });
    ended.recv_timeout(PATIENCE).expect("it ends");
    watching.assert_healthy();
}

#[test]
fn a_thread_that_is_blocked_where_it_may_not_be_is_found() {
    let watching = watch();
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    watching.spawn(None, move |_| drop(ours.read(&mut [0])));
    let stuck = watching.finding();
    drop(theirs);
    assert!(matches!(stuck, Stuck::Sleeps(time) if time >= STUCK_AFTER), "{stuck:?}");
    assert!(stuck.to_string().contains("is blocked"), "{stuck}");
}

#[test]
fn a_thread_that_waits_for_others_is_not_stuck() {
    let watching = watch();
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    let (wait, waits) = mpsc::channel();
    watching.spawn(None, move |pulse| {
        let _waiting = pulse.wait();
        wait.send(()).expect("the test is there");
        let _ = ours.read(&mut [0]);
    });
    waits.recv_timeout(PATIENCE).expect("it begins to wait");
    watching.assert_healthy();
    drop(theirs);
}

/// Unparks a thread, once that is known.
#[derive(Default)]
struct Unpark(Mutex<Option<Thread>>);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        if let Some(thread) = &*self.0.lock().expect("no thread panics with it") {
            thread.unpark();
        }
    }
}

#[test]
fn an_idle_thread_is_woken_and_shows_progress() {
    let watching = watch();
    let unpark = Arc::new(Unpark::default());
    let (beaten, beats) = mpsc::channel();
    let thread = watching.spawn(Some(Waker::from(Arc::clone(&unpark))), move |pulse| {
        loop {
            {
                let _waiting = pulse.wait();
                std::thread::park();
            }
            pulse.beat();
            if beaten.send(()).is_err() {
                return;
            }
        }
    });
    *unpark.0.lock().expect("no thread panics with it") = Some(thread);
    for _ in 0..3 {
        beats.recv_timeout(PATIENCE).expect("it is woken");
    }
    watching.assert_healthy();
}

#[test]
fn a_thread_that_does_not_wake_is_found() {
    let watching = watch();
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    watching.spawn(Some(Waker::noop().clone()), move |pulse| {
        let _waiting = pulse.wait();
        let _ = ours.read(&mut [0]);
    });
    let stuck = watching.finding();
    drop(theirs);
    assert!(matches!(stuck, Stuck::Sleeps(_)), "{stuck:?}");
}

/// Eight loops of normal priority on its only CPU leave a thread at nice 19 less than a hundredth
/// of that CPU. It needs most of a minute for a round of half the limit.
#[test]
fn a_starved_thread_is_not_stuck() {
    let watching = watch();
    let cpu = *ringway_sys::process::allowed_cpus().expect("listed").last().expect("one at least");
    let stop = Arc::new(AtomicBool::new(false));
    let busy = (0..8).map(|_| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            ringway_sys::process::pin_current_thread(cpu).expect("it is allowed");
            while !stop.load(Ordering::Relaxed) {}
        })
    });
    let busy: Vec<_> = busy.collect();
    let (began, beginning) = mpsc::channel();
    let stopped = Arc::clone(&stop);
    watching.spawn(None, move |pulse| {
        ringway_sys::process::pin_current_thread(cpu).expect("it is allowed");
        rustix::process::nice(19).expect("lower is allowed");
        began.send(()).expect("the test is there");
        while !stopped.load(Ordering::Relaxed) {
            spin_for(STUCK_AFTER / 2);
            pulse.beat();
        }
    });
    beginning.recv_timeout(PATIENCE).expect("it begins");
    watching.assert_healthy();
    stop.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().expect("no panic"));
}
