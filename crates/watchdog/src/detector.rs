//! Judges one thread by repeated samples.

use std::fmt;
use std::time::Duration;

/// How a thread is stuck: it has made no progress for all of this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stuck {
    /// It has used this much CPU time.
    Loops(Duration),
    /// It has slept this long where it may not sleep, or did not wake when it was woken.
    Sleeps(Duration),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::Loops(time) => {
                write!(f, "is in a loop: {time:.1?} of CPU time without progress")
            }
            Stuck::Sleeps(time) => {
                write!(f, "is blocked: it has slept for {time:.1?} where it should not")
            }
        }
    }
}

/// The kernel's data on a thread at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// CPU time used so far.
    pub(crate) cpu: Duration,
    /// Time that it was ready to run and did not run, so far. A delay is added when it ends.
    pub(crate) delayed: Duration,
    pub(crate) state: State,
}

/// The state of a thread, per `proc_pid_stat(5)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// `R`: it runs, or waits for a CPU, or for the next period of a quota.
    Runs,
    /// `S` or `D`, or any other state in which it cannot run.
    Sleeps,
    /// `T` or `t`: stopped by a signal or a debugger.
    Stopped,
}

/// Limits, the same for all threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The time between two checks, which is also the error of a measured sleep.
    pub(crate) tick: Duration,
    /// CPU time, or time asleep, of a thread without progress.
    pub(crate) stuck_after: Duration,
    /// How long a thread may wait before it is woken to test that it wakes.
    pub(crate) wake_after: Duration,
}

/// What a thread shows, and the state of the checking thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) beats: u64,
    pub(crate) is_waiting: bool,
    /// Whether there is a way to wake it.
    pub(crate) can_be_woken: bool,
    /// Whether the checking thread ran when it was due.
    pub(crate) is_punctual: bool,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    CheckAgain,
    /// Wake the thread; it must then make progress.
    Wake,
    Stuck(Stuck),
}

/// What is known of a thread since its last progress.
#[derive(Debug, Default)]
pub(crate) struct StuckDetector {
    beats: u64,
    rested: Duration,
    was_woken: bool,
    last: Option<Sample>,
    used: Duration,
    slept: Duration,
}

impl StuckDetector {
    /// Checks a thread. `sample` is called only if it has made no progress since the last
    /// check.
    pub(crate) fn check(
        &mut self,
        limits: Limits,
        seen: Seen,
        sample: impl FnOnce() -> Option<Sample>,
    ) -> Next {
        if seen.beats != self.beats {
            *self = StuckDetector { beats: seen.beats, ..StuckDetector::default() };
            return Next::CheckAgain;
        }
        if seen.is_waiting && seen.can_be_woken && !self.was_woken {
            self.rested += limits.tick;
            self.was_woken = self.rested >= limits.wake_after;
            return if self.was_woken { Next::Wake } else { Next::CheckAgain };
        }
        let Some(now) = sample() else { return Next::CheckAgain };
        let Some(before) = self.last.replace(now) else { return Next::CheckAgain };
        let used = now.cpu.saturating_sub(before.cpu);
        let delayed = now.delayed.saturating_sub(before.delayed);
        self.used += used;
        let may_sleep = seen.is_waiting && !self.was_woken;
        // If the watch got no CPU in time, other threads that this one may wait for did not either.
        if now.state == State::Sleeps && !may_sleep && seen.is_punctual {
            self.slept += limits.tick.saturating_sub(used + delayed);
        }
        match () {
            () if self.used >= limits.stuck_after => Next::Stuck(Stuck::Loops(self.used)),
            () if self.slept >= limits.stuck_after => Next::Stuck(Stuck::Sleeps(self.slept)),
            () => Next::CheckAgain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        tick: Duration::from_secs(1),
        stuck_after: Duration::from_secs(10),
        wake_after: Duration::from_secs(5),
    };

    const SILENT: Seen =
        Seen { beats: 0, is_waiting: false, can_be_woken: true, is_punctual: true };

    /// The verdicts on a thread that is checked once a second for a minute, with their seconds.
    fn after(seen: impl Fn(u64) -> Seen, sample: impl Fn(u64) -> Sample) -> Option<(u64, Next)> {
        let mut detector = StuckDetector::default();
        (0..60).find_map(|second| {
            let next = detector.check(LIMITS, seen(second), || Some(sample(second)));
            (next != Next::CheckAgain).then_some((second, next))
        })
    }

    fn sample(state: State, cpu_ms: u64, delayed_ms: u64) -> Sample {
        let [cpu, delayed] = [cpu_ms, delayed_ms].map(Duration::from_millis);
        Sample { cpu, delayed, state }
    }

    #[test]
    fn a_loop_is_detected_by_its_cpu_time_however_long_that_takes() {
        let loops = |share: u64| {
            let found = after(|_| SILENT, |second| sample(State::Runs, second * share, 0));
            found.map(|(second, next)| (second, matches!(next, Next::Stuck(Stuck::Loops(_)))))
        };
        assert_eq!(loops(1000), Some((10, true)));
        assert_eq!(loops(250), Some((40, true)));
        assert_eq!(loops(100), None, "six seconds of a minute are no loop yet");
    }

    #[test]
    fn a_thread_that_gets_no_cpu_is_not_stuck() {
        assert_eq!(after(|_| SILENT, |_| sample(State::Runs, 0, 0)), None);
        assert_eq!(after(|_| SILENT, |_| sample(State::Stopped, 0, 0)), None);
        // Delayed for nearly all of each second, and asleep at each check.
        assert_eq!(after(|_| SILENT, |second| sample(State::Sleeps, second, second * 950)), None);
    }

    #[test]
    fn a_thread_that_sleeps_where_it_may_not_is_stuck() {
        let found = after(|_| SILENT, |_| sample(State::Sleeps, 0, 0));
        assert_eq!(found, Some((10, Next::Stuck(Stuck::Sleeps(Duration::from_secs(10))))));
    }

    #[test]
    fn a_late_watch_does_not_count_threads_as_asleep() {
        let late = Seen { is_punctual: false, ..SILENT };
        assert_eq!(after(|_| late, |_| sample(State::Sleeps, 0, 0)), None);
    }

    #[test]
    fn a_waiting_thread_is_woken_and_stuck_if_it_does_not_react() {
        let waits = Seen { is_waiting: true, ..SILENT };
        let asleep = |_| sample(State::Sleeps, 0, 0);
        let mut detector = StuckDetector::default();
        let mut found = (0..60).filter_map(|second| {
            let next = detector.check(LIMITS, waits, || Some(asleep(second)));
            (next != Next::CheckAgain).then_some((second, next))
        });
        assert_eq!(found.next(), Some((4, Next::Wake)));
        let stuck = Next::Stuck(Stuck::Sleeps(Duration::from_secs(10)));
        assert_eq!(found.next(), Some((15, stuck)));
    }

    #[test]
    fn a_thread_that_waits_for_others_may_sleep_and_may_not_loop() {
        let waits = Seen { is_waiting: true, can_be_woken: false, ..SILENT };
        assert_eq!(after(|_| waits, |_| sample(State::Sleeps, 0, 0)), None);
        let found = after(|_| waits, |second| sample(State::Sleeps, second * 1000, 0));
        assert!(matches!(found, Some((10, Next::Stuck(Stuck::Loops(_))))), "{found:?}");
    }

    #[test]
    fn progress_resets_the_time_of_a_thread() {
        let beats = |second: u64| Seen { beats: second / 9, ..SILENT };
        assert_eq!(after(beats, |second| sample(State::Runs, second * 1000, 0)), None);
        assert_eq!(after(beats, |_| sample(State::Sleeps, 0, 0)), None);
    }

    #[test]
    fn without_kernel_data_a_thread_has_no_finding() {
        let mut detector = StuckDetector::default();
        for _ in 0..60 {
            assert_eq!(detector.check(LIMITS, SILENT, || None), Next::CheckAgain);
        }
    }
}
