//! The loop of a process of the chain: rounds until one finds nothing, then rounds with yields
//! between them for a while, then sleep.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use ringway_sys::eventfd::EventFd;
use ringway_sys::poll::{self, readable};
use ringway_sys::tun::TunFile;

/// How long a process searches for work before it sleeps: the ceiling of ringway's workers.
const SPIN: Duration = Duration::from_micros(200);

/// What a process does.
pub(super) trait Stage {
    /// Does what there is to do, in a bounded part. False if there was nothing. `is_idle` if the
    /// last round found nothing, either.
    fn round(&mut self, is_idle: bool) -> io::Result<bool>;

    /// Has its neighbours wake it. False if there is work already.
    fn arm(&mut self) -> bool;

    /// The device whose frames it can take.
    fn device(&self) -> Option<&TunFile>;
}

/// Runs it until it fails. `bell` is what wakes it.
pub(super) fn run(stage: &mut impl Stage, bell: &EventFd) -> io::Result<()> {
    let mut idle_since: Option<Instant> = None;
    loop {
        if stage.round(idle_since.is_some())? {
            idle_since = None;
            continue;
        }
        if idle_since.get_or_insert_with(Instant::now).elapsed() < SPIN {
            thread::yield_now();
            continue;
        }
        if stage.arm() {
            let mut awaited = vec![readable((), bell)];
            awaited.extend(stage.device().map(|device| readable((), device)));
            poll::wait(&awaited, None)?;
            bell.clear()?;
        }
        idle_since = None;
    }
}
