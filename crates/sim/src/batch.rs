//! Many seeds at once, on several threads.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::canary::Canary;
use crate::marks::Marks;
use crate::report::{Failure, run_seed};

/// The results of the worlds of several seeds.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Worlds that ran to their end without a flaw.
    pub worlds: u64,
    /// Steps of all of them.
    pub steps: u64,
    /// How often each mark was hit.
    pub marks: Marks,
    /// The smallest seed with a flaw among those that ran, and the failure.
    pub failure: Option<(u64, Box<Failure>)>,
}

/// Runs the worlds of these seeds on `jobs` threads, and starts no further one after a flaw. Calls
/// `progress` after each world.
pub fn run_seeds(
    seeds: Range<u64>,
    jobs: usize,
    canary: Option<Canary>,
    progress: impl Fn() + Sync,
) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let mut own = Summary::default();
                loop {
                    // Seeds are taken in order, so every smaller one also runs to its end.
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    own.run(seed, canary);
                    if own.failure.is_some() {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                    progress();
                }
                summary.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(own);
            });
        }
    });
    summary.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Summary {
    fn run(&mut self, seed: u64, canary: Option<Canary>) {
        match run_seed(seed, canary) {
            Ok(run) => {
                self.worlds += 1;
                self.steps += run.steps;
                self.marks += &run.marks;
            }
            Err(failure) => self.failure = Some((seed, failure)),
        }
    }

    fn add(&mut self, other: Summary) {
        self.worlds += other.worlds;
        self.steps += other.steps;
        self.marks += &other.marks;
        let failures = self.failure.take().into_iter().chain(other.failure);
        self.failure = failures.min_by_key(|(seed, _)| *seed);
    }
}
