//! CPU time of the threads that move frames: one `stat` line for each.

use std::collections::BTreeMap;

use super::Counters;
use crate::{Gap, Quote, Text};

/// By process and thread id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Threads {
    /// By thread id.
    pub threads: BTreeMap<u64, Thread>,
}

/// One thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub id: u64,
    /// Such as `vif1.0-q0-guest`; the kernel cuts names to fifteen letters.
    pub name: String,
    /// Ticks of CPU time, in user mode and in the kernel.
    pub ticks: u64,
    /// The CPU that it ran on last.
    pub cpu: Option<u64>,
    /// Its line in the file.
    pub line: usize,
}

/// Columns after the name, from 0: `utime`, `stime`, `processor` of `proc_pid_stat(5)`.
const UTIME: usize = 11;
const STIME: usize = 12;
const PROCESSOR: usize = 36;

impl Counters for Threads {
    fn parse(text: &Text) -> Result<Threads, Gap> {
        let mut threads = BTreeMap::new();
        for (line, row) in text.lines() {
            let refuse = || text.unreadable(Some(line), "expected a line of /proc/PID/stat");
            // A name may contain spaces and parentheses; the last closing one ends it.
            let (id, rest) = row.split_once(" (").ok_or_else(refuse)?;
            let (name, rest) = rest.rsplit_once(") ").ok_or_else(refuse)?;
            let columns: Vec<&str> = rest.split_whitespace().collect();
            let number = |index: usize| columns.get(index).and_then(|word| word.parse().ok());
            let id: u64 = id.parse().map_err(|_| refuse())?;
            let utime: u64 = number(UTIME).ok_or_else(refuse)?;
            let stime: u64 = number(STIME).ok_or_else(refuse)?;
            let ticks = utime.saturating_add(stime);
            let thread = Thread { id, name: name.to_owned(), ticks, cpu: number(PROCESSOR), line };
            threads.insert(id, thread);
        }
        Ok(Threads { threads })
    }
}

impl Thread {
    /// Quotes the thread and its CPU time in the terms of `/proc/PID/stat`, whose lines have too
    /// many columns to quote.
    pub fn quote(&self, ticks: u64, seconds: f64) -> Quote {
        let Thread { id, name, .. } = self;
        let text = format!("{id} ({name}) utime and stime grew by {ticks} ticks in {seconds:.1} s");
        Quote { file: format!("/proc/{id}/stat"), line: Some(1), text }
    }
}
