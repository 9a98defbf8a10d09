//! How CPUs save power: how fast they may run, and how deep they sleep.

use super::{Fact, Reader, Span};
use crate::parse::Single;
use crate::{Gap, Piece, Text};

/// The directory in which the kernel has a folder for each CPU.
const CPUS: &str = "sys/devices/system/cpu";

on_demand! {
    /// Current and permitted frequencies of CPUs, and what selects them.
    CpuFrequencies = [
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/scaling_driver"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/cpuinfo_max_freq"),
    ];
}

/// The frequencies of one CPU, in kHz.
#[derive(Debug)]
pub struct Frequency {
    /// The governor, which selects the frequency.
    pub governor: Text,
    /// The driver, which sets it.
    pub driver: String,
    /// The current frequency, read between the samples.
    pub now: Text,
    /// Its value.
    pub now_khz: u64,
    /// The permitted maximum.
    pub allowed: Text,
    /// Its value.
    pub allowed_khz: u64,
    /// The hardware's maximum.
    pub able_khz: u64,
}

impl CpuFrequencies {
    /// Whether the kernel sets frequencies at all; in most guests it does not.
    pub fn are_set(&self) -> bool {
        self.0.has(&format!("{CPUS}/cpu0/cpufreq/scaling_governor"))
    }

    /// That of one CPU.
    pub fn of(&self, cpu: usize) -> Result<Frequency, Gap> {
        let file = |name: &str| self.0.file(&format!("{CPUS}/cpu{cpu}/cpufreq/{name}"));
        let (now, allowed) = (file("scaling_cur_freq")?, file("scaling_max_freq")?);
        Ok(Frequency {
            governor: file("scaling_governor")?,
            driver: file("scaling_driver")?.value().to_owned(),
            now_khz: now.number()?,
            now,
            allowed_khz: allowed.number()?,
            allowed,
            able_khz: file("cpuinfo_max_freq")?.number()?,
        })
    }
}

on_demand! {
    /// The sleep states of CPUs, and how often they were entered.
    CpuSleeps = [
        Piece::File("sys/devices/system/cpu/cpu*/cpuidle/state*/name"),
        Piece::File("sys/devices/system/cpu/cpu*/cpuidle/state*/latency"),
        Piece::Counters("sys/devices/system/cpu/cpu*/cpuidle/state*/usage"),
    ];
}

/// A state in which a CPU sleeps.
#[derive(Debug)]
pub struct Sleep {
    /// Such as `C6`.
    pub name: String,
    /// Its exit latency in microseconds.
    pub latency_us: u64,
    /// The file with the latency.
    pub latency: Text,
    /// How often it was entered.
    pub entered: Span<Single>,
}

impl CpuSleeps {
    /// The states of one CPU, the lightest first; empty if the kernel does not control them.
    pub fn of(&self, cpu: usize) -> Result<Vec<Sleep>, Gap> {
        let folder = format!("{CPUS}/cpu{cpu}/cpuidle");
        let states = self.0.list(&folder);
        let state = |state: &String| {
            let latency = self.0.file(&format!("{folder}/{state}/latency"))?;
            Ok(Sleep {
                name: self.0.file(&format!("{folder}/{state}/name"))?.value().to_owned(),
                latency_us: latency.number()?,
                latency,
                entered: self.0.span(&format!("{folder}/{state}/usage"))?,
            })
        };
        states.iter().map(state).collect()
    }
}
