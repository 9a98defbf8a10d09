//! How CPUs save power: how fast they may run, and how deep they sleep.

use super::{Fact, Reader, Span};
use crate::parse::Single;
use crate::{Gap, Piece, Text};

/// Where the kernel has a folder for each CPU.
const CPUS: &str = "sys/devices/system/cpu";

/// How fast CPUs run and may run, and what decides it.
#[derive(Debug)]
pub struct CpuFrequencies(Reader);

impl Fact for CpuFrequencies {
    const PIECES: &'static [Piece] = &[
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/scaling_driver"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/cpuinfo_max_freq"),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        Ok(CpuFrequencies(at.clone()))
    }
}

/// How fast one CPU runs, in kHz.
#[derive(Debug)]
pub struct Frequency {
    /// What decides it.
    pub governor: Text,
    /// Who sets it.
    pub driver: String,
    /// Between the samples.
    pub now: Text,
    /// What it is.
    pub now_khz: u64,
    /// The most that it may be.
    pub allowed: Text,
    /// What that is.
    pub allowed_khz: u64,
    /// The most that it can be.
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

/// How deep CPUs sleep, and how often.
#[derive(Debug)]
pub struct CpuSleeps(Reader);

impl Fact for CpuSleeps {
    const PIECES: &'static [Piece] = &[
        Piece::File("sys/devices/system/cpu/cpu*/cpuidle/state*/name"),
        Piece::File("sys/devices/system/cpu/cpu*/cpuidle/state*/latency"),
        Piece::Counters("sys/devices/system/cpu/cpu*/cpuidle/state*/usage"),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        Ok(CpuSleeps(at.clone()))
    }
}

/// A state in which a CPU sleeps.
#[derive(Debug)]
pub struct Sleep {
    /// Such as `C6`.
    pub name: String,
    /// How long it takes to wake up from it, in microseconds.
    pub latency_us: u64,
    /// The file that says so.
    pub latency: Text,
    /// How often it was entered.
    pub entered: Span<Single>,
}

impl CpuSleeps {
    /// Those of one CPU, the lightest first; none where the kernel has no choice.
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
