//! The pages of DPDK's programs.
//!
//! A frame is in another page than the one before it, so with pages of 4 KiB each frame costs
//! translations of addresses, twice as many on a virtual machine. Users of DPDK reserve huge pages;
//! a host without them can still compare programs.

use std::fs;

use anyhow::{Context, Result, ensure};

/// Huge pages that all programs of one run take together, of 2 MiB: two of `testpmd`, or one and
/// Open vSwitch.
const HUGE_PAGES: u64 = 2560;
/// Their size.
const HUGE_KIB: u64 = 2048;

/// Which pages DPDK's programs use. Those of ringway are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Of 4 KiB.
    Small,
    /// Of 2 MiB, which the host must have reserved.
    Huge,
}

impl Pages {
    /// Options of DPDK for a program that needs this much memory. A front-end must pass on each of
    /// its files, of which it may have few.
    pub(crate) fn arguments(self, mib: u32) -> Vec<String> {
        let options: &[&str] = match self {
            Pages::Small => &["--no-huge"],
            Pages::Huge => &["--in-memory", "--single-file-segments"],
        };
        let memory = ["-m".to_owned(), mib.to_string()];
        options.iter().map(|&option| option.to_owned()).chain(memory).collect()
    }

    /// Arguments for a program that appends `--in-memory` itself, with which small pages need
    /// `--legacy-mem`.
    pub(crate) fn arguments_in_memory(self, mib: u32) -> String {
        match self {
            Pages::Small => format!("--no-huge --legacy-mem -m {mib}"),
            Pages::Huge => format!("-m {mib}"),
        }
    }

    /// Checks that the host has enough of them.
    ///
    /// # Errors
    /// The remedy, if it does not.
    pub(crate) fn check(self) -> Result<()> {
        if self == Pages::Small {
            return Ok(());
        }
        let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let (free, kib) = (field(&text, "HugePages_Free:"), field(&text, "Hugepagesize:"));
        ensure!(kib == Some(HUGE_KIB), "--huge-pages: the host's huge pages are not of 2 MiB");
        let free = free.unwrap_or(0);
        ensure!(
            free >= HUGE_PAGES,
            "--huge-pages: {free} huge pages are free, {HUGE_PAGES} are needed; reserve them with \
             sysctl vm.nr_hugepages={HUGE_PAGES}, and free them afterwards with 0"
        );
        Ok(())
    }
}

fn field(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_kernel() {
        let text =
            "HugePages_Total:     512\nHugePages_Free:      500\nHugepagesize:       2048 kB\n";
        assert_eq!(field(text, "HugePages_Free:"), Some(500));
        assert_eq!(field(text, "Hugepagesize:"), Some(2048));
        assert_eq!(field(text, "HugePages_Rsvd:"), None);
    }
}
