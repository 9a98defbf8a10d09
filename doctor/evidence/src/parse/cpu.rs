//! `/proc/stat`: where the time of each CPU went.

use std::collections::BTreeMap;

use super::cpus::cpu_number;
use super::{Counters, next_number};
use crate::{Gap, Text};

/// The CPUs that are online, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// By number of the CPU.
    pub cpus: BTreeMap<usize, Times>,
}

/// Ticks of one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// All of them together.
    pub total: u64,
    /// Idle, or waiting for a disk.
    pub idle: u64,
    /// Programs of low priority, which yield to all other work.
    pub nice: u64,
    /// Interrupts of devices (`hi`).
    pub irq: u64,
    /// Deferred work of interrupts (`si`): most of the network.
    pub softirq: u64,
    /// The hypervisor ran another guest.
    pub steal: u64,
    /// Running a guest.
    pub guest: u64,
    /// Its line in the file.
    pub line: usize,
}

impl Counters for CpuTimes {
    fn parse(text: &Text) -> Result<CpuTimes, Gap> {
        let mut cpus = BTreeMap::new();
        for (line, row) in text.lines() {
            let mut words = row.split_whitespace();
            let name = words.next().unwrap_or_default();
            let Some(number) = name.strip_prefix("cpu").filter(|rest| !rest.is_empty()) else {
                continue;
            };
            let number = cpu_number(number)
                .ok_or_else(|| text.unreadable(Some(line), "expected cpu and its number"))?;
            let mut column = [0; 10];
            for (index, value) in column.iter_mut().enumerate() {
                // Kernels before 2.6.33 have fewer columns, none has fewer than four.
                if index < 4 || words.clone().next().is_some() {
                    *value = next_number(&mut words, text, line)?;
                }
            }
            let [user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice] = column;
            // Time of guests is in user and nice already.
            let parts = [user, nice, system, idle, iowait, irq, softirq, steal];
            let total = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
            let idle = idle.saturating_add(iowait);
            let guest = guest.saturating_add(guest_nice);
            cpus.insert(number, Times { total, idle, nice, irq, softirq, steal, guest, line });
        }
        // This line follows the CPUs: without it some of them may be missing.
        let is_whole = text.lines().any(|(_, line)| line.starts_with("intr "));
        if cpus.is_empty() || !is_whole {
            return Err(text.unreadable(None, "expected a line for each CPU, and intr behind them"));
        }
        Ok(CpuTimes { cpus })
    }
}

impl Times {
    /// Ticks in which this machine had the CPU: while the hypervisor runs another guest, the kernel
    /// sees neither work nor idleness.
    pub fn had(&self) -> u64 {
        self.total.saturating_sub(self.steal)
    }

    /// The ticks since `before`. `iowait` may decrease, so differences saturate at 0.
    pub fn since(&self, before: &Times) -> Times {
        Times {
            total: self.total.saturating_sub(before.total),
            idle: self.idle.saturating_sub(before.idle),
            nice: self.nice.saturating_sub(before.nice),
            irq: self.irq.saturating_sub(before.irq),
            softirq: self.softirq.saturating_sub(before.softirq),
            steal: self.steal.saturating_sub(before.steal),
            guest: self.guest.saturating_sub(before.guest),
            line: self.line,
        }
    }
}
