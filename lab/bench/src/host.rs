//! The machine: its description, and how much others used it during a run.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringway_rig::cpu_time::Machine;
use ringway_rig::machine::{self, Build};
use ringway_rig::tools::Tool;
use serde::Serialize;

use crate::handoff;

/// The description of the machine, without which a number is meaningless.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct HostRecord {
    #[serde(flatten)]
    machine: machine::Host,
    command: String,
    /// Versions of installed peers that make no load.
    peers: Vec<String>,
}

impl HostRecord {
    /// Describes this machine. Anything that cannot be determined is marked as such.
    pub(crate) fn take() -> HostRecord {
        let commit = commit().unwrap_or_else(|| "unknown".to_owned());
        let build = Build { version: env!("CARGO_PKG_VERSION").to_owned(), commit };
        // testpmd has no option that only prints its version.
        let testpmd = first_line("dpkg-query", &["-W", "dpdk-dev"]);
        let valgrind = first_line("valgrind", &["--version"]);
        HostRecord {
            machine: machine::describe(&build, &BTreeSet::from([Tool::Iperf3, Tool::Sockperf])),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            peers: testpmd.into_iter().chain(valgrind).collect(),
        }
    }

    /// For people.
    pub(crate) fn print(&self) {
        let machine = &self.machine;
        println!("CPU       {} x {}", machine.cpus, machine.cpu_model);
        println!("memory    {} MiB", machine.memory_kib / 1024);
        println!("kernel    {} on {}", machine.kernel, machine.os);
        println!("commit    {}", machine.git_commit);
        println!("command   {}", self.command);
        for peer in machine.tools.values().chain(&self.peers) {
            println!("peer      {peer}");
        }
    }
}

fn commit() -> Option<String> {
    let commit = first_line("git", &["rev-parse", "--short=12", "HEAD"])?;
    let changes = first_line("git", &["status", "--porcelain", "--untracked-files=no"]);
    Some(changes.map_or_else(|| commit.clone(), |_| format!("{commit} with changes")))
}

/// What a program prints first, if it is installed and succeeds.
fn first_line(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    output.status.success().then(|| line.trim().to_owned())
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
    let processes = processes()?;
    Ok(family_of(std::process::id(), &processes).map(|process| process.ticks).sum())
}

/// A process and its descendants.
pub(crate) fn family(root: u32) -> Result<Vec<u32>> {
    Ok(family_of(root, &processes()?).map(|process| process.pid).collect())
}

fn processes() -> Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc")? {
        // A process that ended meanwhile has no file any more.
        let stat = fs::read_to_string(entry?.path().join("stat")).unwrap_or_default();
        processes.extend(parse_process(&stat));
    }
    Ok(processes)
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

fn family_of(root: u32, processes: &[Process]) -> impl Iterator<Item = &Process> {
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        let children = processes.iter().filter(|process| process.parent == parent);
        family.extend(children.map(|process| process.pid).filter(|pid| *pid != parent));
        next += 1;
    }
    processes.iter().filter(move |process| family.contains(&process.pid))
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
        let family = |root| family_of(root, &all).map(|one| one.ticks).sum::<u64>();
        assert_eq!((family(7), family(5), family(2)), (14, 6, 0));
    }
}
