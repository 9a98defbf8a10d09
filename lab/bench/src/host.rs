//! The machine: its description, and how much others used it during a run.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringway_rig::cpu_time::Machine;
use serde::Serialize;

use crate::handoff;

/// The description of the machine, without which a number is meaningless.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct HostRecord {
    cpu: String,
    cpus: usize,
    memory_kib: u64,
    kernel: String,
    distribution: String,
    commit: String,
    command: String,
    /// Versions of the peers that are installed.
    peers: Vec<String>,
}

impl HostRecord {
    /// Describes this machine. Anything that cannot be determined is marked as such.
    pub(crate) fn take() -> HostRecord {
        let unknown = || "unknown".to_owned();
        let field = |file: &str, key: &str, separator: char| {
            let text = fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(key))?.to_owned();
            Some(line.split_once(separator)?.1.trim().trim_matches('"').to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal", ':');
        let memory = memory.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        let peers = [
            ("dpdk-testpmd", &["--version"][..]),
            ("iperf3", &["--version"]),
            ("sockperf", &["--version"]),
            ("valgrind", &["--version"]),
        ];
        HostRecord {
            cpu: field("/proc/cpuinfo", "model name", ':').unwrap_or_else(unknown),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_kib: memory.unwrap_or(0),
            kernel: kernel.map_or_else(|_| unknown(), |text| text.trim().to_owned()),
            distribution: field("/etc/os-release", "PRETTY_NAME", '=').unwrap_or_else(unknown),
            commit: commit().unwrap_or_else(unknown),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            peers: peers.iter().filter_map(|(name, words)| version(name, words)).collect(),
        }
    }

    /// For people.
    pub(crate) fn print(&self) {
        println!("CPU       {} x {}", self.cpus, self.cpu);
        println!("memory    {} MiB", self.memory_kib / 1024);
        println!("kernel    {} on {}", self.kernel, self.distribution);
        println!("commit    {}", self.commit);
        println!("command   {}", self.command);
        for peer in &self.peers {
            println!("peer      {peer}");
        }
    }
}

fn commit() -> Option<String> {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_clean { commit } else { format!("{commit} with changes") })
}

fn version(name: &str, words: &[&str]) -> Option<String> {
    if name == "dpdk-testpmd" {
        // It has no option that only prints its version.
        let output = Command::new("dpkg-query").args(["-W", "dpdk-dev"]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        return output.status.success().then(|| format!("{name} {}", text.trim()));
    }
    let output = Command::new(name).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

/// The share of the machine that others had during a run, and how far apart its CPUs were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Noise {
    /// Stolen by the hypervisor below, in percent of all CPUs.
    pub(crate) steal_percent: f64,
    /// Used by processes that are not ours, in percent of all CPUs.
    pub(crate) foreign_percent: f64,
    /// The time in which a cache line gets from one CPU to another, in nanoseconds: the longer one
    /// of before and after the run.
    pub(crate) handoff_ns: Option<f64>,
}

impl Noise {
    /// Whether the share is large enough for a notice.
    pub(crate) fn is_high(self) -> bool {
        self.steal_percent > 2.0 || self.foreign_percent > 10.0
    }
}

/// The counters at the beginning of a run.
pub(crate) struct Watch {
    start: Instant,
    machine: Machine,
    ours: u64,
    handoff: Option<Duration>,
}

impl Watch {
    pub(crate) fn start() -> Result<Watch> {
        let handoff = handoff::measure();
        Ok(Watch { start: Instant::now(), machine: Machine::now()?, ours: ours()?, handoff })
    }

    /// Call it when the children of the run have been waited for or are still running.
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "few ticks")]
    pub(crate) fn stop(&self) -> Result<Noise> {
        let (machine, ours) = (Machine::now()?, ours()?);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let all = self.start.elapsed().as_secs_f64() * cpus as f64;
        let percent = |seconds: f64| seconds.max(0.0) * 100.0 / all.max(0.01);
        let used = machine.busy - self.machine.busy;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let ours = ours.saturating_sub(self.ours) as f64 / ticks;
        Ok(Noise {
            steal_percent: percent(machine.steal - self.machine.steal),
            foreign_percent: percent(used - ours),
            handoff_ns: self.handoff.max(handoff::measure()).map(|time| time.as_nanos() as f64),
        })
    }
}

/// Ticks used by us and by our descendants, both running ones and those that were waited for.
fn ours() -> Result<u64> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc")? {
        // A process that ended meanwhile has no file any more.
        let stat = fs::read_to_string(entry?.path().join("stat")).unwrap_or_default();
        processes.extend(parse_process(&stat));
    }
    Ok(ticks_below(std::process::id(), &processes))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    ticks: u64,
}

fn parse_process(text: &str) -> Option<Process> {
    let (pid, _) = text.split_once(' ')?;
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    // Fields 14 to 17: user and system time, its own and that of children it has waited for.
    let times = words.get(11..15)?.iter().map(|word| word.parse::<u64>().ok());
    let ticks = times.sum::<Option<u64>>()?;
    Some(Process { pid: pid.parse().ok()?, parent: words.get(1)?.parse().ok()?, ticks })
}

fn ticks_below(root: u32, processes: &[Process]) -> u64 {
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        let children = processes.iter().filter(|process| process.parent == parent);
        family.extend(children.map(|process| process.pid).filter(|pid| *pid != parent));
        next += 1;
    }
    processes.iter().filter(|process| family.contains(&process.pid)).map(|one| one.ticks).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_is_ours_and_that_of_others_is_not() {
        let text = "7 (a) b) R 1 1 1 0 -1 0 9 0 0 0 1 2 4 8 20 0 1 0 100 0 0";
        assert_eq!(parse_process(text), Some(Process { pid: 7, parent: 1, ticks: 15 }));
        assert_eq!(parse_process("1 (a) R 1"), None);
        let process = |pid, parent, ticks| Process { pid, parent, ticks };
        let all = [process(1, 0, 1), process(9, 5, 2), process(5, 7, 4), process(7, 1, 8)];
        assert_eq!(ticks_below(7, &all), 14);
    }
}
