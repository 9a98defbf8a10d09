//! A process that sends no messages: for how long, and what it does meanwhile.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use ringway_sys::process::cpu_time;

/// How long a process may be silent. A process ends by itself when one of its threads is stuck, and
/// sends a keep-alive message each second as long as it gets any CPU time. So a silent one has had
/// no CPU time for this long, or is stopped.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// After this time its CPU time is noted, to see what it uses from then on.
const NOTED_AFTER: Duration = Duration::from_secs(20);
/// One in this of the time since then: a process that used less did not run.
const IDLE_DIVISOR: u32 = 100;

/// What the kernel says of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activity {
    cpu: Duration,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// One of its threads at least is stopped, by a signal or a debugger: then all are, or soon.
    Stopped,
    /// One of its threads at least runs or waits for a CPU.
    Runs,
    Sleeps,
}

impl Activity {
    pub(super) fn of(process: u32) -> io::Result<Activity> {
        let cpu = cpu_time(process)?;
        let mut states = Vec::new();
        for thread in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
            // A thread that has just ended has no file.
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The name is in parentheses, and anything may occur in it.
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            states.extend(rest.trim_start().chars().next());
        }
        let state = match () {
            () if states.iter().any(|state| "Tt".contains(*state)) => State::Stopped,
            () if states.contains(&'R') => State::Runs,
            () => State::Sleeps,
        };
        Ok(Activity { cpu: cpu.user + cpu.system, state })
    }

    /// Why a process sends nothing, if it was like `before` that long ago.
    fn reason(&self, before: &Activity, ago: Duration) -> String {
        let used = self.cpu.saturating_sub(before.cpu);
        match self.state {
            State::Stopped => "it is stopped, by a signal or a debugger".to_owned(),
            _ if used > ago / IDLE_DIVISOR => {
                format!("it is stuck: it used {used:.1?} of CPU time in the last {ago:.0?}")
            }
            State::Runs => "it gets no CPU: the machine is overloaded, or the CPU quota of its \
                            cgroup is too low"
                .to_owned(),
            State::Sleeps => "it sleeps and uses no CPU time: it is in a frozen cgroup, or waits \
                              in the kernel"
                .to_owned(),
        }
    }
}

/// The time since the last message of a process.
#[derive(Debug)]
pub(super) struct Silence {
    since: Instant,
    /// When its CPU time was noted, and what the kernel said, if it did.
    noted: Option<(Instant, Option<Activity>)>,
}

impl Silence {
    /// It begins with a message, or with the start of the process.
    pub(super) fn since(now: Instant) -> Silence {
        Silence { since: now, noted: None }
    }

    /// When to [`check`](Silence::check) it next.
    pub(super) fn deadline(&self) -> Instant {
        match self.noted {
            None => self.since + NOTED_AFTER,
            Some((at, _)) => at + (KEEP_ALIVE_TIMEOUT - NOTED_AFTER),
        }
    }

    /// Why the process must be ended, if it was silent for too long. The first check that is due
    /// only notes its activity, so it is not ended because this process did not run itself.
    pub(super) fn check(
        &mut self,
        now: Instant,
        activity: impl FnOnce() -> Option<Activity>,
    ) -> Option<String> {
        if now < self.deadline() {
            return None;
        }
        let Some((at, before)) = &self.noted else {
            self.noted = Some((now, activity()));
            return None;
        };
        let silent = now.saturating_duration_since(self.since);
        let ago = now.saturating_duration_since(*at);
        // A service manager may hide other processes (`hidepid` of proc(5)).
        let reason = before.zip(activity()).map_or_else(
            || "/proc does not show what it does".to_owned(),
            |(before, activity)| activity.reason(&before, ago),
        );
        Some(format!("it sent no keep-alive message for {silent:.0?}: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

    use super::*;
    use crate::host::as_pid;

    fn at(start: Instant, secs: u64) -> Instant {
        start + Duration::from_secs(secs)
    }

    fn activity(cpu_ms: u64, state: State) -> Option<Activity> {
        Some(Activity { cpu: Duration::from_millis(cpu_ms), state })
    }

    /// Why a process is ended that is silent for a minute, if it used so much CPU time after the
    /// first twenty seconds.
    fn reason(used_ms: u64, state: State) -> String {
        let start = Instant::now();
        let mut silence = Silence::since(start);
        assert_eq!(silence.check(at(start, 19), || panic!("it is too early")), None);
        assert_eq!(silence.deadline(), at(start, 20));
        assert_eq!(silence.check(at(start, 20), || activity(5000, state)), None);
        assert_eq!(silence.check(at(start, 59), || panic!("once is enough")), None);
        assert_eq!(silence.deadline(), at(start, 60));
        silence.check(at(start, 60), || activity(5000 + used_ms, state)).expect("it is too long")
    }

    #[test]
    fn a_silent_process_that_is_starved_stopped_or_stuck_is_named_as_such() {
        for (used_ms, state, expected) in [
            (0, State::Stopped, "for 60s: it is stopped, by a signal"),
            (10, State::Runs, "for 60s: it gets no CPU"),
            (0, State::Sleeps, "for 60s: it sleeps and uses no CPU time"),
            (39_500, State::Runs, "it is stuck: it used 39.5s of CPU time in the last 40s"),
            (1000, State::Sleeps, "it is stuck: it used 1.0s"),
        ] {
            let reason = reason(used_ms, state);
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn a_process_is_not_silent_while_its_supervisor_was_stopped() {
        let start = Instant::now();
        let mut silence = Silence::since(start);
        assert_eq!(silence.check(at(start, 300), || activity(0, State::Runs)), None);
        assert_eq!(silence.deadline(), at(start, 340));
        let reason = silence.check(at(start, 340), || None).expect("it is too long");
        assert!(reason.contains("for 340s: /proc does not show"), "{reason}");
    }

    #[test]
    fn the_kernel_says_whether_a_process_is_stopped() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("started");
        let state = || Activity::of(child.id()).expect("it is there").state;
        assert_ne!(state(), State::Stopped);
        let pid = as_pid(child.id()).expect("a number");
        kill_process(pid, Signal::STOP).expect("ours");
        waitpid(Some(pid), WaitOptions::UNTRACED).expect("ours").expect("it is stopped");
        assert_eq!(state(), State::Stopped);
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert!(Activity::of(u32::MAX).is_err());
    }
}
