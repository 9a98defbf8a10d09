//! Notices that this process did not run for a while, and why.

use std::fmt;
use std::time::{Duration, Instant};

/// A time in which the watch did not run: this process was starved of CPU time, or stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// How long it lasted.
    pub lasted: Duration,
    /// CPU time that all threads of this process used meanwhile.
    pub used: Duration,
    /// For how much of it the watch was ready to run; `None` if the kernel does not count that.
    pub delayed: Option<Duration>,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pause { lasted, used, delayed } = self;
        write!(
            f,
            "the watchdog of this process did not run for {lasted:.1?}, in which all threads used \
             {used:.1?} of CPU time: "
        )?;
        match delayed {
            Some(delayed) if *delayed >= *lasted / 2 => {
                f.write_str("it got no CPU: the machine is overloaded, or its CPU quota is too low")
            }
            Some(_) => f.write_str(
                "it was stopped (SIGSTOP, a debugger, a frozen cgroup), or the whole machine was",
            ),
            None => f.write_str("the machine is overloaded, or this process was stopped"),
        }
    }
}

/// One turn of the watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) at: Instant,
    /// CPU time of this process so far.
    pub(crate) used: Duration,
    /// Time so far that the watch was ready to run and did not run, if the kernel counts that.
    pub(crate) delayed: Option<Duration>,
}

impl Turn {
    /// The time since the turn before this one, if it lasted at least `limit`.
    pub(crate) fn pause_since(&self, before: &Turn, limit: Duration) -> Option<Pause> {
        let lasted = self.at.saturating_duration_since(before.at);
        let delayed = self.delayed.zip(before.delayed);
        (lasted >= limit).then(|| Pause {
            lasted,
            used: self.used.saturating_sub(before.used),
            delayed: delayed.map(|(now, before)| now.saturating_sub(before)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// What is said of a turn that comes `lasted` seconds after another.
    fn after(lasted: u64, used_ms: u64, delayed: Option<u64>) -> Option<String> {
        let [used, begun] = [Duration::from_secs(7), Duration::from_secs(3)];
        let before = Turn { at: Instant::now(), used, delayed: delayed.map(|_| begun) };
        let now = Turn {
            at: before.at + Duration::from_secs(lasted),
            used: used + Duration::from_millis(used_ms),
            delayed: delayed.map(|delayed| begun + Duration::from_secs(delayed)),
        };
        now.pause_since(&before, LIMIT).map(|pause| pause.to_string())
    }

    #[test]
    fn a_starved_process_is_told_from_a_stopped_one() {
        let starved = after(23, 40, Some(22)).expect("it is long");
        assert!(starved.contains("for 23.0s") && starved.contains("used 40.0ms"), "{starved}");
        assert!(starved.contains("it got no CPU"), "{starved}");
        let stopped = after(23, 0, Some(0)).expect("it is long");
        assert!(stopped.contains("it was stopped (SIGSTOP"), "{stopped}");
        let unknown = after(23, 0, None).expect("it is long");
        assert!(unknown.contains("overloaded, or this process was stopped"), "{unknown}");
    }

    #[test]
    fn a_short_delay_is_no_pause() {
        assert_eq!(after(19, 0, Some(19)), None);
    }
}
