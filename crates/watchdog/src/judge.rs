//! Judges one thread by sampling it again and again.

use std::fmt;
use std::time::Duration;

/// How a thread is stuck. It has not got on since all of this time began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stuck {
    /// It has used so much CPU time.
    Loops(Duration),
    /// It has slept for so long where it may not sleep, or did not wake when it was woken.
    Sleeps(Duration),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::Loops(time) => {
                write!(f, "is in a loop: {time:.1?} of CPU time without getting on")
            }
            Stuck::Sleeps(time) => {
                write!(f, "is blocked: it has slept for {time:.1?} where it should not")
            }
        }
    }
}

/// What the kernel says of a thread at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// CPU time that it has used so far.
    pub(crate) cpu: Duration,
    /// For how long it has been ready to run, and did not, so far. A delay is added when it ends.
    pub(crate) delayed: Duration,
    pub(crate) state: State,
}

/// What a thread does, by `proc_pid_stat(5)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// `R`: it runs, or waits for a CPU, or for the next period of a quota.
    Runs,
    /// `S` or `D`, or what else is not to be run.
    Sleeps,
    /// `T` or `t`: by a signal or a debugger.
    Stopped,
}

/// Limits, the same for all threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Time between two looks, which is what a look can add to what a thread has slept.
    pub(crate) tick: Duration,
    /// CPU time, or time asleep, of a thread that does not get on.
    pub(crate) stuck_after: Duration,
    /// How long a thread may wait before it is woken to see whether that works.
    pub(crate) wake_after: Duration,
}

/// What a thread shows, and who looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) beats: u64,
    pub(crate) is_waiting: bool,
    /// Whether there is a way to wake it.
    pub(crate) can_be_woken: bool,
    /// Whether the one who looks had a CPU when it was due.
    pub(crate) is_punctual: bool,
}

/// What follows from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    LookAgain,
    /// It is to be woken, and gets on then.
    Wake,
    Stuck(Stuck),
}

/// What is known of a thread since it last got on.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    beats: u64,
    rested: Duration,
    was_woken: bool,
    last: Option<Sample>,
    used: Duration,
    slept: Duration,
}

impl Judge {
    /// Checks a thread. `sample` is called only if it has made no progress since the last
    /// check.
    pub(crate) fn look(
        &mut self,
        limits: Limits,
        seen: Seen,
        sample: impl FnOnce() -> Option<Sample>,
    ) -> Next {
        if seen.beats != self.beats {
            *self = Judge { beats: seen.beats, ..Judge::default() };
            return Next::LookAgain;
        }
        if seen.is_waiting && seen.can_be_woken && !self.was_woken {
            self.rested += limits.tick;
            self.was_woken = self.rested >= limits.wake_after;
            return if self.was_woken { Next::Wake } else { Next::LookAgain };
        }
        let Some(now) = sample() else { return Next::LookAgain };
        let Some(before) = self.last.replace(now) else { return Next::LookAgain };
        let used = now.cpu.saturating_sub(before.cpu);
        let delayed = now.delayed.saturating_sub(before.delayed);
        self.used += used;
        let may_sleep = seen.is_waiting && !self.was_woken;
        // When the watch had no CPU in time, neither had those that the thread may wait for.
        if now.state == State::Sleeps && !may_sleep && seen.is_punctual {
            self.slept += limits.tick.saturating_sub(used + delayed);
        }
        match () {
            () if self.used >= limits.stuck_after => Next::Stuck(Stuck::Loops(self.used)),
            () if self.slept >= limits.stuck_after => Next::Stuck(Stuck::Sleeps(self.slept)),
            () => Next::LookAgain,
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

    /// The verdicts on a thread that is checked each second for a minute, with their seconds.
    fn after(seen: impl Fn(u64) -> Seen, sample: impl Fn(u64) -> Sample) -> Option<(u64, Next)> {
        let mut judge = Judge::default();
        (0..60).find_map(|second| {
            let next = judge.look(LIMITS, seen(second), || Some(sample(second)));
            (next != Next::LookAgain).then_some((second, next))
        })
    }

    fn sample(state: State, cpu_ms: u64, delayed_ms: u64) -> Sample {
        let [cpu, delayed] = [cpu_ms, delayed_ms].map(Duration::from_millis);
        Sample { cpu, delayed, state }
    }

    #[test]
    fn a_loop_is_found_by_its_cpu_time_however_long_that_takes() {
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
        // It was delayed for nearly all of each second, and asleep at each look.
        assert_eq!(after(|_| SILENT, |second| sample(State::Sleeps, second, second * 950)), None);
    }

    #[test]
    fn a_thread_that_sleeps_where_it_may_not_is_stuck() {
        let found = after(|_| SILENT, |_| sample(State::Sleeps, 0, 0));
        assert_eq!(found, Some((10, Next::Stuck(Stuck::Sleeps(Duration::from_secs(10))))));
    }

    #[test]
    fn while_the_watch_itself_is_late_no_thread_has_slept() {
        let late = Seen { is_punctual: false, ..SILENT };
        assert_eq!(after(|_| late, |_| sample(State::Sleeps, 0, 0)), None);
    }

    #[test]
    fn a_thread_that_waits_is_woken_and_stuck_if_that_does_nothing() {
        let waits = Seen { is_waiting: true, ..SILENT };
        let asleep = |_| sample(State::Sleeps, 0, 0);
        let mut judge = Judge::default();
        let mut found = (0..60).filter_map(|second| {
            let next = judge.look(LIMITS, waits, || Some(asleep(second)));
            (next != Next::LookAgain).then_some((second, next))
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
    fn a_thread_that_gets_on_starts_over() {
        let beats = |second: u64| Seen { beats: second / 9, ..SILENT };
        assert_eq!(after(beats, |second| sample(State::Runs, second * 1000, 0)), None);
        assert_eq!(after(beats, |_| sample(State::Sleeps, 0, 0)), None);
    }

    #[test]
    fn of_a_thread_of_which_the_kernel_says_nothing_nothing_is_found() {
        let mut judge = Judge::default();
        for _ in 0..60 {
            assert_eq!(judge.look(LIMITS, SILENT, || None), Next::LookAgain);
        }
    }
}
