//! How long a cache line takes from one CPU to another.
//!
//! It decides what frames through shared memory cost, and on a virtual machine it changes: the
//! host may run two virtual CPUs on neighbouring cores, or far apart.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringway_sys::process::{allowed_cpus, pin_current_thread};

/// Hand-offs in each direction: a few milliseconds.
const TIMES: u32 = 10_000;
/// Time after which both sides give up: the other one may not have a CPU.
const PATIENCE: Duration = Duration::from_millis(200);

/// A value in a cache line of its own, and of the line that CPUs fetch along with it.
#[repr(align(128))]
struct Line(AtomicU32);

/// The mean time of one hand-off between two of our CPUs; `None` without two CPUs, or if they were
/// too busy.
pub(crate) fn measure() -> Option<Duration> {
    let cpus = allowed_cpus().ok()?;
    let [one, other, ..] = cpus[..] else { return None };
    let line = Line(AtomicU32::new(0));
    thread::scope(|scope| {
        let times = [(one, 0), (other, 1)].map(|(cpu, first)| {
            let line = &line;
            scope.spawn(move || {
                pin_current_thread(cpu).ok()?;
                pass(line, first)
            })
        });
        let [time, _] = times.map(|thread| thread.join().ok().flatten());
        time.map(|time| time / (2 * TIMES))
    })
}

/// Waits for each second number from `first` on, and stores the next one.
fn pass(line: &Line, first: u32) -> Option<Duration> {
    let deadline = Instant::now() + PATIENCE;
    let mut began = Instant::now();
    for time in 0..=TIMES {
        let number = 2 * time + first;
        let mut spins = 0_u32;
        while line.0.load(Ordering::Acquire) != number {
            spins = spins.wrapping_add(1);
            if spins % 1024 == 0 && Instant::now() > deadline {
                return None;
            }
            spin_loop();
        }
        if time == 0 {
            began = Instant::now();
        }
        line.0.store(number + 1, Ordering::Release);
    }
    let time = began.elapsed();
    (time < PATIENCE).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_off_takes_some_time_or_is_not_measured() {
        let Some(time) = measure() else { return };
        assert!(!time.is_zero() && time <= PATIENCE / (2 * TIMES), "{time:?}");
    }
}
