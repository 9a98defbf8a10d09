//! Who lacks a CPU: a program that waits for one reads late, whatever the network does.

use std::collections::BTreeMap;

use super::{Basis, Fact, Reader, Span};
use crate::number::{float, share, sum};
use crate::parse::cpu::CpuTimes;
use crate::parse::programs::Busiest;
use crate::{Gap, Piece};

/// Fraction of the time that a program waits for a CPU, from which it lacks one.
const WAITS: f64 = 0.2;
/// Fraction of all CPUs' time that was idle, below which each program waits for others.
const IDLE: f64 = 0.05;

/// Programs that waited for a CPU between both samples.
#[derive(Debug)]
pub struct CpuWaits {
    /// By process: the fraction of the time that its thread waited that waited longest.
    by_process: BTreeMap<u64, f64>,
    /// Whether all CPUs of the machine were busy.
    pub are_all_full: bool,
}

impl Fact for CpuWaits {
    const PIECES: &'static [Piece] = &[
        Piece::All(<Span<Busiest> as Fact>::PIECES),
        Piece::All(<Span<CpuTimes> as Fact>::PIECES),
    ];

    /// Without this evidence no program waits, and nothing is excused.
    fn read(at: &Reader) -> Result<Self, Gap> {
        let mut by_process: BTreeMap<u64, f64> = BTreeMap::new();
        let busiest: Option<Span<Busiest>> = at.fact().ok();
        for span in busiest.iter().filter(|span| span.basis == Basis::Samples) {
            for (thread, after) in &span.after.threads {
                let before = span.before.threads.get(thread).and_then(|one| one.waited_ns);
                let Some((then, now)) = before.zip(after.waited_ns) else { continue };
                let part = float(now.saturating_sub(then)) / 1e9 / span.seconds;
                let most = by_process.entry(after.process).or_default();
                *most = most.max(part);
            }
        }
        let times: Option<Span<CpuTimes>> = at.fact().ok();
        let are_all_full = times.is_some_and(|span| {
            let spent = span.after.cpus.iter().filter_map(|(cpu, after)| {
                let spent = after.since(span.before.cpus.get(cpu)?);
                Some((spent.idle, spent.total))
            });
            let (idle, total): (Vec<u64>, Vec<u64>) = spent.unzip();
            let (idle, total) = (sum(&idle), sum(&total));
            span.basis == Basis::Samples && total > 0 && share(idle, total) < IDLE
        });
        Ok(CpuWaits { by_process, are_all_full })
    }
}

impl CpuWaits {
    /// Whether a program lacks a CPU; of an unknown one, whether all CPUs are full.
    pub fn lacks(&self, process: Option<u64>) -> bool {
        let waited = process.and_then(|process| self.by_process.get(&process));
        waited.map_or(self.are_all_full, |part| *part >= WAITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use crate::fact::Host;

    #[test]
    fn a_program_that_waits_lacks_a_cpu() {
        let stat = format!("(a) R 1 7 7 0 -1 0 0 0 0 0 5 5{}", " 0".repeat(28));
        let busiest = |waited: u64| format!("busiest: 1\n7 a network fair {waited} 7 {stat}\n");
        let pieces = [
            ("sample-1/monotonic", "1.0\n".to_owned()),
            ("sample-2/monotonic", "2.0\n".to_owned()),
            ("sample-1/busiest", busiest(0)),
            ("sample-2/busiest", busiest(400_000_000)),
            ("sample-1/proc/stat", "cpu0 0 0 0 0\nintr 0\n".to_owned()),
            ("sample-2/proc/stat", "cpu0 100 0 0 1\nintr 0\n".to_owned()),
        ];
        let own = |(path, text): (&str, String)| (path.to_owned(), text);
        let host = Host::new(Source::Memory(pieces.map(own).into()));
        let waits: CpuWaits = host.fact().expect("sound");
        assert!(waits.lacks(Some(7)) && waits.lacks(None) && waits.are_all_full, "{waits:?}");
        let none: CpuWaits = Host::new(Source::Memory([].into())).fact().expect("nothing");
        assert!(!none.lacks(Some(7)) && !none.lacks(None));
    }

    #[test]
    fn times_of_any_size_are_summed() {
        let two = |user: u64| format!("cpu0 {user} 0 0 0\ncpu1 {user} 0 0 0\nintr 0\n");
        let pieces = [
            ("sample-1/monotonic", "1.0\n".to_owned()),
            ("sample-2/monotonic", "2.0\n".to_owned()),
            ("sample-1/proc/stat", two(0)),
            ("sample-2/proc/stat", two(u64::MAX)),
        ];
        let own = |(path, text): (&str, String)| (path.to_owned(), text);
        let host = Host::new(Source::Memory(pieces.map(own).into()));
        assert!(host.fact::<CpuWaits>().expect("sound").are_all_full);
    }
}
