//! One TCP transfer by iperf3, and its cost for the processes between the ends.

use std::fs;
use std::ops::{Add, Sub};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_rig::child::Child;
use serde_json::Value;

use crate::options::Congestion;

const PATIENCE: Duration = Duration::from_secs(20);
/// The first second of a connection is slow start and is left out.
const OMITTED_SECONDS: u64 = 1;
/// The unit of costs: as much as a kernel sends in one frame.
const UNIT_BYTES: f64 = 65_536.0;

/// The result of a transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    /// Gigabits per second received.
    pub(crate) gbits: f64,
    /// CPU time per 64 KiB, in microseconds.
    pub(crate) cpu_micros: f64,
    /// Wake-ups from sleep per 64 KiB.
    pub(crate) wake_ups: f64,
    /// Context switches, voluntary or not, per 64 KiB.
    pub(crate) switches: f64,
}

/// The parameters of a transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) streams: u32,
    pub(crate) seconds: u64,
    /// Set on the sockets, because a namespace's default can only be what the host allows for
    /// everyone.
    pub(crate) congestion: Congestion,
}

/// Sends from end 0 to end 1, which has `address`. `start` starts a program at an end; `pids` are
/// the processes whose costs count.
pub(crate) fn transfer<E: Into<anyhow::Error>>(
    start: &impl Fn(usize, &[&str]) -> Result<Child, E>,
    address: &str,
    load: Load,
    pids: &[u32],
) -> Result<Transfer> {
    let start = |end, words: &[&str]| start(end, words).map_err(Into::into);
    let mut server = start(1, &["--server", "--one-off", "--forceflush"])?;
    server.wait_for(PATIENCE, |line| line.starts_with("Server listening").then_some(()))?;
    let Load { streams, seconds, congestion } = load;
    let (streams, omit) = (streams.to_string(), OMITTED_SECONDS.to_string());
    let (time, congestion) = (seconds.to_string(), congestion.name());
    let words = ["--json", "--client", address, "--parallel", &streams];
    let more = ["--time", &time, "--omit", &omit, "--congestion", congestion];
    let before = Cost::of(pids)?;
    let client = start(0, &[&words[..], &more].concat())?;
    let output = client.output(PATIENCE + Duration::from_secs(seconds + OMITTED_SECONDS))?;
    let cost = Cost::of(pids)? - before;
    let output: Value = serde_json::from_str(&output).context("iperf3's JSON")?;
    let used = output.pointer("/end/sender_tcp_congestion").and_then(Value::as_str);
    ensure!(
        used == Some(congestion),
        "TCP used {} and not {congestion}: `modprobe tcp_{congestion}`",
        used.unwrap_or("an algorithm that iperf3 does not name")
    );
    let rate = output.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    let units = bytes_sent(&output).context("iperf3 reported no intervals")? / UNIT_BYTES;
    Ok(Transfer {
        gbits: rate.context("iperf3 reported no rate")? / 1e9,
        cpu_micros: cost.cpu.as_secs_f64() * 1e6 / units,
        wake_ups: cost.wake_ups / units,
        switches: cost.switches / units,
    })
}

/// All bytes sent, including those of the omitted second, which have their cost, too.
fn bytes_sent(output: &Value) -> Option<f64> {
    let intervals = output.get("intervals")?.as_array()?;
    let bytes = intervals.iter().map(|interval| interval.pointer("/sum/bytes")?.as_f64());
    bytes.sum::<Option<f64>>().filter(|bytes| *bytes > 0.0)
}

/// The CPU time and switches of processes so far, all threads together.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    cpu: Duration,
    wake_ups: f64,
    switches: f64,
}

impl Cost {
    fn of(pids: &[u32]) -> Result<Cost> {
        pids.iter().try_fold(Cost::default(), |sum, pid| Ok(sum + Cost::of_process(*pid)?))
    }

    fn of_process(pid: u32) -> Result<Cost> {
        let time = ringway_sys::process::cpu_time(pid)?;
        let mut cost = Cost { cpu: time.user + time.system, ..Cost::default() };
        let tasks = format!("/proc/{pid}/task");
        for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
            // A thread that has ended meanwhile has no file any more.
            let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
            let (voluntary, forced) = switches_of(&status);
            cost.wake_ups += voluntary;
            cost.switches += voluntary + forced;
        }
        Ok(cost)
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            cpu: self.cpu + other.cpu,
            wake_ups: self.wake_ups + other.wake_ups,
            switches: self.switches + other.switches,
        }
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, earlier: Cost) -> Cost {
        Cost {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            wake_ups: self.wake_ups - earlier.wake_ups,
            switches: self.switches - earlier.switches,
        }
    }
}

/// Voluntary and involuntary context switches of a thread, from the file `status` of proc(5).
fn switches_of(status: &str) -> (f64, f64) {
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.trim().parse().ok()).unwrap_or(0.0)
    };
    (number("voluntary_ctxt_switches:"), number("nonvoluntary_ctxt_switches:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_omitted_second_counts_for_the_cost() {
        let output = serde_json::json!({ "intervals": [
            { "sum": { "bytes": 100, "omitted": true } }, { "sum": { "bytes": 50 } },
        ] });
        assert_eq!(bytes_sent(&output), Some(150.0));
        assert_eq!(bytes_sent(&serde_json::json!({ "intervals": [] })), None);
    }

    #[test]
    fn both_kinds_of_switches_are_read() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches_of(status), (12.0, 3.0));
        assert_eq!(switches_of(""), (0.0, 0.0));
    }

    #[test]
    fn our_own_cost_can_be_read() {
        assert!(Cost::of(&[std::process::id()]).expect("we live").switches >= 0.0);
        assert!(Cost::of(&[u32::MAX]).is_err());
    }
}
