//! CPU time that the whole machine has used, and whether it is quiet enough for a bound on time.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::child::PartError;

/// The part of all CPUs that may be in use on a quiet machine.
const QUIET_PART_MAX: f64 = 0.15;
/// How long tests with bounds wait for a quiet machine.
pub const QUIET_PATIENCE: Duration = Duration::from_secs(60);
/// How long a machine must be quiet, in one piece.
const QUIET_FOR: Duration = Duration::from_secs(1);

/// CPU seconds of a machine since its start, all CPUs together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Machine {
    /// Everything but idling, waiting, and what was stolen.
    pub busy: f64,
    /// Softirqs.
    pub softirq: f64,
    /// What the hypervisor below stole.
    pub steal: f64,
}

impl Machine {
    /// The seconds until now.
    ///
    /// # Errors
    /// If `/proc/stat` cannot be read, or is not as in proc_stat(5).
    pub fn now() -> Result<Machine, PartError> {
        let text = fs::read_to_string("/proc/stat").map_err(PartError::at("read /proc/stat"))?;
        parse(&text, rustix::param::clock_ticks_per_second())
            .ok_or_else(|| PartError::Failed("/proc/stat is not as in proc_stat(5)".to_owned()))
    }
}

/// Waits until nothing else uses the CPUs, at most this long. Where the counters cannot be read, no
/// machine is quiet.
pub fn becomes_quiet(patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let (start, before) = (Instant::now(), Machine::now());
        // waits: this is the time that is measured.
        thread::sleep(QUIET_FOR);
        let (Ok(before), Ok(now)) = (before, Machine::now()) else { return false };
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let used = (now.busy - before.busy) + (now.steal - before.steal);
        let all =
            start.elapsed().as_secs_f64() * f64::from(u32::try_from(cpus).unwrap_or(u32::MAX));
        if used < QUIET_PART_MAX * all {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
    }
}

fn parse(text: &str, ticks_per_second: u64) -> Option<Machine> {
    let words = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    let second = f64::from(u32::try_from(ticks_per_second).ok()?);
    let busy = (user + nice + system + irq + softirq) / second;
    Some(Machine { busy, softirq: softirq / second, steal: steal / second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_and_steal_are_where_the_kernel_puts_them() {
        let machine = parse("cpu  1 2 4 800 900 8 16 32 0 0\ncpu0 9 9 9", 100).expect("good");
        assert_eq!(machine, Machine { busy: 0.31, softirq: 0.16, steal: 0.32 });
        assert_eq!(parse("cpu 1 2 3", 100), None);
    }
}
