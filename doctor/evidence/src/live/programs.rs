//! The busiest programs, and control groups with a CPU quota.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::fs::getxattr;
use rustix::time::{ClockId, clock_gettime};

use super::{names, read};

/// Threads that are recorded: those that used the most CPU time or waited longest for it.
const THREADS_MAX: usize = 32;
/// CPU ticks from which a thread's wait time is read in the first sample even if it sleeps then:
/// most threads always sleep.
const TICKS_MIN: u64 = 10;
const NANOSECONDS_PER_TICK: u64 = 10_000_000;
/// The state of a thread that runs or waits for a CPU, the first column after the name.
const RUNNABLE: &str = "R";
/// Devices that a program opens to move frames: behind a TAP device, and for a guest.
const DEVICES: [&str; 2] = ["/dev/net/tun", "/dev/vhost-net"];
/// Open files of a program to check for sockets and such devices.
const FILES_MAX: usize = 4096;
/// CPU time to spend on finding owners of sockets, and the elapsed time if other programs use the
/// CPUs.
const OWNERS_CPU_MAX: Duration = Duration::from_millis(300);
const OWNERS_TIME_MAX: Duration = Duration::from_secs(5);
/// Programs of a control group that are recorded.
const MEMBERS_MAX: usize = 4;
/// Control groups that are read; a host may have thousands, and a quota is rare.
const GROUPS_MAX: usize = 4096;
/// Columns of `/proc/PID/stat` after the name, from 0: `flags`, `utime`, `stime`, `policy`.
const FLAGS: usize = 6;
const UTIME: usize = 11;
const STIME: usize = 12;
const POLICY: usize = 38;
/// The flag of a thread of the kernel: `PF_KTHREAD`.
const OF_KERNEL: u64 = 0x0020_0000;
/// Policies that preempt all others: `SCHED_FIFO`, `SCHED_RR`, `SCHED_DEADLINE`.
const REAL_TIME: [u64; 3] = [1, 2, 6];

/// The CPU time that a thread used or, if that is longer, the time that it waited for a CPU, in
/// ticks.
fn weight(ticks: u64, waited_before: Option<u64>, waited_now: Option<u64>) -> u64 {
    let waited = waited_now.zip(waited_before).map_or(0, |(now, then)| now.saturating_sub(then));
    ticks.max(waited / NANOSECONDS_PER_TICK)
}

/// The mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// Our ancestors to check.
const PARENTS_MAX: usize = 8;
/// Hierarchies below it: of version 2, of hybrids, and of version 1.
const MOUNTS: [&str; 4] = ["", "unified", "cpu", "cpu,cpuacct"];

/// All threads at one reading.
#[derive(Debug, Default)]
pub(super) struct Programs {
    threads: BTreeMap<u64, Thread>,
    /// By process: its control groups that can have a CPU quota.
    groups: BTreeMap<u64, Vec<String>>,
}

#[derive(Debug)]
struct Thread {
    process: u64,
    stat: String,
    ticks: u64,
    is_real_time: bool,
    is_of_kernel: bool,
    /// Nanoseconds that it waited for a CPU, if read.
    waited: Option<u64>,
}

impl Programs {
    /// Adds the line of a thread. `has_waits` is for the first sample, when it is still unknown
    /// whose waits matter.
    pub(super) fn take(&mut self, process: &str, thread: &str, stat: &str, has_waits: bool) {
        let (Ok(process), Ok(id)) = (process.parse(), thread.parse()) else { return };
        let columns: Vec<&str> =
            stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace().collect();
        let number = |at: usize| columns.get(at).and_then(|word| word.parse::<u64>().ok());
        let ticks = number(UTIME).unwrap_or(0).saturating_add(number(STIME).unwrap_or(0));
        self.threads.insert(
            id,
            Thread {
                process,
                stat: stat.trim_end().to_owned(),
                ticks,
                is_real_time: number(POLICY).is_some_and(|one| REAL_TIME.contains(&one)),
                is_of_kernel: number(FLAGS).is_some_and(|flags| flags & OF_KERNEL != 0),
                waited: (has_waits && (ticks >= TICKS_MIN || columns.first() == Some(&RUNNABLE)))
                    .then(|| waited(process, id))
                    .flatten(),
            },
        );
    }

    /// Adds the control groups of a process.
    pub(super) fn take_groups(&mut self, process: &str) {
        let Ok(id) = process.parse() else { return };
        let Ok(text) = read(Path::new(&format!("/proc/{process}/cgroup"))) else { return };
        self.groups.insert(id, text.lines().filter_map(group).map(str::to_owned).collect());
    }

    /// The threads that used the most CPU time since `self` or waited longest for it, as they were
    /// then and as they are `now`: one file of lines per sample.
    pub(super) fn busiest(&self, now: &Programs) -> [String; 2] {
        let mut grown: Vec<(u64, u64, Option<u64>)> = Vec::new();
        for (id, thread) in &now.threads {
            // All the time of a thread that was started since then counts.
            let known = self.threads.get(id).filter(|known| known.process == thread.process);
            let ticks = thread.ticks.saturating_sub(known.map_or(0, |known| known.ticks));
            let waited_before = known.and_then(|known| known.waited);
            if ticks == 0 && waited_before.is_none() {
                continue;
            }
            let waits = waited(thread.process, *id);
            let weight = weight(ticks, waited_before, waits);
            if weight > 0 {
                grown.push((weight, *id, waits));
            }
        }
        grown.sort_unstable_by(|a, b| b.cmp(a));
        grown.truncate(THREADS_MAX);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut kinds = BTreeMap::new();
        for (_, id, waits) in grown {
            let Some(thread) = now.threads.get(&id) else { continue };
            let kind = *kinds.entry(thread.process).or_insert_with(|| thread.kind());
            after.push(thread.line(kind, waits));
            if let Some(known) = self.threads.get(&id) {
                before.push(known.line(kind, known.waited));
            }
        }
        [before, after].map(|lines| file("busiest", &lines))
    }

    /// CPU time and throttling of the groups with a quota, one per line.
    pub(super) fn quotas(&self) -> String {
        let roots = roots();
        let mut members: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for (process, groups) in &self.groups {
            for group in groups {
                // A group's quota also limits all groups below it.
                let mut at = group.as_str();
                while !at.is_empty() && at != "/" {
                    members.entry(at).or_default().insert(*process);
                    at = at.rsplit_once('/').map_or("", |(above, _)| above);
                }
            }
        }
        let lines: Vec<String> = members
            .iter()
            .take(GROUPS_MAX)
            .filter_map(|(group, members)| self.quota(&roots, group, members))
            .collect();
        file("cgroups", &lines)
    }

    fn quota(&self, roots: &[String], group: &str, members: &BTreeSet<u64>) -> Option<String> {
        let (folder, quota, period) = roots
            .iter()
            .flat_map(|root| MOUNTS.iter().map(move |mount| format!("{root}/{mount}{group}")))
            .find_map(|folder| limit(&folder).map(|(quota, period)| (folder, quota, period)))?;
        let stat = read(Path::new(&format!("{folder}/cpu.stat"))).ok()?;
        let value = |name: &str| {
            stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let throttled =
            value("throttled_usec ").or_else(|| Some(value("throttled_time ")? / 1000))?;
        let mut line = format!(
            "{} quota={quota} period={period} periods={} throttled={} throttled_us={throttled}",
            plain(group),
            value("nr_periods ")?,
            value("nr_throttled ")?
        );
        // Network programs first, then those that used the most.
        let ticks = |process: &u64| self.threads.get(process).map_or(0, |thread| thread.ticks);
        let mut members: Vec<(bool, u64, u64)> = members
            .iter()
            .map(|process| (is_of_network(*process), ticks(process), *process))
            .collect();
        members.sort_unstable_by(|a, b| b.cmp(a));
        for (is_network, _, process) in members.into_iter().take(MEMBERS_MAX) {
            let kind = if is_network { "network" } else { "other" };
            let _ = write!(line, " {process}:{kind}:{}", plain(&program(process)));
        }
        Some(line)
    }
}

impl Thread {
    fn kind(&self) -> &'static str {
        match (self.is_of_kernel, is_of_network(self.process)) {
            (true, _) => "kernel",
            (false, true) => "network",
            (false, false) => "other",
        }
    }

    /// The process, its kind, nanoseconds that it waited or `-`, and the line of `stat`.
    fn line(&self, kind: &str, waited: Option<u64>) -> String {
        let policy = if self.is_real_time { "real-time" } else { "fair" };
        let waited = waited.map_or("-".to_owned(), |waited| waited.to_string());
        let program = plain(&program(self.process));
        format!("{} {program} {kind} {policy} {waited} {}", self.process, self.stat)
    }
}

/// Paths where control groups may be visible: `ip netns exec` hides the machine's behind its own
/// `/sys`, but its caller still sees them.
fn roots() -> Vec<String> {
    let mut roots = vec![GROUPS.to_owned()];
    let mut process = "self".to_owned();
    for _ in 0..PARENTS_MAX {
        let stat = read(Path::new(&format!("/proc/{process}/stat"))).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        match rest.split_whitespace().nth(1) {
            Some(parent) if parent != "0" => process = parent.to_owned(),
            _ => break,
        }
        let root = format!("/proc/{process}/root{GROUPS}");
        if Path::new(&root).is_dir() {
            roots.push(root);
        }
    }
    roots
}

/// The path in a line of `/proc/PID/cgroup`, if that hierarchy limits CPUs.
fn group(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let is_cpu = controllers.is_empty() || controllers.split(',').any(|one| one == "cpu");
    (is_cpu && path.starts_with('/') && path != "/" && !path.contains("/..")).then_some(path)
}

/// The quota and the period in microseconds; `None` without a quota.
fn limit(folder: &str) -> Option<(u64, u64)> {
    let file = |name: &str| read(Path::new(&format!("{folder}/{name}"))).ok();
    if let Some(both) = file("cpu.max") {
        let (quota, period) = both.trim().split_once(' ')?;
        return Some((quota.parse().ok()?, period.parse().ok()?));
    }
    let quota = file("cpu.cfs_quota_us")?.trim().parse().ok()?;
    Some((quota, file("cpu.cfs_period_us")?.trim().parse().ok()?))
}

fn waited(process: u64, thread: u64) -> Option<u64> {
    let text = read(Path::new(&format!("/proc/{process}/task/{thread}/schedstat"))).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

fn program(process: u64) -> String {
    read(Path::new(&format!("/proc/{process}/comm"))).unwrap_or_default().trim().to_owned()
}

/// A name without characters that would end a column.
fn plain(name: &str) -> String {
    let word =
        |letter: char| if letter.is_whitespace() || letter.is_control() { '_' } else { letter };
    if name.is_empty() { "-".to_owned() } else { name.chars().map(word).collect() }
}

/// Whether a program has a network socket, as far as we may read its files.
fn is_of_network(process: u64) -> bool {
    let folder = format!("/proc/{process}/fd");
    names(Path::new(&folder)).into_iter().take(FILES_MAX).any(|name| {
        let path = format!("{folder}/{name}");
        let Ok(to) = fs::read_link(&path) else { return false };
        let to = to.to_string_lossy();
        DEVICES.contains(&&*to) || (to.starts_with("socket:") && is_network_socket(&path))
    })
}

fn is_network_socket(path: &str) -> bool {
    let mut name = [0_u8; 32];
    let Ok(length) = getxattr(path, "system.sockprotoname", &mut name) else { return false };
    let name = String::from_utf8_lossy(name.get(..length).unwrap_or_default()).into_owned();
    ["TCP", "UDP", "RAW", "PING", "SCTP", "MPTCP", "PACKET"].iter().any(|one| name.starts_with(one))
}

/// The owners of these sockets, as far as we may see them: a file of lines. A host may have a
/// hundred thousand open files, so the search has a time limit. The head says how many programs
/// could not be read, and how many were left at the limit.
pub(super) fn owners(inodes: &BTreeSet<u64>) -> String {
    let (began, deadline) = (cpu_time(), Instant::now() + OWNERS_TIME_MAX);
    let is_over = || cpu_time().saturating_sub(began) > OWNERS_CPU_MAX || Instant::now() > deadline;
    let mut found: BTreeMap<u64, String> = BTreeMap::new();
    let (mut refused, mut late) = (0_u64, 0_u64);
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    for process in names(Path::new("/proc")).into_iter().filter(is_number) {
        if found.len() == inodes.len() {
            break;
        }
        if late > 0 || is_over() {
            late += 1;
            continue;
        }
        let folder = format!("/proc/{process}/fd");
        let is_refused = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        if fs::read_dir(&folder).is_err_and(is_refused) {
            refused += 1;
            continue;
        }
        for name in names(Path::new(&folder)).into_iter().take(FILES_MAX) {
            let Ok(to) = fs::read_link(format!("{folder}/{name}")) else { continue };
            let to = to.to_string_lossy();
            let inode = to.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            let inode = inode.and_then(|inode| inode.parse().ok());
            if let Some(inode) = inode.filter(|inode| inodes.contains(inode)) {
                let program = process.parse().map(program).unwrap_or_default();
                found.entry(inode).or_insert_with(|| format!("{process} {}", plain(&program)));
            }
        }
    }
    let lines: Vec<String> =
        found.iter().map(|(inode, owner)| format!("{inode} {owner}")).collect();
    let head = format!("owners: {} refused={refused} late={late}\n", lines.len());
    lines.iter().fold(head, |text, line| text + line + "\n")
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A file of lines, with their number at its head.
fn file(name: &str, lines: &[String]) -> String {
    let mut text = format!("{name}: {}\n", lines.len());
    for line in lines {
        text += line;
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_cpus_are_distinguished_from_others() {
        assert_eq!(group("0::/system.slice/a.service"), Some("/system.slice/a.service"));
        assert_eq!(group("3:cpu,cpuacct:/docker/x"), Some("/docker/x"));
        for line in ["3:cpuset:/x", "0::/", "1:cpu:/../x", "", "1:cpu"] {
            assert_eq!(group(line), None, "{line}");
        }
    }

    #[test]
    fn the_busiest_are_named_in_both_samples() {
        let stat = |ticks: u64| {
            format!("7 (a b) R 1 7 7 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0")
        };
        let at = |ticks| {
            let mut all = Programs::default();
            all.take("7", "7", &stat(ticks), true);
            all.take("8", "8", "8 (idle) S 1 8 8 0 -1 0 0 0 0 0 5 0", true);
            all
        };
        let [before, after] = at(50).busiest(&at(90));
        assert!(
            before.starts_with("busiest: 1\n7 ") && after.ends_with(&format!("{}\n", stat(90)))
        );
        assert!(!after.contains("idle"), "{after}");
    }

    #[test]
    fn a_thread_that_waits_counts_as_much_as_one_that_runs() {
        let second = NANOSECONDS_PER_TICK * 100;
        assert_eq!(weight(3, Some(second), Some(3 * second)), 200);
        assert_eq!(weight(50, Some(second), Some(second)), 50);
        assert_eq!(weight(0, None, Some(second)), 0, "when it waited is not known");
    }
}
