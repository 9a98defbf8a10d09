//! The busiest programs, and control groups with a CPU quota: files of the record, one line for
//! each.

use std::collections::BTreeMap;

use super::threads::{Thread, Threads};
use super::{Counters, reply_lines};
use crate::{Gap, Quote, Text};

/// The threads that used the most CPU time between the samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Busiest {
    /// By thread id.
    pub threads: BTreeMap<u64, Busy>,
}

/// What a thread that uses a CPU has to do with the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProgramKind {
    /// A thread of the kernel.
    Kernel,
    /// A program with a network socket.
    Network,
    /// A program without one.
    #[default]
    Other,
}

impl ProgramKind {
    fn of(word: &str) -> Option<ProgramKind> {
        match word {
            "kernel" => Some(ProgramKind::Kernel),
            "network" => Some(ProgramKind::Network),
            "other" => Some(ProgramKind::Other),
            _ => None,
        }
    }
}

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Busy {
    /// Its process.
    pub process: u64,
    /// The name of the process.
    pub program: String,
    /// What the process does.
    pub trade: ProgramKind,
    /// Whether it has a real-time policy, so that others wait for it.
    pub is_real_time: bool,
    /// Nanoseconds that it waited for a CPU, if they were read.
    pub waited_ns: Option<u64>,
    /// Its CPU time.
    pub thread: Thread,
    /// Its line in the file.
    pub line: usize,
}

impl Counters for Busiest {
    fn parse(text: &Text) -> Result<Busiest, Gap> {
        let mut threads = BTreeMap::new();
        for (line, row) in lines(text, "busiest")? {
            let refuse = || text.unreadable(Some(line), "expected a thread that is busy");
            let mut words = row.splitn(6, ' ');
            let mut word = || words.next().ok_or_else(refuse);
            let process = word()?.parse().map_err(|_| refuse())?;
            let program = word()?.to_owned();
            let trade = ProgramKind::of(word()?).ok_or_else(refuse)?;
            let is_real_time = match word()? {
                "real-time" => true,
                "fair" => false,
                _ => return Err(refuse()),
            };
            let waited_ns = match word()? {
                "-" => None,
                number => Some(number.parse().map_err(|_| refuse())?),
            };
            let stat = Threads::parse(&Text::new(text.origin(), word()?)).map_err(|_| refuse())?;
            let (id, thread) = stat.threads.into_iter().next().ok_or_else(refuse)?;
            let busy = Busy { process, program, trade, is_real_time, waited_ns, thread, line };
            threads.insert(id, busy);
        }
        Ok(Busiest { threads })
    }
}

impl Busy {
    /// Its name for people: the program, and the thread if it has another name.
    pub fn name(&self) -> String {
        if self.program == self.thread.name {
            return format!("{} (process {})", self.program, self.process);
        }
        format!("{} of {} (process {})", self.thread.name, self.program, self.process)
    }

    /// Quotes its CPU time.
    pub fn quote(&self, ticks: u64, seconds: f64) -> Quote {
        self.thread.quote(ticks, seconds)
    }
}

/// Control groups with a quota of CPU time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    /// By their paths.
    pub groups: BTreeMap<String, Quota>,
}

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quota {
    /// The quota: microseconds of CPU time in each period, on all CPUs together.
    pub quota_us: u64,
    /// Microseconds of a period.
    pub period_us: u64,
    /// Periods in which it was runnable.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled: u64,
    /// Microseconds for which its threads were throttled.
    pub throttled_us: u64,
    /// Some of its programs: PID and name, those with sockets first.
    pub programs: Vec<(u64, String)>,
    /// Whether one has a network socket.
    pub is_network: bool,
    /// Its line in the file.
    pub line: usize,
}

impl Counters for Quotas {
    fn parse(text: &Text) -> Result<Quotas, Gap> {
        let mut groups = BTreeMap::new();
        for (line, row) in lines(text, "cgroups")? {
            let refuse = || text.unreadable(Some(line), "expected a control group and its quota");
            let mut words = row.split_whitespace();
            let path = words.next().ok_or_else(refuse)?.to_owned();
            let mut number = |name: &str| {
                let word = words.next().and_then(|word| word.strip_prefix(name));
                word.and_then(|word| word.strip_prefix('=')?.parse().ok()).ok_or_else(refuse)
            };
            let mut quota = Quota {
                quota_us: number("quota")?,
                period_us: number("period")?,
                periods: number("periods")?,
                throttled: number("throttled")?,
                throttled_us: number("throttled_us")?,
                line,
                ..Quota::default()
            };
            for word in words {
                let mut parts = word.splitn(3, ':');
                let mut part = || parts.next().ok_or_else(refuse);
                let process = part()?.parse().map_err(|_| refuse())?;
                let trade = ProgramKind::of(part()?).ok_or_else(refuse)?;
                quota.is_network |= trade == ProgramKind::Network;
                quota.programs.push((process, part()?.to_owned()));
            }
            groups.insert(path, quota);
        }
        Ok(Quotas { groups })
    }
}

fn lines<'a>(text: &'a Text, name: &str) -> Result<Vec<(usize, &'a str)>, Gap> {
    reply_lines(text, name)?
        .ok_or_else(|| text.unreadable(Some(1), format!("expected {name} and a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_read_with_its_program() {
        let row = "7 iperf3 network fair 90 8 (a b) R 1 7 7 0 -1 0 0 0 0 0 5 6 0 0";
        let read = Busiest::parse(&Text::new("busiest", format!("busiest: 1\n{row}\n")));
        let read = read.expect("sound");
        let busy = &read.threads[&8];
        assert_eq!((busy.process, busy.waited_ns, busy.thread.ticks), (7, Some(90), 11));
        assert_eq!(busy.name(), "a b of iperf3 (process 7)");
        for torn in ["", "busiest: 1\n", "busiest: 1\n7 x\n", "busiest: x\n"] {
            assert!(Busiest::parse(&Text::new("busiest", torn)).is_err(), "{torn:?}");
        }
    }

    #[test]
    fn a_quota_is_read_with_its_programs() {
        let row = "/a quota=1 period=2 periods=3 throttled=4 throttled_us=5 7:network:x 8:other:y";
        let read = Quotas::parse(&Text::new("cgroups", format!("cgroups: 1\n{row}\n")));
        let read = read.expect("sound");
        let group = &read.groups["/a"];
        assert!(group.is_network && group.throttled_us == 5);
        assert_eq!(group.programs, [(7, "x".to_owned()), (8, "y".to_owned())]);
        for torn in ["", "cgroups: 1\n/a quota=1\n", "cgroups: 1\n/a 1 2 3 4 5\n"] {
            assert!(Quotas::parse(&Text::new("cgroups", torn)).is_err(), "{torn:?}");
        }
    }
}
